"""Access to slots, and what is known of a run before its first round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from torch import Tensor

from fedexp.core.state import Layout, Tree

if TYPE_CHECKING:
    from fedexp.data.federated import Info

Slots = Mapping[str, Tree]
Views = Mapping[str, Slots]  # component -> slot -> value


@dataclass(frozen=True)
class Facts:
    """What is known of a run before its first round."""

    seed: int
    rounds: int
    fraction: float
    n_clients: int
    n_classes: int
    feature_dim: int
    layout: Layout
    counts: Tensor  # [clients, classes] training samples
    initial: Tree
    public: int = 0  # samples that the server has of its own

    @property
    def expected_selections(self) -> int:
        """How often a client takes part in the whole run, on average: max(int(Q T), 1)."""
        return max(int(self.fraction * self.rounds + 1e-9), 1)


@dataclass
class Bound:
    """Access to slots for the component whose turn it is."""

    views: Views
    key: str = field(default="", init=False)

    def for_component(self, key: str) -> Self:
        """Gives the turn to a component."""
        self.key = key
        return self

    @property
    def mine(self) -> Slots:
        """The component's own slots."""
        return self.views[self.key]

    def of(self, key: str) -> Slots:
        """The slots of a component named in ``needs``."""
        return self.views[key]


@dataclass
class View(Bound):
    """A client (or, with ``info`` None, the server) whose model is put together."""

    info: Info | None
    facts: Facts
