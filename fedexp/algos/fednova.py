"""Normalised averaging of steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedexp.core.component import Component
from fedexp.core.state import Out, Tree, Upload, axpy, number, scale, sub
from fedexp.core.views import Facts, LocalRound, ServerRound

SENT = 1024.0  # what is sent is d_k times this, since d_k itself would be rounded away beside the weights


@dataclass(frozen=True, kw_only=True)
class NormalisedAveraging(Component):
    """Averages what the clients' local steps come to on average, so that clients with many of them do not count more.

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization" (FedNova),
    NeurIPS 2020: a client sends d_k = (w_k - w_t) / a_k and the number a_k, and the server moves by
    (Σ p_k a_k) · Σ p_k d_k, where p_k are the run's weights. a_k is the sum of the factors that the gradients have in
    w_k - w_t: the number τ of local steps, or (τ - ρ (1 - ρ^τ) / (1 - ρ)) / (1 - ρ) with momentum ρ. If all clients
    take the same number of steps, this is FedAvg. There is one global model, and no state. Running statistics are the
    clients' mean. Server momentum (gmf) is FedAvgM's component behind this one.

    In the paper p_k are the shares of the samples. With uniform weights, as in MAP's tables, a client with few samples
    and so few steps has its short way lengthened to the others', and counts for more than its data:
    ``weighting=samples`` if sizes differ much.

    Deviations: ``shrink: true`` is the authors' code, which MAP's has inherited. With momentum and its proximal term it
    divides by a_k + τ_k and multiplies by Σ p_k τ_k, so that the server's step is 0.14 of FedAvg's after 20 local steps
    and 0.10 after 130. The proximal term itself, whose weight is 1e-3 there, is left out; it hardly changes these
    numbers. Running statistics go through the rule there. What is uploaded is w_t + 1024 d_k and not a model, so
    methods that look at the models of single clients at the server are refused beside it.
    """

    needs_sgd: ClassVar[bool] = True

    shrink: bool = False

    def problems(self, facts: Facts) -> Iterable[str]:
        """Steps are counted in one phase."""
        if len(self.during) != 1 or "*" in self.during:
            yield f"during must name the one phase that is uploaded, not {list(self.during)}"

    def clashes(self, before: Mapping[str, Component], after: Mapping[str, Component]) -> Iterable[str]:
        """No models arrive at the server."""
        if looking := [k for k, c in {**before, **after}.items() if "model" in c.keeps]:
            yield (
                f"sends steps instead of models, and component {looking[0]!r} looks at the models of single clients at "
                "the server. They cannot be combined."
            )

    def uploads(self) -> Sequence[Upload]:
        """One number: a_k, or τ_k in the authors' code."""
        return (Upload("length", number(0.0), "weighted"),)

    def uplink(self, weights: Tree, local: LocalRound) -> Tree:
        """The client's step, divided by a_k."""
        return axpy(SENT / self._divisor(local), sub(weights, local.received), local.received)

    def finish(self, local: LocalRound) -> Out:
        """Sends what the server's step is to be multiplied by."""
        length = self._steps(local) if self.shrink else self._divisor(local)
        return Out(uploads={"length": {"value": torch.tensor(length)}})

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """Multiplies by Σ p_k a_k."""
        length = server.reduced.get("length")
        return delta if length is None else scale(delta, length["value"].item() / SENT)

    def _steps(self, local: LocalRound) -> float:
        return float(local.steps[self.during[0]])

    def _divisor(self, local: LocalRound) -> float:
        (phase,) = self.during
        a = local.normaliser(phase)
        return a + self._steps(local) if self.shrink and local.momentum[phase] else a
