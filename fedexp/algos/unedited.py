"""A check for methods that replace a step's gradient: what other components added to it before would be lost."""

from __future__ import annotations

from fedexp.core.state import Tree
from fedexp.core.views import Step
from fedexp.errors import PlanError


def refuse_edited(grads: Tree, step: Step) -> None:
    """Demands that these are the gradients of the backward pass.

    Raises:
        PlanError: If a component before has edited them.
    """
    key = step.frame.key
    if any(step.weights[n].grad is not g for n, g in grads.items()):
        raise PlanError(
            f"component {key!r} replaces the gradient of a step, which a component before it has edited. "
            f"Put {key!r} first in the algorithm's yaml."
        )
