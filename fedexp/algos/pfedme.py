"""A personal model near the shared one: the Moreau envelope of a client's loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedexp.algos.unedited import edited_before
from fedexp.core.component import Component, Phase
from fedexp.core.ranges import Count, NotNegative, Positive
from fedexp.core.state import Slot, Tree, received, scale
from fedexp.core.views import Facts, ServerRound, Step, View


@dataclass(frozen=True, kw_only=True)
class MoreauEnvelope(Component):
    """Trains a personal model theta near the uploaded one, which follows it.

    Dinh et al., Personalized Federated Learning with Moreau Envelopes (pFedMe), NeurIPS 2020, Alg. 1. For each batch,
    ``inner_steps`` times theta ← theta - inner_lr · (g(theta) + weight · (theta - u) + decay · theta); then
    u ← u - lr · weight · (u - theta), where weight · (u - theta) is the gradient of the envelope
    min f(theta) + weight/2 · ‖theta - u‖². The server moves by ``server_lr`` times the mean step of u.

    u starts from the received model and is uploaded; it has neither momentum nor weight decay. theta starts from u in
    each round, goes on from batch to batch, and is the client's personal model, kept for its tests. Nothing more than
    FedAvg's is sent.

    g is the gradient of the whole objective, with all components' logits and losses. What other components add to
    gradients (control variates) must come after this component, which refuses an edited gradient, and acts on u.

    Deviations: the default is the rule of MAP's public code, u ← u - ``step`` · (u - theta), without which its weights
    of 1e-5 to 1e-2 would not move u. ``step: null`` is Alg. 1. With the authors' values, weight 15 and lr 0.005, that
    is a step of 0.075. Alg. 1 does not say where theta starts; the authors' code goes on from batch to batch, and costs
    one gradient a step more than the inner steps here, because the one at u is not used; ``carry: false`` starts from u
    at every batch, and uses it. ``decay`` is the 1e-3 of the authors' optimizer, which the paper does not have. Running
    statistics are those of u. A schedule acts on lr or step, not on inner_lr.
    """

    weight: NotNegative = 0.01
    inner_lr: Positive = 0.03
    inner_steps: Count = 10
    step: Positive | None = 0.75
    decay: NotNegative = 0.0
    carry: bool = True
    server_lr: Positive = 1.0

    personal: ClassVar[bool] = True
    unbatched: ClassVar[str | None] = "takes gradients at other weights (step.gradient)"

    def problems(self, facts: Facts) -> Iterable[str]:
        """Something must move the uploaded model."""
        if self.weight == 0 and self.step is None:
            yield "step must be a number where weight is 0: the uploaded model would never move"

    def clashes(self, before: Mapping[str, Component], after: Mapping[str, Component]) -> Iterable[str]:
        """What was added to the gradient before would be lost."""
        return edited_before(self, before)

    def slots(self) -> Sequence[Slot]:
        """The personal model."""
        return (Slot("theta", "client", received),)

    def plan(self, phases: list[Phase]) -> list[Phase]:
        """The uploaded model takes plain steps."""
        plain = {"momentum": 0.0, "weight_decay": 0.0, **({} if self.step is None else {"lr": self.step})}
        return [replace(p, optim={**p.optim, **plain}) if p.name in self.during else p for p in phases]

    def grads(self, grads: Tree, step: Step) -> Tree:
        """The inner steps, then the gradient of the envelope."""
        u = {n: step.weights[n].detach().clone() for n in grads}
        theta: Tree = step.once("theta", lambda: dict(u)) if self.carry else dict(u)  # changed in place, step by step
        starts_at_u = step.index == 0 or not self.carry
        for number in range(self.inner_steps):
            g = grads if starts_at_u and number == 0 else step.gradient(theta)
            theta.update({n: self._inner(t, g[n], u[n]) for n, t in theta.items()})
        step.remember("theta", {**step.weights, **theta})
        factor = self.weight if self.step is None else 1.0
        return {n: factor * (u[n] - t) for n, t in theta.items()}

    def _inner(self, theta: Tensor, gradient: Tensor, u: Tensor) -> Tensor:
        """One step towards the minimum of the envelope."""
        return theta - self.inner_lr * (gradient + self.weight * (theta - u) + self.decay * theta)

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """The server's beta."""
        return delta if self.server_lr == 1.0 else scale(delta, self.server_lr)

    def view(self, weights: Tree, view: View) -> Tree:
        """The personal model."""
        return view.mine["theta"]
