"""A client that has trained, as components see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedexp.core.seeding import torch_rng
from fedexp.core.state import Layout, Tree, pick, sub
from fedexp.core.views.slots import Bound, Facts
from fedexp.errors import PlanError

if TYPE_CHECKING:
    from fedexp.data.federated import Info


@dataclass
class LocalRound(Bound):
    """One client's round, after its last phase."""

    info: Info
    facts: Facts
    round: int
    received: Tree
    ends: Mapping[str, Tree]  # phase -> weights
    steps: Mapping[str, int]  # phase -> optimizer steps taken
    lr: Mapping[str, float]  # phase -> learning rate in this round
    momentum: Mapping[str, float | None]  # phase -> momentum of SGD; None for other optimizers
    embed: Callable[[Tree], Iterator[tuple[Tensor, Tensor]]]  # (h, y) of the training samples under any weights
    classify: Callable[[Tree, Tensor], Tensor]  # the network's own classifier under any weights, without gradient
    numbers: dict[str, float] = field(default_factory=dict)  # "component.name"

    @property
    def client(self) -> int:
        """The client's id."""
        return self.info.client

    @property
    def layout(self) -> Layout:
        """The names of the network's tensors."""
        return self.facts.layout

    @property
    def last(self) -> Tree:
        """The weights after the last phase."""
        return list(self.ends.values())[-1]

    def moved(self, phase: str) -> Tree:
        """How far a phase's end is from the received weights, on the travelling parameters."""
        shared = self.layout.shared
        return sub(pick(self.ends[phase], shared), self.received)

    def normaliser(self, phase: str) -> float:
        """The factor a, such that displacement = lr · a · (mean gradient): the steps, or FedNova's momentum form.

        Raises:
            PlanError: If the optimizer is not SGD. A component that says ``needs_sgd`` is refused before.
        """
        tau, rho = self.steps[phase], self.momentum[phase]
        if rho is None:
            raise PlanError(f"component {self.key!r} needs SGD in phase {phase!r}: let its class say needs_sgd = True")
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)

    def record(self, name: str, value: float | Tensor) -> None:
        """Writes down a number; the mean over the round's clients is recorded as ``component.name``."""
        self.numbers[f"{self.key}.{name}"] = value.item() if isinstance(value, Tensor) else float(value)

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness for this client in this round."""
        device = next(iter(self.received.values())).device
        return torch_rng(self.facts.seed, self.key, purpose, self.round, self.client, device=device)
