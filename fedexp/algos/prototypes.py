"""Class prototypes: mean features that the server shares, and the pull towards them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.component import Component
from fedexp.core.ranges import NotNegative, Share
from fedexp.core.state import Init, Out, Slot, Tree, Upload
from fedexp.core.views import Facts, LocalRound, ServerRound, Step


@dataclass(frozen=True, kw_only=True)
class ClassMeans(Component):
    """Keeps the mean feature of each class over the federation.

    Fan et al., FedMR, TMLR 2023, sect. 3.3.2 (``by: samples``): g_c = Σ_k n_kc g_kc / Σ_k n_kc over the clients that
    submit. FedReMa's alignment (``by: clients``) takes the plain mean of the clients' class means. Features are those
    at the end of the phase in ``during``, in evaluation mode, of the training samples as they are. A class that nobody
    submits keeps its prototype; ``known`` tells the classes that have one.

    With ``submit`` below 1 only that share of the clients, a fixed set drawn from the seed, ever sends prototypes
    (FedMR, table 5); everybody receives them.

    Deviations: FedMR leaves open what happens to a class without submission, and when features are taken; its public
    code has no prototypes. Sums are sent instead of means, which is the same with the counts beside them; rows of
    classes that a client does not own are sent as zeros.
    """

    by: Literal["samples", "clients"] = "samples"
    submit: Share = 1.0

    def problems(self, facts: Facts) -> Iterable[str]:
        """Features are taken once."""
        if len(self.during) != 1 or "*" in self.during:
            yield f"during must name the one phase after which features are taken, not {list(self.during)}"

    def slots(self) -> Sequence[Slot]:
        """The prototypes, sent down, and who submits."""
        return Slot("means", "server", _empty("known"), down=True), Slot("submits", "constant", self._draw)

    def uploads(self) -> Sequence[Upload]:
        """Feature sums and what they are divided by."""
        return (Upload("sums", _empty("weight"), "sum"),)

    def finish(self, local: LocalRound) -> Out:
        """One pass over the training samples."""
        if not local.mine["submits"]["value"][local.client]:
            return Out()
        sums = class_sums(local.embed(local.ends[self.during[0]]), local.facts.n_classes)
        if self.by == "clients":
            owned = sums["weight"] > 0
            sums = {"value": sums["value"] / sums["weight"].clamp(min=1)[:, None], "weight": owned.to(sums["value"])}
        return Out(uploads={"sums": sums})

    def serve(self, server: ServerRound) -> dict[str, Tree | dict[int, Tree]]:
        """New prototypes where there are new features."""
        sums, old = server.reduced.get("sums"), server.mine["means"]
        if sums is None:
            return {}
        seen = sums["weight"] > 0
        means = sums["value"] / sums["weight"].clamp(min=1)[:, None]
        value = torch.where(seen[:, None], means, old["value"])
        return {"means": {"value": value, "known": torch.where(seen, 1.0, old["known"])}}

    def neutral(self) -> ClassMeans:
        """Prototypes alone change nothing."""
        return self

    def _draw(self, init: Init) -> Tree:
        order = torch.randperm(init.n_clients, generator=init.generator)
        return {"value": order < round(self.submit * init.n_clients)}


@dataclass(frozen=True, kw_only=True)
class Align(Component):
    """Pulls features towards the prototypes of their classes.

    Liang et al., FedReMa, ECAI 2024, table 4 (+F), after FedPAC: weight · mean (h - g_y)², over samples and feature
    dimensions. A sample whose class has no prototype yet counts as zero, so the first round has no alignment.

    Deviations: FedReMa (eq. 11) says that the distance is usually the L2 norm; the mean square is its public code's.
    """

    weight: NotNegative = 1.0

    needs: ClassVar[tuple[str, ...]] = ("means",)

    def loss(self, step: Step) -> Tensor | None:
        """The mean squared distance."""
        means = step.of("means")["means"]
        if self.weight == 0 or not step.once("any", lambda: bool(means["known"].any())):
            return None
        target = torch.where(means["known"][step.y, None] > 0, means["value"][step.y], step.h.detach())
        return self.weight * F.mse_loss(step.h, target)

    def neutral(self) -> Align:
        """Without weight there is no pull."""
        return replace(self, weight=0.0)


def class_sums(embedded: Iterable[tuple[Tensor, Tensor]], n_classes: int) -> Tree:
    """Sum of the features of each class, and how many there were."""
    values, weights = [], []
    for h, y in embedded:
        member = F.one_hot(y, n_classes).to(h)
        values.append(member.T @ h)
        weights.append(member.sum(0))
    return {"value": torch.stack(values).sum(0), "weight": torch.stack(weights).sum(0)}


def _empty(weight: str) -> Callable[[Init], Tree]:
    """A table of features by class, with a number for each class beside it."""
    return lambda init: {"value": torch.zeros(init.n_classes, init.feature_dim), weight: torch.zeros(init.n_classes)}
