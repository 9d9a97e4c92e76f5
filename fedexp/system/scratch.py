"""Temporary folders. What a process that was killed has left behind is removed by the next one that needs a folder."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "fedexp-scratch-"
MIN_AGE_SECONDS = 60.0  # a younger folder may be in use and not locked yet


@contextmanager
def folder(prefix: str = PREFIX, within: Path | None = None) -> Iterator[Path]:
    """A folder for the time of the block, in the system's folder for such or in the given one."""
    within = within or Path(tempfile.gettempdir())
    _clear(prefix, within)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the process ends, in whatever way
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _clear(prefix: str, within: Path) -> None:
    """Removes folders that we have made and no living process holds."""
    name = re.compile(re.escape(prefix) + r"[a-z0-9_]{8}")  # as tempfile makes them
    for path in within.glob(f"{prefix}*"):
        with suppress(OSError):  # gone meanwhile, or someone else's
            if name.fullmatch(path.name) and _is_left_behind(path):
                shutil.rmtree(path)


def _is_left_behind(path: Path) -> bool:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or time.time() - found.st_mtime < MIN_AGE_SECONDS:
        return False
    lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
