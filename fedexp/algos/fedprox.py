"""A pull of the local weights towards the server's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.component import Component
from fedexp.core.ranges import NotNegative
from fedexp.core.state import pick, squared_distance
from fedexp.core.views import Step


@dataclass(frozen=True, kw_only=True)
class Proximal(Component):
    """Adds weight/2 · ‖w - w_t‖² to the loss, where w_t are the received weights.

    Li et al., FedProx, MLSys 2020, eq. 2. ``weight`` is the paper's mu. The norm is over the parameters that are
    trained and travel; running statistics and private parts have nothing to be pulled to. Nothing more is sent or kept
    than in FedAvg, and no client has a model of its own.

    ``form: smooth_l1``: the public code of MAP and FedRS: weight times the smooth L1 distance, averaged over the
    entries of each tensor and then over tensors. Where entries move by less than 1, that is the squared norm with a
    weight divided by the number of tensors and that of the tensor's entries: hardly any pull.

    Deviations: local problems are not solved to a given inexactness; every client takes the run's local steps.
    """

    weight: NotNegative = 0.01
    form: Literal["squared", "smooth_l1"] = "squared"

    padded: ClassVar[bool] = True

    def loss(self, step: Step) -> Tensor | None:
        """The distance to the received weights."""
        if not self.weight:
            return None
        weights, received = step.weights, step.received
        names = step.once("names", lambda: [n for n in step.facts.layout.shared if weights[n].requires_grad])
        if self.form == "squared":
            return self.weight / 2 * squared_distance(pick(weights, names), received)
        return self.weight * torch.stack([F.smooth_l1_loss(weights[n], received[n]) for n in names]).mean()

    def neutral(self) -> Proximal:
        """Without weight there is no pull."""
        return replace(self, weight=0.0)
