"""Whether a value of a configuration is what its type and range say, and what it should be in words."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fedexp.core.ranges import ALWAYS

ANY: Any = Any
LONGEST = 120  # letters of a wrong value that are shown


def fits(value: Any, hint: Any) -> bool:
    """Whether a configuration value is what is declared. A whole number is a float too; a list is a tuple too."""
    return wanted(value, hint) is None


def wanted(value: Any, hint: Any) -> str | None:
    """What a value should be instead, in words; None if it is right."""
    if hint is ANY:
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return wanted(value, args[0]) or (None if args[1].holds(value) else args[1].words)
    if origin is Literal:
        return None if value in args else describe(hint)
    if origin in (tuple, Sequence):
        return _wanted_list(value, hint)
    if args:  # a union
        each = [wanted(value, a) for a in args]
        return None if None in each else " or ".join(filter(None, each))
    if not _is(value, hint):
        return describe(hint)
    always = ALWAYS.get(hint)
    return None if always is None or always.holds(value) else always.words


def _wanted_list(value: Any, hint: Any) -> str | None:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if not isinstance(value, list | tuple):
        return describe(hint)
    inner = args if origin is tuple and args[-1] is not Ellipsis else args[:1] * len(value)
    if len(inner) != len(value):
        return describe(hint)
    words = next(filter(None, (wanted(v, h) for v, h in zip(value, inner, strict=True))), None)
    return words and f"a list ({words} each)"


def _is(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def describe(hint: Any) -> str:
    """A declared type in words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return describe(args[0])
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (tuple, Sequence):
        return f"a list ({describe(args[0])} each)"
    if args:
        return " or ".join(describe(a) for a in args)
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a text", type(None): "null"}
    return words.get(hint, str(hint))


def shown(value: Any) -> str:
    """A wrong value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
