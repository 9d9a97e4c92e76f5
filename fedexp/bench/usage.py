"""What a process and its descendants use, read from Linux's ``/proc``. Free of torch."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fedexp.errors import FedexpError

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def demand_linux() -> None:
    """Refuses systems that cannot say what a process uses."""
    if not (PROC / "self" / "smaps_rollup").exists():
        raise FedexpError("The benchmark reads memory and CPU seconds from /proc/<pid>/smaps_rollup: it needs Linux.")


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def family(pid: int) -> list[int]:
    """A process and all its living descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    found = [pid]
    for member in found:
        found += children[member]
    return found


def cpu_seconds(pids: list[int]) -> float:
    """CPU seconds that processes, and those of their children that have ended, have used so far."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid))) / TICKS


def memory(pids: list[int]) -> float:
    """Megabytes that processes would take if they were alone on the machine.

    Pages without a file are shared among relatives only, so their PSS adds up. Pages of files, such as torch's
    libraries, may be mapped by strangers too, which would make a PSS look small: they count once for the family.
    """
    own = 0
    files: dict[tuple[str, str], int] = {}
    for pid in pids:
        try:
            rollup, regions = ((PROC / str(pid) / name).read_text() for name in ("smaps_rollup", "smaps"))
        except OSError:  # it has ended
            continue
        own += sum(sizes["Pss_Anon"] + sizes["Pss_Shmem"] for _, sizes in _regions(rollup))
        for region, sizes in _regions(regions):
            if region is not None:
                files[region] = max(files.get(region, 0), sizes["Rss"] - sizes["Anonymous"])
    return (own + sum(files.values())) * 1024 / 1e6


def _regions(text: str) -> Iterator[tuple[tuple[str, str] | None, dict[str, int]]]:
    """The mappings in a ``smaps`` file: which part of which file, if any, and its sizes."""
    region: tuple[str, str] | None = None
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        key, *rest = line.split(maxsplit=5)
        if key.endswith(":"):
            if rest[-1] == "kB":
                sizes[key[:-1]] = int(rest[0])
            continue
        if sizes:
            yield region, sizes
        on_disk = len(rest) == 5 and rest[4].startswith("/") and not rest[4].endswith("(deleted)")
        region, sizes = ((rest[4], rest[1]) if on_disk else None), {}
    if sizes:
        yield region, sizes


def machine_cpu() -> float:
    """CPU seconds that the whole machine has worked so far, or that its host took away."""
    user, nice, system, _, _, irq, softirq, steal = map(int, (PROC / "stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def _stat(pid: int) -> list[str]:
    """The fields after the name in ``/proc/<pid>/stat``; none if the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
