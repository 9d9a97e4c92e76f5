"""A second, personal model tied to the server's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedexp.core.component import Component, Phase, own
from fedexp.core.ranges import Epochs, NotNegative
from fedexp.core.state import Out, Slot, Tree, initial
from fedexp.core.views import LocalRound, Step, View


@dataclass(frozen=True, kw_only=True)
class Ditto(Component):
    """Trains a personal model beside the uploaded one, pulled towards the received weights.

    Li et al., Ditto, ICML 2021, Alg. 1: v ← v - lr · (g(v) + weight · (v - w_t)), with v starting at the initial model
    and kept between rounds. The uploaded stream is FedAvg's, bit for bit.

    Deviations: ``epochs: null`` gives the personal stream as many epochs as the uploaded one (the public codes differ:
    one, or as many). MAP states no weight; its numbers look like a very small one.
    """

    weight: NotNegative = 0.1
    epochs: Epochs | None = None
    during: tuple[str, ...] = ("ditto",)

    personal: ClassVar[bool] = True
    padded: ClassVar[bool] = True

    def slots(self) -> Sequence[Slot]:
        """The personal model."""
        return (Slot("model", "client", initial),)

    def plan(self, phases: list[Phase]) -> list[Phase]:
        """One more phase, from the personal model."""
        return [*phases, Phase("ditto", start=own("model"), epochs=self.epochs)]

    def grads(self, grads: Tree, step: Step) -> Tree:
        """The gradient of weight/2 · ‖v - w_t‖²."""
        if self.weight == 0:
            return grads
        live, anchor = step.weights, step.received
        return {n: g + self.weight * (live[n].detach() - anchor[n]) for n, g in grads.items()}

    def finish(self, local: LocalRound) -> Out:
        """Keeps the personal model."""
        return Out(slots={"model": local.ends["ditto"]})

    def view(self, weights: Tree, view: View) -> Tree:
        """The personal model."""
        return view.mine["model"]

    def neutral(self) -> Ditto:
        """Whatever its weight, the personal stream does not touch the uploaded one."""
        return self
