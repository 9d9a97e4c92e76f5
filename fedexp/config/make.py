"""Objects from nodes of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fedexp.config import targets


def make(node: Mapping[str, Any], **given: Any) -> Any:
    """Calls a node's ``_target_`` with its settings; lists become tuples, so that nothing can change later.

    Raises:
        ConfigError: If it cannot be imported.
    """
    target = targets.load(node["_target_"])
    settings = {k: _frozen(v) for k, v in node.items() if not k.startswith("_")}
    if node.get("_partial_"):
        return partial(target, **settings, **given)
    return target(**settings, **given)


def _frozen(value: Any) -> Any:
    """A setting as a value. A target in a list becomes what makes it, wherever that will be."""
    if not isinstance(value, list):
        return value
    made = [make({**v, "_partial_": True}) if isinstance(v, Mapping) and "_target_" in v else v for v in value]
    return tuple(map(_frozen, made))
