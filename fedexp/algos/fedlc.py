"""Logits calibrated by how rare a class is at the client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.component import Component
from fedexp.core.ranges import NotNegative
from fedexp.core.views import Step

MISSING = 1e-8  # samples that a missing class is taken to have: its margin is 100 · tau


@dataclass(frozen=True, kw_only=True)
class LogitCalibration(Component):
    """Lowers the logits of rare classes in the training loss, so that a client separates them by a larger margin.

    Zhang et al., FedLC, ICML 2022: z_c - tau · n_kc^(-1/4) with n_kc the client's training samples of class c, then
    cross-entropy. The test uses plain logits. Nothing more is sent or kept than in FedAvg, and no client has a model of
    its own.

    ``denominator: others``: the loss as printed, whose sum of exponentials leaves out the sample's own class.

    Deviations: the printed loss has no lower bound (log(1 - p_y) is added to the cross-entropy), so the default keeps
    the own class in the sum, as public re-implementations do. A class that the client lacks is taken to have 1e-8
    samples, as there: with tau = 1 its margin is 100, and it is out of the softmax. A restricted softmax that scales
    missing classes only has nothing to do beside it then.
    """

    tau: NotNegative = 1.0
    denominator: Literal["all", "others"] = "all"

    padded: ClassVar[bool] = True

    def logits(self, z: Tensor, step: Step) -> Tensor:
        """Subtracts the margins."""
        info = step.info
        if info is None or not self.tau:
            return z
        return z - step.once("margins", lambda: self.tau * info.counts.clamp(min=MISSING).pow(-0.25))

    def loss(self, step: Step) -> Tensor | None:
        """What changes if the own class is left out of the denominator: log(1 - p_y)."""
        if self.denominator == "all":
            return None
        own = F.one_hot(step.y, step.n_classes).bool()
        others = step.z.masked_fill(own, -torch.inf)
        return step.mean(others.logsumexp(1) - step.z.logsumexp(1))

    def neutral(self) -> LogitCalibration:
        """Without margins it is the cross-entropy."""
        return replace(self, tau=0.0, denominator="all")
