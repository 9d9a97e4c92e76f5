"""What a process and its descendants use: CPU as psutil says, memory from Linux's ``/proc``. Free of torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from fedexp.errors import FedexpError

PROC = Path("/proc")


def demand_linux() -> None:
    """Refuses systems that cannot say what a process uses."""
    if not (PROC / "self" / "smaps_rollup").exists():
        raise FedexpError("The benchmark reads memory and CPU seconds from /proc/<pid>/smaps_rollup: it needs Linux.")


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def family(pid: int) -> list[int]:
    """A process and all its living descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_seconds(pids: list[int]) -> float:
    """CPU seconds that processes, and those of their children that have ended, have used so far."""
    return sum(map(_cpu_seconds, pids))


def _cpu_seconds(pid: int) -> float:
    with suppress(psutil.NoSuchProcess):  # it has ended
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


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
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)
