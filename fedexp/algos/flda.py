"""A mixture of the shared network and a private one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.core.component import Component
from fedexp.core.views import Step
from fedexp.models.split import SplitModel


@dataclass(frozen=True, kw_only=True)
class PrivateExpert(Component):
    """Answers with a mixture of two experts, of which one is private.

    Peterson, Kanani and Marathe, Private Federated Learning with Domain Adaptation (FLDA), 2019:
    p = a · softmax(z_w) + (1 - a) · softmax(z_v) with the shared network w, the private network v and the gate
    a = sigmoid(u · h + b). All three are trained together on -log p_y.

    Global: w, sent and averaged; the server is tested with w alone, which is trained through the mixture only and so
    lags behind FedAvg's. Personal: v and gate, kept by their client, which is tested with the mixture after local
    training. Nothing more than FedAvg's is sent.

    Deviations: the paper perturbs the gradients of w for privacy; combine with ``noise`` (algo=fedrs_noise) for that.
    The paper's gate reads the sample itself, a = sigmoid(u · x + b); here it reads the features of w, through which it
    sends no gradient, so that it fits samples of any kind. It begins with zeros, a = 1/2. Neither MAP nor FedRS, nor
    any public code, says what v and gate are there. Here v has the network's architecture and begins as the initial
    model, so that in the very first round w and v stay alike. The mixture is of probabilities, so its logarithms are
    what other components see as logits: put a restricted softmax before this component, where it acts on z_w.
    """

    during: tuple[str, ...] = ("local", "eval")

    personal: ClassVar[bool] = True
    padded: ClassVar[bool] = True

    def modules(self, net: SplitModel, n_classes: int) -> Mapping[str, nn.Module]:
        """The private network, and the gate."""
        gate = nn.Linear(net.feature_dim, 1)
        for parameter in gate.parameters():
            nn.init.zeros_(parameter)
        return {"expert": copy.deepcopy(net), "gate": gate}

    def logits(self, z: Tensor, step: Step) -> Tensor:
        """Logarithms of the mixed probabilities, for clients."""
        if step.info is None:
            return z
        gate: Tensor = step.module("gate")(step.h.detach())
        shared = F.logsigmoid(gate) + F.log_softmax(z, 1)
        private = F.logsigmoid(-gate) + F.log_softmax(step.module("expert")(step.x), 1)
        return torch.logaddexp(shared, private)
