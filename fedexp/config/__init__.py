"""Configurations: where they are read from, how they are checked, and the runs they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedexp.config.compose import composed

__all__ = ["composed"]


def __getattr__(name: str) -> Any:
    """Imports Hydra only for those who compose: workers read the schema alone."""
    if name == "composed":
        from fedexp.config import compose

        return compose.composed
    raise AttributeError(f"module 'fedexp.config' has no attribute {name!r}")
