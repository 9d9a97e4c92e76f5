"""Server optimizers: the mean step of the clients is taken for a negative gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedexp.core.component import Component
from fedexp.core.ranges import NotNegative, Positive, ShareBelow1
from fedexp.core.state import Init, Slot, Tree, axpy, lerp, scale, zeros_shared
from fedexp.core.views import ServerRound


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(Component):
    """Gives the server's step a momentum.

    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019
    (FedAvgM): v ← beta · v + Δ with Δ the mean of w_k - w_t, then w ← w + lr · v. It begins at v = 0, and stays at the
    server: what is sent is FedAvg's, and there is one global model. Running statistics are the clients' mean.

    Deviations: MAP's public code, where FedOpt is torch's SGD with momentum at the server, has an ``lr`` of 0.01 to
    0.3, which makes up for the gain 1/(1 - beta) of the momentum; 1 is the rule without a factor.
    """

    lr: Positive = 1.0
    beta: ShareBelow1 = 0.9

    def slots(self) -> Sequence[Slot]:
        """The momentum."""
        return (Slot("v", "server", zeros_shared),)

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """The step is lr · v."""
        v = axpy(self.beta, server.mine["v"], delta)
        server.remember("v", v)
        return scale(v, self.lr)

    def neutral(self) -> ServerMomentum:
        """Without momentum, and with a step as long as the clients'."""
        return replace(self, lr=1.0, beta=0.0)


@dataclass(frozen=True, kw_only=True)
class AdaptiveServer(Component, ABC):
    """Divides the server's step, weight by weight, by the size of its earlier steps.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Alg. 2: m ← beta1 · m + (1 - beta1) · Δ with Δ the mean
    of w_k - w_t; v from Δ² by the method's own rule; w ← w + lr · m / (√v + tau). It begins at m = 0 and v = ``v0``,
    which is tau² if null, the least that the paper allows. Both stay at the server: what is sent is FedAvg's, and there
    is one global model. Running statistics are the clients' mean.

    Deviations: none from Alg. 2, which has no bias correction. FL-bench begins at v = 0, has an lr of 0.1, a beta2 of
    0.999 and a beta1 of 0.9 for Adagrad too, and sends running statistics through the rule.
    """

    lr: Positive = 0.01
    beta1: ShareBelow1 = 0.9
    tau: Positive = 1e-3
    v0: NotNegative | None = None

    def slots(self) -> Sequence[Slot]:
        """Both moments."""
        return Slot("m", "server", zeros_shared), Slot("v", "server", self._first_v)

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """The step is lr · m / (√v + tau)."""
        m = lerp(delta, server.mine["m"], self.beta1)
        v = {n: self._second_moment(old, delta[n].square()) for n, old in server.mine["v"].items()}
        server.remember("m", m)
        server.remember("v", v)
        return self._step(m, v, server.round + 1)

    def _first_v(self, init: Init) -> Tree:
        first = self.tau**2 if self.v0 is None else self.v0
        return {n: torch.full_like(w, first) for n, w in init.shared.items()}

    @abstractmethod
    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The new v of a tensor from the old one and Δ²."""

    def _step(self, m: Tree, v: Tree, t: int) -> Tree:
        return {n: self.lr * first / (v[n].sqrt() + self.tau) for n, first in m.items()}


@dataclass(frozen=True, kw_only=True)
class ServerAdagrad(AdaptiveServer):
    """FedAdagrad, Reddi et al. 2021, Alg. 2: v ← v + Δ², without momentum (beta1 = 0)."""

    beta1: ShareBelow1 = 0.0

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True, kw_only=True)
class ServerAdam(AdaptiveServer):
    """FedAdam, Reddi et al. 2021, Alg. 2: v ← beta2 · v + (1 - beta2) · Δ².

    Deviations: MAP's public code takes torch's Adam at the server. That is ``bias_correction: true``, which divides m
    by 1 - beta1^t and v by 1 - beta2^t, with v0 = 0, beta2 = 0.999, tau = 1e-8 and an lr of 5e-5 to 3e-4.
    """

    beta2: ShareBelow1 = 0.99
    bias_correction: bool = False

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square

    def _step(self, m: Tree, v: Tree, t: int) -> Tree:
        if self.bias_correction:
            m, v = scale(m, 1 / (1 - self.beta1**t)), scale(v, 1 / (1 - self.beta2**t))
        return super()._step(m, v, t)


@dataclass(frozen=True, kw_only=True)
class ServerYogi(AdaptiveServer):
    """FedYogi, Reddi et al. 2021, Alg. 2: v ← v - (1 - beta2) · Δ² · sign(v - Δ²), so that v falls slowly."""

    beta2: ShareBelow1 = 0.99

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
