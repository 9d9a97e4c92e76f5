"""Looking a configured name up in a table of ours."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from fedexp.errors import ConfigError

T = TypeVar("T")


def lookup(table: Mapping[str, T], name: str, *, key: str) -> T:
    """Returns ``table[name]``; an unknown name is answered with the nearest known one.

    Args:
        table: The known names.
        name: The name the user gave.
        key: The config key that held it, for the message.
    """
    if name in table:
        return table[name]
    near = get_close_matches(name, table, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"{key} is {name!r}, which is none of {', '.join(sorted(table))}.{hint}")
