"""The lock of a run directory: two processes cannot write one run."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import BinaryIO

from fedexp.errors import FedexpError
from fedexp.system import files

TRIES, PAUSE = 10, 0.02  # seconds: whoever asks for the holder holds the lock for a moment


def lock(path: Path) -> BinaryIO:
    """Takes the lock, which lasts until the file is closed, and writes into it who has it.

    Raises:
        FedexpError: If another process has it.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
    if not _locked(file, fcntl.LOCK_EX, tries=TRIES):
        holder = file.read().decode(errors="replace").strip() or "another process"
        file.close()
        raise FedexpError(
            f"{path.parent} is being written by {holder}. Wait for it, stop it, or choose another `name` or `out`."
        )
    file.truncate()
    file.write(f"process {os.getpid()}".encode())
    file.flush()
    return file


def holder(path: Path) -> str | None:
    """Who has the lock now, or None."""
    if not os.path.lexists(path):
        return None
    with files.reading(path) as file:
        return None if _locked(file, fcntl.LOCK_SH) else file.read().decode(errors="replace").strip()


def _locked(file: BinaryIO, kind: int, *, tries: int = 1) -> bool:
    """Takes a lock if nobody else has it."""
    for attempt in range(tries):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < tries:
                time.sleep(PAUSE)
        else:
            return True
    return False
