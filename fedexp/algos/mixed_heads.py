"""Personal classifiers that the server mixes: each client sends its own, and is sent the one made for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedexp.core.component import Component
from fedexp.core.state import Slot, Tree, Upload, part_of_model, pick
from fedexp.core.views import Facts, LocalRound, View


@dataclass(frozen=True, kw_only=True)
class MixedHeads(Component):
    """What FedReMa and FedPAC have in common: features are averaged, classifiers go by mailbox.

    A client that was not in the cohort keeps the classifier last made for it; a new one gets the initial classifier.
    ``serve`` of a method makes the new ones, and its ``finish`` sends ``_trained_head``.
    """

    personal: ClassVar[bool] = True
    global_view: ClassVar[bool] = False

    def problems(self, facts: Facts) -> Iterable[str]:
        """The classifier is sent once."""
        if len(self.during) != 1 or "*" in self.during:
            yield f"during must name the one phase after which classifiers are sent, not {list(self.during)}"

    def slots(self) -> Sequence[Slot]:
        """Each client's classifier."""
        return (Slot("head", "mailbox", part_of_model("classifier"), down=True),)

    def uploads(self) -> Sequence[Upload]:
        """The trained classifier."""
        return (Upload("head", part_of_model("classifier"), "keep"),)

    def private_part(self) -> str:
        """The classifier goes by mailbox."""
        return "classifier"

    def start(self, weights: Tree, view: View) -> Tree:
        """Shared features, own classifier."""
        return {**weights, **view.mine["head"]}

    def _trained_head(self, local: LocalRound) -> Tree:
        return pick(local.ends[self.during[0]], local.layout.part("classifier"))


def mixed(heads: Mapping[int, Tree], weights: Tensor) -> dict[int, Tree]:
    """For each client, the mean of all classifiers with its row of weights; its own where the row is zero.

    Integer tensors (counters) are its own.
    """
    total = weights.sum(1, keepdim=True)
    shares = torch.where(total > 0, weights / total.clamp(min=1e-12), torch.eye(len(weights)))
    new: dict[int, Tree] = {client: dict(head) for client, head in heads.items()}
    for name, value in next(iter(heads.values())).items():
        if value.is_floating_point():
            means = torch.tensordot(shares.to(value), torch.stack([head[name] for head in heads.values()]), 1)
            for client, mean in zip(heads, means, strict=True):
                new[client][name] = mean.clone()
    return new
