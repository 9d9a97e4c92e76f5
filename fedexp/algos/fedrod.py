"""A balanced generic head for all, and a personal head beside it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedexp.core.component import Component
from fedexp.core.ranges import NotNegative
from fedexp.core.views import Step
from fedexp.data.federated import Info
from fedexp.models.split import SplitModel

ABSENT = -1e4  # added to the logit of a class without samples: exp of it is 0, and no difference is undefined


@dataclass(frozen=True, kw_only=True)
class TwoHeads(Component):
    """Trains features and a generic head on balanced classes, and a personal head on what that leaves.

    Chen and Chao, On Bridging Generic and Personalized Federated Learning (Fed-RoD), ICLR 2022, sect. 4, the linear
    version. Features and generic head, the network's classifier, minimise the balanced softmax
    CE(z_g + ``power`` · log n_kc, y). A class that the client lacks is left out of the softmax, so its row has no
    gradient. The personal head minimises CE(z_g + z_p, y), where z_p is its answer to the features; neither features
    nor z_g get a gradient from that.

    Global: features and generic head, sent and averaged; the server is tested with plain z_g. Personal: the other head,
    kept by its client, which is tested with z_g + z_p after local training. Nothing more than FedAvg's is sent.

    Deviations: counts are those of the whole training set. The personal head is shaped like the classifier, and its
    last layer begins with zeros, so that a new client answers as the server does; ``initial: copy`` begins with the
    initial classifier, as public code (PFLlib, FL-bench) does. FL-bench also sums both losses into the features and
    answers with z_p alone, which undoes the decoupling. The version with a hypernetwork is not here. ``local.clip``
    limits the gradients of both heads together. With a restricted softmax, put that before this component: the balance
    is added to its logits.
    """

    power: NotNegative = 1.0
    initial: Literal["zeros", "copy"] = "zeros"
    during: tuple[str, ...] = ("local", "eval")

    personal: ClassVar[bool] = True
    padded: ClassVar[bool] = True

    def modules(self, net: SplitModel, n_classes: int) -> Mapping[str, nn.Module]:
        """The personal head."""
        head = copy.deepcopy(net.classifier)
        if self.initial == "zeros":
            last = [m for m in head.modules() if isinstance(m, nn.Linear)][-1]
            for parameter in last.parameters():
                nn.init.zeros_(parameter)
        return {"head": head}

    def logits(self, z: Tensor, step: Step) -> Tensor:
        """Balanced in training; both heads in a client's test."""
        info = step.info
        if info is None:
            return z
        if step.phase == "eval":
            personal: Tensor = step.module("head")(step.h)
            return z + personal
        return z if self.power == 0 else z + step.once("balance", lambda: self._balance(info))

    def _balance(self, info: Info) -> Tensor:
        """What is added to the logits of each class."""
        return torch.where(info.counts > 0, self.power * info.counts.clamp(min=1).log(), ABSENT)

    def loss(self, step: Step) -> Tensor:
        """The personal head's cross-entropy."""
        h = step.h.detach()
        with torch.no_grad():
            generic = step.classify(h)
        return step.cross_entropy(generic + step.module("head")(h))

    def neutral(self) -> TwoHeads:
        """Without balance the generic head is FedAvg's, whatever the personal one does."""
        return replace(self, power=0.0)
