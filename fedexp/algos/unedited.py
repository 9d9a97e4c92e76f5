"""A check for methods that replace a step's gradient: what other components added to it before would be lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedexp.core.component import Component, overrides


def edited_before(component: Component, before: Mapping[str, Component]) -> Iterable[str]:
    """Says which components edit gradients before this one, in a phase that it acts in."""
    editing = [k for k, c in before.items() if overrides(c, "grads") and _meet(c.during, component.during)]
    if editing:
        yield (
            f"replaces the gradient of a step, which component {editing[0]!r} has edited before. Put it in front of "
            f"{editing[0]!r} in the algorithm's yaml."
        )


def _meet(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return "*" in (*some, *others) or not set(some).isdisjoint(others)
