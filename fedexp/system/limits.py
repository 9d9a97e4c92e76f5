"""What the system refuses a process, said in a sentence: open files, memory, threads."""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedexp.errors import LimitError

TORCH_ADDRESS_BYTES = 4 << 30  # address space that importing torch needs, roughly
TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
OUTPUT_ERRORS = (errno.ENOSPC, errno.EPIPE, errno.EIO)
MEMORY_MESSAGES = ("failed to map segment", "cannot allocate memory", "can't allocate memory", "std::bad_alloc")
THREAD_MESSAGES = ("can't start new thread", "resource temporarily unavailable")


def warn() -> None:
    """Says so if there are too few addresses for torch: its libraries may end the process before Python hears of it."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY and most < TORCH_ADDRESS_BYTES:
        sys.stderr.write(f"`ulimit -v` is {most // 1024}; torch alone needs some {TORCH_ADDRESS_BYTES // 1024}.\n")


@contextmanager
def explained() -> Iterator[None]:
    """Raises ``LimitError`` in place of an error of the block that comes from a limit of the system."""
    try:
        yield
    except (OSError, ImportError, MemoryError, RuntimeError) as error:
        if (sentence := _sentence(error)) is None:
            raise
        raise LimitError(sentence) from error


def _sentence(error: Exception) -> str | None:
    text = str(error).lower()
    if isinstance(error, OSError) and error.errno in TOO_MANY_FILES:
        return (
            f"This process may have {_limit(resource.RLIMIT_NOFILE)} files open at once, and needs more ({error}). "
            "Allow more with `ulimit -n 4096`, or use fewer executor.workers."
        )
    if isinstance(error, OSError) and error.errno in OUTPUT_ERRORS and not error.filename:
        return f"What a run says cannot be written to where standard output goes ({error}). Send it elsewhere."
    if isinstance(error, MemoryError) or any(words in text for words in MEMORY_MESSAGES):
        return (
            f"There is not enough memory ({str(error) or 'MemoryError'}). `ulimit -v` is "
            f"{_limit(resource.RLIMIT_AS, 1024)}: allow more if it is a number; plan=true says what a run needs."
        )
    if any(words in text for words in THREAD_MESSAGES):
        return (
            f"The system starts no more threads or processes ({error}). `ulimit -u` is "
            f"{_limit(resource.RLIMIT_NPROC)}: allow more, or use fewer executor.workers."
        )
    return None


def _limit(kind: int, unit: int = 1) -> str:
    most = resource.getrlimit(kind)[0]
    return "unlimited" if most == resource.RLIM_INFINITY else str(most // unit)
