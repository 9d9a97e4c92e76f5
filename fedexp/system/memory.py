"""How much memory there is left, and what does not fit into it."""

from __future__ import annotations

import os
from pathlib import Path

from fedexp.display.numbers import human_bytes
from fedexp.errors import ConfigError

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def afford(needed: int, what: str) -> None:
    """Refuses what is larger than the available memory.

    Raises:
        ConfigError: With what it is about, for example a setting.
    """
    there = available_memory()
    if there is not None and needed > there:
        raise ConfigError(
            f"{what} takes {human_bytes(needed)}; {human_bytes(there)} of memory are left. Make it smaller."
        )


def available_memory() -> int | None:
    """Bytes that can still be had without swapping, within the limit of the process's control group."""
    known = [bytes_ for bytes_ in (_of_machine(), _of_group()) if bytes_ is not None]
    return min(known, default=None)


def _of_machine() -> int | None:
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
    except OSError:  # not Linux: what is free, if the system says so
        names = os.sysconf_names
        pages = [os.sysconf(n) for n in ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE") if n in names]
        return pages[0] * pages[1] if len(pages) == 2 else None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _of_group() -> int | None:
    """What a control group (version 2) leaves; files that were only read can be dropped at any time."""
    try:
        path = (PROC / "self" / "cgroup").read_text().partition("0::/")[2].splitlines()[0]
        folder = CGROUP / path
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError, IndexError):
        return None
    return None if limit == "max" else max(int(limit) - used + int(stat.get("inactive_file", 0)), 0)
