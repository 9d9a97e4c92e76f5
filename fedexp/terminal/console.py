"""Consoles for what the command lines print."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console


def open_console(**settings: Any) -> Console:
    """A console that does not turn ``:x:`` in a name or a message into a picture.

    ``COLUMNS=0`` counts as not set, since nothing could be printed in no column.
    """
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS" or value.strip("0")}
    return Console(emoji=False, _environ=environment, **settings)
