"""A console for one of several jobs that write to the same terminal at the same time."""

from __future__ import annotations

import sys
from typing import IO, cast

from rich.console import Console

from fedexp.terminal.console import open_console


class _Prefixed:
    """Puts the same words before every line. What is written together is sent together."""

    def __init__(self, file: IO[str], prefix: str) -> None:
        self._file, self._prefix = file, prefix

    def write(self, text: str) -> int:
        """Writes whole lines; a console ends everything it prints with a line break."""
        self._file.write("".join(self._prefix + line for line in text.splitlines(keepends=True)))
        self._file.flush()
        return len(text)

    def flush(self) -> None:
        """Has kept nothing back."""


def prefixed(prefix: str) -> Console:
    """A console without moving parts whose every line begins with ``prefix``."""
    width = open_console().width - len(prefix)
    return open_console(
        file=cast("IO[str]", _Prefixed(sys.stdout, prefix)), width=max(width, 40), force_interactive=False
    )
