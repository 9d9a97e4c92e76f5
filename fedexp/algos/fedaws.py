"""Classifier rows that the server spreads out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.component import Component
from fedexp.core.ranges import CountOr0, Positive, ShareBelow1
from fedexp.core.state import Tree
from fedexp.core.views import Facts, ServerRound


@dataclass(frozen=True, kw_only=True)
class SpreadRows(Component):
    """After averaging, the server moves the rows of the classifier apart.

    Yu et al., FedAwS ("Federated Learning with Only Positive Labels"), ICML 2020: ``steps`` of gradient descent on the
    sum over pairs of classes of max(0, margin - d(w_c, w_c'))², divided by C², with d = (1 - cosine)/2. FedRS (tables
    1, 5) and MAP (tables 1, 2) apply it to clients with several classes. The bias, if any, stays. Nothing more is sent
    or kept than in FedAvg, and no client has a model of its own. ``closeness`` in the record is the value after the
    last step.

    Deviations: clients minimise the cross-entropy, as in FedRS and MAP, where the paper has a loss for clients with a
    single class. The form of d, the division by C², several steps and their momentum, which begins anew in each round,
    are those of MAP's public code. The paper takes one gradient step of the sum in a round: ``steps: 1``, ``momentum:
    0`` and C² times its step size as ``lr``; its text was not compared. The squared Euclidean distance of unit rows is
    4 d, so a margin for that is divided by 4 here. C rows can all have the distance C/(2(C - 1)) at most (0.56 for ten
    classes): a larger margin is never reached.
    """

    margin: Positive = 0.8
    steps: CountOr0 = 30
    lr: Positive = 0.1
    momentum: ShareBelow1 = 0.9

    def problems(self, facts: Facts) -> Iterable[str]:
        """Rows must be classes, and be averaged."""
        shapes = {n: tuple(facts.initial[n].shape) for n in sorted(facts.layout.trainable("classifier"))}
        if [s[0] for s in shapes.values() if len(s) == 2] != [facts.n_classes]:
            found = list(shapes.values())
            yield f"steps need a classifier of one linear layer with {facts.n_classes} rows, not {found}"
        elif not shapes.keys() & set(facts.layout.shared):
            yield "steps move the averaged classifier, which another component keeps from travelling"

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """The step to the spread-out rows."""
        if not self.steps:
            return delta
        (name,) = (n for n in delta.keys() & server.facts.layout.parts["classifier"] if delta[n].dim() == 2)
        rows = (server.model[name] + delta[name]).requires_grad_()
        descent = torch.optim.SGD([rows], lr=self.lr, momentum=self.momentum)
        for _ in range(self.steps):
            descent.zero_grad()
            closeness(rows, self.margin).backward()  # type: ignore[no-untyped-call]
            descent.step()
        rows = rows.detach()
        server.record("closeness", closeness(rows, self.margin))
        return {**delta, name: rows - server.model[name]}

    def neutral(self) -> SpreadRows:
        """Without steps the rows stay."""
        return replace(self, steps=0)


def closeness(rows: Tensor, margin: float) -> Tensor:
    """How far pairs of rows are below the margin: the squared lack, summed over ordered pairs and divided by C²."""
    units = F.normalize(rows)
    lack = F.relu(margin - (1 - units @ units.T) / 2)
    pairs = 1 - torch.eye(len(rows), device=rows.device)
    return (lack.square() * pairs).mean()
