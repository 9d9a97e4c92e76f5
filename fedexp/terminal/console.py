"""Consoles for what the command lines print."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console


def open_console(*, width_without_terminal: int | None = None, **settings: Any) -> Console:
    """A console that does not turn ``:x:`` in a name or a message into a picture.

    ``COLUMNS=0`` counts as not set, since nothing could be printed in no column.

    Args:
        width_without_terminal: Columns of a file or a pipe, unless ``COLUMNS`` says how many; without it, Rich's 80.
        settings: As Rich's console has them.
    """
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS" or value.strip("0")}
    console = Console(emoji=False, _environ=environment, **settings)
    if width_without_terminal is not None and not console.is_terminal and "COLUMNS" not in environment:
        console.width = width_without_terminal
    return console
