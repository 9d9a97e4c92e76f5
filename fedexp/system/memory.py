"""How much memory there is left, and what does not fit into it."""

from __future__ import annotations

from pathlib import Path

import psutil

from fedexp.errors import ConfigError
from fedexp.terminal.numbers import human_bytes

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def afford(needed: int, what: str) -> None:
    """Refuses what is larger than the available memory.

    Raises:
        ConfigError: With what it is about, for example a setting.
    """
    if needed > (there := available_memory()):
        raise ConfigError(
            f"{what} takes {human_bytes(needed)}; {human_bytes(there)} of memory are left. Make it smaller."
        )


def available_memory() -> int:
    """Bytes that can still be had without swapping, within the limit of the process's control group."""
    machine, group = int(psutil.virtual_memory().available), _of_group()
    return machine if group is None else min(machine, group)


def _of_group() -> int | None:
    """What control groups (version 2) leave: the process's own, and those that it is in."""
    try:
        here = CGROUP / (PROC / "self" / "cgroup").read_text().partition("0::/")[2].splitlines()[0]
    except (OSError, IndexError):
        return None
    around = (folder for folder in (here, *here.parents) if folder.is_relative_to(CGROUP))
    return min((left for folder in around if (left := _left(folder)) is not None), default=None)


def _left(folder: Path) -> int | None:
    """What one group leaves; files that were only read can be dropped at any time."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(int(limit) - used + int(stat.get("inactive_file", 0)), 0)
