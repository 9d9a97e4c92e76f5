"""FedProto: clients with models of their own agree on class prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.algos.prototypes import Align
from fedexp.core.ranges import NotNegative
from fedexp.core.state import Tree
from fedexp.core.views import Step


@dataclass(frozen=True, kw_only=True)
class FedProto(Align):
    """Pulls a client's class means towards the global prototypes, and answers with the nearest of them.

    Tan et al., FedProto, AAAI 2022: CE + ``weight`` · Σ_c ‖C_kc - C_c‖ (eq. 7 and 8, L2 distance), where C_kc is the
    mean feature of class c in the batch (Alg. 1) and c runs over its classes that have a global prototype. In a test
    the answer is argmin_c ‖h - C_c‖ (eq. 4), or with ``answer: head`` that of the client's own classifier. Before there
    are prototypes, the first round has no pull, and the classifier answers. A class without prototype is never
    answered.

    Used with ``PrivatePart(part="all")``: the whole model is personal, and the server has none; with ``ClassMeans``:
    class means are sent up, prototypes down, nothing else.

    Deviations: eq. 6 divides the mean by samples by the number of clients once more, which would shrink prototypes
    towards zero; ``ClassMeans(by="samples")`` leaves that out, and ``by="clients"`` is the public code's plain mean.
    ``form: samples`` is that code's pull, the mean of (h - C_y)² over samples and dimensions. The public code's weight
    of 1 goes with it: eq. 8 pulls as strongly however near the prototype is. On the digits a weight of 1 shrinks
    prototypes, to zero with seed 0; the default of 0.1, that code's value for CIFAR-10, was chosen there. Prototypes
    are taken after training, in evaluation mode; the public code takes them from the last epoch, while training. A
    class that no client of a round sends keeps its prototype; public code forgets it. A test right after training
    (``evaluate=map``) uses the prototypes that the round began with.
    """

    weight: NotNegative = 0.1
    form: Literal["classes", "samples"] = "classes"
    answer: Literal["prototype", "head"] = "prototype"
    during: tuple[str, ...] = ("local", "eval")

    def loss(self, step: Step) -> Tensor | None:
        """The distances of class means, or of samples."""
        means = step.of("means")["means"]
        if self.form == "samples":
            return super().loss(step)
        if self.weight == 0 or not step.once("any", lambda: bool(means["known"].any())):
            return None
        return self.weight * class_distances(step.h, step.y, means).sum()

    def logits(self, z: Tensor, step: Step) -> Tensor:
        """In a test, minus the distances to the prototypes."""
        means = step.of("means")["means"]
        known = means["known"] > 0
        if step.phase != "eval" or self.answer == "head" or not known.any():
            return z
        near = -torch.cdist(step.h, means["value"], compute_mode="donot_use_mm_for_euclid_dist")
        return torch.where(known, near, near.amin(1, keepdim=True) - 1)


def class_distances(h: Tensor, y: Tensor, means: Tree) -> Tensor:
    """How far the mean feature of each class is from its prototype; 0 where there is none of one or the other."""
    member = F.one_hot(y, len(means["known"])).to(h)
    counts = member.sum(0)
    own = member.T @ h / counts.clamp(min=1)[:, None]
    there = (counts > 0) & (means["known"] > 0)
    far: Tensor = torch.linalg.vector_norm(own - means["value"], dim=1)
    return far * there
