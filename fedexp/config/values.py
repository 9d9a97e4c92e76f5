"""Whether a value of a configuration is what its type and range say, and what it should be in words."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal

from fedexp.core.ranges import ALWAYS

ANY: Any = Any
LONGEST = 120  # letters of a wrong value that are shown
LISTS = (tuple, list, Sequence)
UNIONS = (typing.Union, UnionType)
WORDS = {
    float: "a number", int: "a whole number", bool: "true or false", str: "a text", type(None): "null", ANY: "anything",
}  # fmt: skip


def fits(value: Any, hint: Any) -> bool:
    """Whether a configuration value is what is declared. A whole number is a float too; a list is a tuple too."""
    return wanted(value, hint) is None


def wanted(value: Any, hint: Any) -> str | None:
    """What a value should be instead, in words; None if it is right, or if its type is none that can be checked."""
    check = CHECKS.get(typing.get_origin(hint) or hint)
    return check(value, hint) if check else None


def _wanted_plain(value: Any, hint: Any) -> str | None:
    if not _is(value, hint):
        return describe(hint)
    always = ALWAYS.get(hint)
    return None if always is None or always.holds(value) else always.words


def _wanted_in_range(value: Any, hint: Any) -> str | None:
    kind, range_ = typing.get_args(hint)
    return wanted(value, kind) or (None if range_.holds(value) else str(range_.words))


def _wanted_choice(value: Any, hint: Any) -> str | None:
    return None if value in typing.get_args(hint) else describe(hint)


def _wanted_union(value: Any, hint: Any) -> str | None:
    each = [wanted(value, kind) for kind in typing.get_args(hint)]
    return None if None in each else " or ".join(filter(None, each))


def _wanted_list(value: Any, hint: Any) -> str | None:
    origin, args = typing.get_origin(hint), typing.get_args(hint) or (ANY, ...)
    if not isinstance(value, list | tuple):
        return describe(hint)
    inner = args if origin is tuple and args[-1] is not Ellipsis else args[:1] * len(value)
    if len(inner) != len(value):
        return describe(hint)
    words = next(filter(None, (wanted(v, h) for v, h in zip(value, inner, strict=True))), None)
    return words and f"a list ({words} each)"


def _wanted_group(value: Any, hint: Any) -> str | None:
    _, kind = typing.get_args(hint) or (ANY, ANY)
    if not isinstance(value, Mapping):
        return describe(hint)
    words = next(filter(None, (wanted(v, kind) for v in value.values())), None)
    return words and f"a group of settings ({words} each)"


CHECKS: dict[Any, Callable[[Any, Any], str | None]] = {
    **dict.fromkeys((float, int, bool, str, type(None)), _wanted_plain),
    **dict.fromkeys(LISTS, _wanted_list),
    **dict.fromkeys(UNIONS, _wanted_union),
    dict: _wanted_group, Annotated: _wanted_in_range, Literal: _wanted_choice,
}  # fmt: skip


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
    if (origin or hint) in LISTS:
        return f"a list ({describe(args[0])} each)" if args else "a list"
    if (origin or hint) is dict:
        return f"a group of settings ({describe(args[1])} each)" if args else "a group of settings"
    if origin in UNIONS:
        return " or ".join(describe(a) for a in args)
    return WORDS.get(hint, str(hint))


def shown(value: Any) -> str:
    """A wrong value as it is shown in a message."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
