"""What this process may use of the machine: cores and GPUs. Jobs of a sweep that run at the same time share them."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

from fedexp.errors import ConfigError

CORES = "FEDEXP_CORES"
GPUS = "CUDA_VISIBLE_DEVICES"
CGROUPS = Path("/sys/fs/cgroup")
NVIDIA = Path("/proc/driver/nvidia/gpus")


def cores() -> int:
    """How many cores may be used: ``FEDEXP_CORES`` if set, else the fewest that affinity, cgroup and SLURM grant.

    Raises:
        ConfigError: If ``FEDEXP_CORES`` is not a whole number above 0.
    """
    given = os.environ.get(CORES)
    if given is None:
        slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
        granted = [_affinity(), *_quotas(CGROUPS, Path("/proc/self/cgroup"))]
        return max(1, min([*granted, int(slurm)] if slurm.isdigit() else granted))
    if not given.isdigit() or int(given) < 1:
        raise ConfigError(f"The environment variable {CORES} must be a whole number above 0, not {given!r}.")
    return int(given)


def _affinity() -> int:
    """The cores that the system lets this process use; all, where it does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """The GPUs that may be used, as ``CUDA_VISIBLE_DEVICES`` names them."""
    given = os.environ.get(GPUS)
    if given is not None:
        names = filter(None, (name.strip() for name in given.split(",")))
        return [*takewhile(lambda name: name != "-1", names)]  # where the list ends for CUDA
    return [str(i) for i, _ in enumerate(NVIDIA.iterdir())] if NVIDIA.is_dir() else []


def at_once(wanted: int, jobs: int) -> int:
    """How many jobs of a sweep run at a time. -1: one per GPU or, without any, per core; -2: one less, and so on."""
    if wanted < 0:
        wanted += 1 + (len(gpus()) or cores())
    return max(1, min(wanted, jobs))


@contextmanager
def shared(jobs: int, folder: Path) -> Iterator[None]:
    """Limits this process, while the block lasts, to the share of one of ``jobs`` that run at the same time.

    ``folder`` is where the processes that share agree on who is who.
    """
    before = {name: os.environ.get(name) for name in (CORES, GPUS)}
    try:
        if jobs > 1:
            os.environ[CORES] = str(max(1, cores() // jobs))
            if all_gpus := gpus():
                os.environ[GPUS] = ",".join(deal(all_gpus, _place(folder, jobs), jobs))
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def deal(cards: Sequence[str], place: int, places: int) -> list[str]:
    """Every ``places``-th card for each place; where there are fewer cards than places, one card serves several."""
    return list(cards[place::places]) or [cards[place % len(cards)]]


@cache  # for the life of the process: CUDA does not change its devices once it has begun
def _place(folder: Path, places: int) -> int:
    """A number below ``places`` that no other living process has; if there are more processes, a number twice."""
    from filelock import FileLock, Timeout

    for place in range(places):
        lock = FileLock(folder / f"place-{place}", thread_local=False)
        with suppress(Timeout):
            lock.acquire(blocking=False)
            _held.append(lock)  # until the process ends
            return place
    return os.getpid() % places


_held: list[object] = []


def _quotas(root: Path, membership: Path) -> Iterator[int]:
    """The whole cores that cgroups grant this process: of version 2 along the way to the root, or of version 1."""
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            here = root / path.strip("/")
            yield from (q for p in (here, *here.parents) if root in (p, *p.parents) for q in _quota(p / "cpu.max"))
        elif "cpu" in controllers.split(","):
            yield from _quota(*(root / "cpu" / path.strip("/") / f"cpu.cfs_{k}_us" for k in ("quota", "period")))


def _quota(*files: Path) -> Iterator[int]:
    if all(f.exists() for f in files):
        quota, period = (word for f in files for word in f.read_text().split())
        if quota not in ("max", "-1"):
            yield max(1, int(quota) // int(period))


def allow_many_files() -> None:
    """Lets this process open as many files as the system grants it: a worker takes ten."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # a system that does not grant what it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def keep_freed_memory() -> None:
    """Lets this process keep what it frees: fresh pages for every client's gradients cost more than a tiny step.

    A setting of glibc; elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD: bytes that are free at the end of the heap before they are given back
        mallopt(-3, 1 << 26)  # M_MMAP_THRESHOLD: smaller blocks come from the heap
