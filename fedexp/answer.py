"""From features to logits: the classifier or its replacement, then the components' edits. Train and test share it."""

from __future__ import annotations

from torch import Tensor, nn

from fedexp.algorithm import Algorithm
from fedexp.contexts import Step


class Answer:
    """The logits of one phase; ``eval`` is a phase too."""

    def __init__(self, algorithm: Algorithm, phase: str, classifier: nn.Module) -> None:
        self._classifier = classifier
        self._head = algorithm.active(phase, "head")
        self._logits = algorithm.active(phase, "logits")

    def __call__(self, step: Step) -> Tensor:
        """Logits for the features of a step."""
        z: Tensor | None = None
        for key, component in self._head:
            z = component.head(step.h, step.bind(key))
        if z is None:
            z = self._classifier(step.h)
        for key, component in self._logits:
            z = component.logits(z, step.bind(key))
        return z
