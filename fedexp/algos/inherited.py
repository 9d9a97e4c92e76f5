"""The inherited private model (HPM) of FedPHP and MAP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from fedexp.algos.transfer import distillation, mmd, one_sided_distillation
from fedexp.core.component import Component, Paper, Phase
from fedexp.core.ranges import Positive, Share
from fedexp.core.state import Out, Slot, Tree, lerp, number, received
from fedexp.core.views import Facts, LocalRound, Step, View


@dataclass(frozen=True, kw_only=True)
class InheritedPrivateModel(Component):
    """Keeps a private model that inherits from every local training and teaches the next one.

    Li et al., FedPHP, ECML-PKDD 2021; MAP, sect. 4.2.2, eq. 10 to 13, and Alg. 1. While training:
    (1 - weight) · CE + weight · L, where L transfers from the frozen private model q: ``kd`` τ² KL of both networks'
    logits, softened by ``temperature`` and without what acts in this phase only, such as a restricted softmax; ``mmd``
    the multi-kernel discrepancy of features. Afterwards q ← (1 - μ) w + μ q with
    μ = momentum · z / max(int(Q T), 1), at most ``clip``, z being the number of the client's earlier selections. q is
    the personal model and never leaves the client.

    With ``during: [local]`` the whole local training is uploaded (FedPHP). With ``during: [personal]`` it is split: the
    first half of the steps makes the upload; the second half goes on from there with the same optimizer and is private
    (MAP).

    Deviations: MAP limits μ_k to [0, 1] (``clip: 1``), which freezes the private model of about a fifth of the clients
    for good; the default is the 0.9 of the public code. Q T is rounded down, and is at least one, as there too; MAP
    prints Q T. The counter excludes the current selection, as there too. On a client's first selection there is no
    private model, hence no transfer and plain cross-entropy (the paper's text; the public code distils from the initial
    network). The public code's one-sided distillation is ``kd_one_sided``. With an odd number of steps the second part
    has one more.
    """

    weight: Share = 0.01
    transfer: Literal["kd", "mmd", "kd_one_sided"] = "kd"
    temperature: Positive = 4.0
    momentum: Share = 0.9
    clip: Share = 0.9
    fresh_optimizer: bool = False
    during: tuple[str, ...] = ("personal",)

    paper: ClassVar[Paper | None] = Paper("MAP", weighting="uniform", evaluate="map")
    personal: ClassVar[bool] = True
    total_rounds: ClassVar[str | None] = "the momentum of private models grows over the whole run (Q T)"

    @property
    def padded(self) -> bool:
        """Distillation is a mean over samples, the discrepancy one over pairs of them."""
        return self.transfer != "mmd"

    def problems(self, facts: Facts) -> Iterable[str]:
        """It acts in one of two phases."""
        if self.during not in (("local",), ("personal",)):
            yield f"during must be [local] (FedPHP) or [personal] (MAP), not {list(self.during)}"

    def slots(self) -> Sequence[Slot]:
        """The private model, and how often the client has taken part."""
        return Slot("model", "client", received), Slot("seen", "client", number(0))

    def plan(self, phases: list[Phase]) -> list[Phase]:
        """MAP: the second half of the local steps becomes a phase of its own."""
        if self.during == ("local",):
            return phases
        halves: list[Phase] = []
        for phase in phases:
            if not phase.uploads:
                halves.append(phase)
                continue
            middle = (phase.begin + phase.end) / 2
            tail = Phase(
                "personal", start="previous", train=phase.train, epochs=phase.epochs, begin=middle, end=phase.end,
                continues=True, fresh=self.fresh_optimizer,
            )  # fmt: skip
            halves += [replace(phase, end=middle), tail]
        return halves

    def loss(self, step: Step) -> Tensor | None:
        """The transfer term, written as a correction of the cross-entropy: weight · (L - CE)."""
        if not self.weight or not step.once("taught", lambda: bool(step.mine["seen"]["value"])):
            return None
        features, logits = step.forward(step.mine["model"])
        if self.transfer == "mmd":
            term = mmd(step.h, features)
        else:
            form = distillation if self.transfer == "kd" else one_sided_distillation
            term = form(step.classify(step.h), logits, self.temperature, step.shares)
        return self.weight * (term - step.ce)

    def finish(self, local: LocalRound) -> Out:
        """The private model inherits from the last phase of this component."""
        seen = local.mine["seen"]["value"]
        mu = self._inertia(int(seen), local.facts.expected_selections)
        model = lerp(local.ends[self.during[-1]], local.mine["model"], mu)
        return Out(slots={"model": model, "seen": {"value": seen + 1}})

    def _inertia(self, seen: int, expected: int) -> float:
        """μ_k after ``seen`` earlier selections."""
        return min(self.momentum * seen / expected, self.clip)

    def view(self, weights: Tree, view: View) -> Tree:
        """The private model, once there is one."""
        return view.mine["model"] if view.mine["seen"]["value"] > 0 else weights

    def neutral(self) -> InheritedPrivateModel | None:
        """FedPHP without transfer uploads what FedAvg does; MAP uploads the first half of the steps in any case."""
        return replace(self, weight=0.0) if self.during == ("local",) else None
