"""What is known of an evaluated round."""

from __future__ import annotations

import math
from typing import Any

from fedexp.errors import PlanError

Record = dict[str, Any]
"""``round`` (from 1) and, where they make sense, ``aggregation``, ``personalization``, ``missing`` (classes),
``terms``, ``numbers`` (that components recorded), ``bytes`` and ``seconds``. A metric that makes no sense for a method
is absent."""


def plain_numbers(value: Any, where: str) -> Any:
    """A number or a (nested) list of numbers, for a record; tensors and arrays become lists.

    Raises:
        PlanError: If there is anything else in it, or a number that is not finite.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain_numbers(v, where) for v in value]
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    advice = " Training has diverged: lower the learning rates, or set local.clip." * isinstance(value, float)
    raise PlanError(f"record: {where} is {value!r}; only finite numbers and lists of them can be recorded.{advice}")
