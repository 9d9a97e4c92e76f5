"""Mean logits of each label, that clients learn from one another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.algos.prototypes import class_sums
from fedexp.core.component import Component
from fedexp.core.ranges import NotNegative
from fedexp.core.state import Init, Out, Slot, Tree, Upload, add, initial, sub
from fedexp.core.views import Facts, LocalRound, ServerRound, Step, View


@dataclass(frozen=True, kw_only=True)
class LabelLogits(Component):
    """Teaches each client what the others answer, on average, to samples of the same label.

    Jeong et al., Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
    Non-IID Private Data (FD), 2018, Alg. 1. F_kl is the mean logit vector of client k on its samples of label l, and
    T_kl the mean of F_jl over the other clients j that have l. Clients minimise
    CE + ``weight`` · CE(softmax(T_ky), softmax(z)), without the second term where nobody else has the label, and so in
    the first round.

    The server keeps the sum of all clients' latest tables, by label, and how many there are; it is sent down. A client
    keeps the table that it sent last, takes it out of the sum, and sends how its table has changed: C² + C numbers
    each way.

    With ``share_model`` the model is sent and averaged too, and the locally trained model is the personal one
    (FedRS's FD, which has a global accuracy). Without it each client keeps a model of its own for ever, nothing but
    tables is sent, and the server has no model to be tested (the original; FedReMa's FedDistill).

    ``average: probabilities``: F_kl is the mean of softmax(z), and T_ky itself is what the student learns.

    Deviations: F is taken at the end of the phase, in evaluation mode, not accumulated while training. The paper calls
    the output of the softmax a logit vector, so that it averages probabilities; the default averages logits, as public
    code does. With partial participation T has the latest tables of all clients that were ever there. ``teacher: all``
    keeps the client's own table in the mean, as PFLlib does, which also takes raw mean logits for probabilities; that
    is not offered here. The federated augmentation of the paper is not here. A leftover in the authors' code of FedRS
    distils from the received model instead of label-wise logits; which one its tables have is not known.
    """

    weight: NotNegative = 1.0
    teacher: Literal["others", "all"] = "others"
    average: Literal["logits", "probabilities"] = "logits"
    share_model: bool = True

    padded: ClassVar[bool] = True
    needs_classifier: ClassVar[bool] = True

    def problems(self, facts: Facts) -> Iterable[str]:
        """Logits are taken once."""
        if len(self.during) != 1 or "*" in self.during:
            yield f"during must name the one phase after which logits are taken, not {list(self.during)}"

    @property
    def personal(self) -> bool:
        """A model of its own, where the model is not sent."""
        return not self.share_model

    @property
    def global_view(self) -> bool:
        """The server has a model only if clients send theirs."""
        return self.share_model

    def private_part(self) -> str:
        """All of the network, or nothing."""
        return "none" if self.share_model else "all"

    def slots(self) -> Sequence[Slot]:
        """The sum of all tables, sent down; the client's own share of it and, where it is not sent, its model."""
        model = () if self.share_model else (Slot("model", "client", initial),)
        return Slot("total", "server", _no_logits, down=True), Slot("own", "client", _no_logits), *model

    def uploads(self) -> Sequence[Upload]:
        """How the client's table has changed."""
        return (Upload("change", _no_logits, "sum"),)

    def start(self, weights: Tree, view: View) -> Tree:
        """The received model, or the client's own."""
        return weights if self.share_model else view.mine["model"]

    def loss(self, step: Step) -> Tensor | None:
        """Cross-entropy with the softmax of what the others answer."""
        if self.weight == 0:
            return None
        targets, known = step.once("teacher", lambda: self._teacher(step))
        if not step.once("any", lambda: bool(known.any())):
            return None
        terms = F.cross_entropy(step.classify(step.h), targets[step.y], reduction="none")
        return self.weight * step.mean(terms * known[step.y])

    def _teacher(self, step: Step) -> tuple[Tensor, Tensor]:
        """The mean answer to each label as probabilities, and which labels have one."""
        table: Tree = step.mine["total"]
        if self.teacher == "others":
            table = sub(table, step.mine["own"])
        mean = table["value"] / table["weight"].clamp(min=1)[:, None]
        known = (table["weight"] > 0.5).to(mean)
        return (F.softmax(mean, 1) if self.average == "logits" else mean), known

    def finish(self, local: LocalRound) -> Out:
        """One pass over the training samples."""
        end = local.ends[self.during[0]]
        logits = ((local.classify(end, h), y) for h, y in local.embed(end))
        answers = logits if self.average == "logits" else ((F.softmax(z, 1), y) for z, y in logits)
        sums = class_sums(answers, local.facts.n_classes)
        value, weight = sums["value"], sums["weight"]
        table = {"value": value / weight.clamp(min=1)[:, None], "weight": (weight > 0).to(value)}
        kept = {"own": table} if self.share_model else {"own": table, "model": end}
        return Out(slots=kept, uploads={"change": sub(table, local.mine["own"])})

    def serve(self, server: ServerRound) -> dict[str, Tree | dict[int, Tree]]:
        """Adds the changes."""
        change = server.reduced.get("change")
        return {} if change is None else {"total": add(server.mine["total"], change)}

    def neutral(self) -> LabelLogits | None:
        """Without weight the tables teach nothing; what is not averaged cannot be FedAvg."""
        return replace(self, weight=0.0) if self.share_model else None


def _no_logits(init: Init) -> Tree:
    """A logit vector and a number for each label."""
    return {"value": torch.zeros(init.n_classes, init.n_classes), "weight": torch.zeros(init.n_classes)}
