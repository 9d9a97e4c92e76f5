"""Dynamic regularization: each client's drift is remembered, and held against it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedexp.core.component import Component
from fedexp.core.ranges import Positive
from fedexp.core.state import Out, Slot, Tree, add, axpy, sub, zeros_shared
from fedexp.core.views import Facts, LocalRound, ServerRound, Step, View


@dataclass(frozen=True, kw_only=True)
class DynamicRegularizer(Component):
    """Pulls a client's weights by its accumulated drift, so that clients and server agree once nothing moves any more.

    Acar et al., "Federated Learning Based on Dynamic Regularization" (FedDyn), ICLR 2021, Alg. 1: a client minimises
    its loss - <g_k, w> + alpha/2 · ‖w - w_t‖², then g_k ← g_k - alpha (w_k - w_t). The server has
    h ← h - alpha/K · Σ (w_k - w_t) over the cohort, and sends mean(w_k) - h / alpha. Written with the drift
    r_k = -g_k / alpha, as in the authors' code: the pull is alpha (w - w_t + r_k), then r_k ← r_k + w_k - w_t, and the
    server sends mean(w_k) + r, where r = -h / alpha is the mean of all clients' r_k at all times. Means are uniform,
    whatever the run's weighting. A client keeps r_k, the server r; what is sent is FedAvg's. Running statistics are the
    clients' mean and have no drift.

    The same drift is that of FedDC (Gao et al., CVPR 2022), which has SCAFFOLD's control beside it: ``algo=feddc``.

    Deviations: the server's model of Alg. 1 is the one that is sent, with the shift r: ``release: sent``. The authors'
    code, which MAP names as its source, tests mean(w_k), the same model without the shift. That is the default, and is
    what is saved. ``by_samples: true`` is the authors' alpha / (n_k / mean n). They have no momentum; here the run's
    stays (``optim.momentum=0``), and alpha from 0.1 on may diverge with 0.9. ``local.clip`` limits the pull too; theirs
    does not limit alpha · w, which is in their weight decay. MAP's public code has another rule, a squared norm divided
    by the number of tensors and w ← (1 - Q) w + Q mean(w_k) without h, which is left out. Beside another component that
    changes the server's step (a server optimizer, a ``server_lr``) r is not the mean of the r_k any more.
    """

    alpha: Positive = 0.01
    by_samples: bool = False
    release: Literal["mean", "sent"] = "mean"

    padded: ClassVar[bool] = True

    def problems(self, facts: Facts) -> Iterable[str]:
        """The drift is that of one phase."""
        if len(self.during) != 1 or "*" in self.during:
            yield f"during must name the one phase that is uploaded, not {list(self.during)}"

    def slots(self) -> Sequence[Slot]:
        """The server's r and each client's r_k."""
        return Slot("r", "server", zeros_shared), Slot("rk", "client", zeros_shared)

    def grads(self, grads: Tree, step: Step) -> Tree:
        """Adds alpha (w - w_t + r_k)."""
        alpha = step.once("alpha", lambda: self._alpha(step))
        shift = step.once("shift", lambda: sub(step.mine["rk"], step.received))
        live = step.weights
        return {
            n: torch.add(g, live[n].detach() + shift[n], alpha=alpha) if n in shift else g for n, g in grads.items()
        }

    def finish(self, local: LocalRound) -> Out:
        """The drift grows by the round's."""
        return Out(slots={"rk": add(local.mine["rk"], local.moved(self.during[0]))})

    def weigh(self, counts: Tensor) -> Tensor:
        """Uniform."""
        return torch.ones(len(counts))

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """Moves r by the part of the federation that took part, and shifts the mean by it."""
        r = axpy(len(server.cohort) / server.n_clients, delta, server.mine["r"])
        server.remember("r", r)
        return add(delta, r)

    def released(self, weights: Tree, view: View) -> Tree:
        """The model without the shift."""
        if self.release == "sent":
            return weights
        return {**weights, **{n: weights[n] - r for n, r in view.mine["r"].items()}}

    def _alpha(self, step: Step) -> float:
        if not self.by_samples or step.info is None:
            return self.alpha
        return self.alpha * step.facts.counts.sum().item() / step.facts.n_clients / step.info.n
