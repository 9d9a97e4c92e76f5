"""Meta-learning: a model that is good after one gradient step of a client's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from fedexp.algos.unedited import edited_before
from fedexp.core.component import Component, Phase
from fedexp.core.ranges import Epochs, NotNegative, Positive
from fedexp.core.state import Tree, axpy, pick, scale, sub
from fedexp.core.views import Step

ONE_STEP = 1e-6  # epochs: a phase has at least one step


@dataclass(frozen=True, kw_only=True)
class MetaGradient(Component):
    """Steps along the gradient after a step: each local step minimises the loss of w - alpha · g(w).

    Fallah et al., Personalized Federated Learning (Per-FedAvg), NeurIPS 2020, Alg. 1. With batches b0, b1, b2 of a
    step, w' = w - ``alpha`` · g(w; b0) and w ← w - ``lr`` · d, where

    ``first_order``: d = g(w'; b1), two batches a step (first order).
    ``hessian_free``: d = g(w'; b1) - alpha · [g(w + δ v; b2) - g(w - δ v; b2)] / 2δ with v = g(w'; b1) and δ =
    ``delta``, three batches a step (Per-FedAvg HF): the difference stands for the Hessian times v.

    An epoch is one pass over the data, so it has two or three times fewer steps than FedAvg's. Gradients are those of
    the whole objective, with all components' logits and losses; a restricted softmax acts in each of them. What other
    components add to gradients (control variates) must come after this component, which replaces the gradient and
    refuses one that was edited before.

    Global: the model, sent and averaged. Personal: nothing is kept; before a client is tested it takes one step, or
    ``test_epochs``, of plain SGD at ``alpha`` on its training samples. The score without that step is recorded as
    ``unadapted``. Nothing more than FedAvg's is sent. A schedule scales the run's learning rate, and never ``alpha``.

    Deviations: the meta step has the run's momentum and weight decay, as all methods of a table do; the paper has
    neither. Along a direction with a curvature λ above 1 / alpha the first-order step leads uphill, whatever the
    learning rate: a large alpha diverges. The Hessian-free step sees a curvature of (1 - alpha λ)² λ, so beyond 2 /
    alpha it overshoots more than plain SGD: alpha is smaller there by default. MAP's public code takes twice the data,
    shares one momentum between both steps and tests without the step; PFLlib trains twice a round; FL-bench tunes for
    whole epochs before the test (``test_epochs: 1``).
    """

    alpha: NotNegative = 0.01
    lr: Positive | None = None
    form: Literal["first_order", "hessian_free"] = "first_order"
    delta: Positive = 1e-3
    test_epochs: Epochs | None = None

    unbatched: ClassVar[str | None] = "takes gradients at other weights (step.gradient)"

    def clashes(self, before: Mapping[str, Component], after: Mapping[str, Component]) -> Iterable[str]:
        """What was added to the gradient before would be lost."""
        return edited_before(self, before)

    def plan(self, phases: list[Phase]) -> list[Phase]:
        """Several batches a step, and the step before a test."""
        batches = 2 if self.form == "first_order" else 3
        own = {} if self.lr is None else {"lr": self.lr}
        meta = [replace(p, batches=batches, optim={**p.optim, **own}) if p.name in self.during else p for p in phases]
        if self.alpha == 0:
            return meta
        plain = {"lr": self.alpha, "momentum": 0.0, "weight_decay": 0.0}
        epochs = self.test_epochs or ONE_STEP
        return [*meta, Phase("adapt", start="previous", epochs=epochs, optim=plain, scheduled=False, test=True)]

    def grads(self, grads: Tree, step: Step) -> Tree:
        """The gradient after a step, less the Hessian's share of it."""
        w = {n: step.weights[n].detach().clone() for n in grads}
        after = step.gradient(axpy(-self.alpha, grads, w), batch=1)
        if self.form == "first_order":
            return after
        up, down = (step.gradient(axpy(d, after, pick(w, after)), batch=2) for d in (self.delta, -self.delta))
        return axpy(-self.alpha, scale(sub(up, down), 1 / (2 * self.delta)), after)
