"""Local features kept close, as a distribution, to those of the server's model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedexp.algos.transfer import mmd
from fedexp.core.component import Component
from fedexp.core.ranges import NotNegative
from fedexp.core.views import Step


@dataclass(frozen=True, kw_only=True)
class FeatureDiscrepancy(Component):
    """Adds weight · MMD²(h, h_t) to the loss, where h_t are the batch's features under the received weights.

    Yao et al., FedMMD ("Two-stream Federated Learning"), VCIP 2018, a baseline of FedRS (tables 1, 5) and of MAP
    (tables 1, 2). The received model is frozen and in evaluation mode; the kernel is a sum of five Gaussians
    (``fedexp.algos.transfer.mmd``), as in the public code of MAP and FedRS. Nothing more is sent or kept than in
    FedAvg, and no client has a model of its own. A step needs one forward pass more.

    Deviations: none from that code. With batch normalisation the term is not zero at the first step, since live
    features are normalised by the batch and the received model's by its running statistics.
    """

    weight: NotNegative = 0.001

    def loss(self, step: Step) -> Tensor | None:
        """The discrepancy of this batch."""
        if not self.weight:
            return None
        features, _ = step.forward(step.received)
        return self.weight * mmd(step.h, features)

    def neutral(self) -> FeatureDiscrepancy:
        """Without weight nothing is matched."""
        return replace(self, weight=0.0)
