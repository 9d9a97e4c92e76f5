"""From features to logits: the classifier or its replacement, then the components' edits. Train and test share it."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fedexp.core.algorithm import Algorithm
from fedexp.core.views import Step


class LogitPipeline:
    """The logits of one phase; ``eval`` is a phase too."""

    def __init__(self, algorithm: Algorithm, phase: str, classifier: nn.Module) -> None:
        self._classifier = classifier
        self._head = algorithm.active(phase, "head")
        self._logits = algorithm.active(phase, "logits")
        self._network_head, self._network_logits = (
            [(k, c) for k, c in acting if "*" in c.during] for acting in (self._head, self._logits)
        )
        phases_own = len(self._head) + len(self._logits) - len(self._network_head) - len(self._network_logits)
        self._is_networks = phases_own == 0

    def __call__(self, step: Step) -> Tensor:
        """Logits for the features of a step."""
        z: Tensor | None = None
        for key, component in self._head:
            z = component.head(step.h, step.for_component(key))
        if z is None:
            z = self._classifier(step.h)
        for key, component in self._logits:
            z = component.logits(z, step.for_component(key))
        return z

    def of_network(self, h: Tensor, step: Step) -> Tensor:
        """Logits of any features and weights: what acts everywhere belongs to the network, and acts here."""
        frame = step.frame
        live = frame.net.classifier is self._classifier and frame.gradient is None  # its own weights, before backward
        if live and self._is_networks and h is step.h and step.z is not h:
            return step.z
        turn = step.frame.key
        other = copy.copy(step)
        other.h = h
        z: Tensor | None = None
        for key, component in self._network_head:
            z = component.head(h, other.for_component(key))
        if z is None:
            z = step.frame.net.classifier(h)
        for key, component in self._network_logits:
            z = component.logits(z, other.for_component(key))
        step.for_component(turn)
        return z
