"""The server in a round, as components see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from fedexp.core.record import plain_numbers
from fedexp.core.seeding import torch_rng
from fedexp.core.state import Tree
from fedexp.core.views.slots import Bound, Facts, Slots
from fedexp.errors import PlanError

if TYPE_CHECKING:
    from fedexp.data.source import Samples

T = TypeVar("T")
NO_PUBLIC = "needs samples at the server, which has none. Add public=500 to give it 500 of the test set."


def no_classifier(key: str, replacing: str) -> str:
    """Why a component that runs the network's own classifier, at the server or after training, cannot do so."""
    return (
        f"component {key!r} runs the network's own classifier beside the training, which component {replacing!r} "
        "replaces. They cannot be combined."
    )


class Network(Protocol):
    """The run's network under any weights; ``fedexp.server.network`` has the one that the engine uses."""

    @property
    def device(self) -> torch.device: ...
    def forward(self, tree: Tree, x: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]: ...
    def classify(self, tree: Tree, h: Tensor) -> Tensor: ...


@dataclass
class ServerRound(Bound):
    """The server, once a round, after the uploads were reduced: first all of ``serve``, then the chain of ``update``.

    Trees are on the CPU. What is returned or remembered may be on another device and have a gradient; it is brought
    back without it.
    """

    facts: Facts
    round: int
    model: Tree  # before the round
    mean: Tree  # the clients' weighted mean of all that travels, running statistics too; ``model`` if nobody sent one
    delta: Tree  # the step of the travelling parameters: mean - model in ``serve``, the chain's so far in ``update``
    cohort: tuple[int, ...]
    weights: Mapping[int, float]  # of the cohort's clients, summing to one
    reductions: Mapping[str, Tree]
    keeping: Mapping[str, Mapping[int, Tree]]
    network: Network
    samples: Samples | None  # see ``public``
    store: Callable[[str, str, Tree | dict[int, Tree]], None]  # component, slot, value
    heads: Sequence[str]  # components that replace the classifier in tests
    numbers: dict[str, Any] = field(default_factory=dict)  # "component.name"

    @property
    def n_clients(self) -> int:
        """Number of clients in the federation."""
        return self.facts.n_clients

    @property
    def reduced(self) -> Slots:
        """The component's own uploads, reduced; an upload that nobody sent is absent."""
        return self._own(self.reductions)

    @property
    def kept(self) -> Mapping[str, Mapping[int, Tree]]:
        """The component's kept uploads by client id, and ``model`` if it keeps the clients' models."""
        return {**self._own(self.keeping), **{k: v for k, v in self.keeping.items() if k == "model"}}

    def _own(self, messages: Mapping[str, T]) -> dict[str, T]:
        prefix = self.key + "."
        return {k.removeprefix(prefix): v for k, v in messages.items() if k.startswith(prefix)}

    # ------------------------------------------------------------ the network and public samples
    @property
    def device(self) -> torch.device:
        """Where the network computes. A long computation is faster with its trees and samples moved there first."""
        return self.network.device

    def forward(self, tree: Tree, x: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Features and logits of samples under a whole model, on the device of ``x``, with gradient.

        The logits are those of the network's classifier, so a component that replaces it is refused, and no component's
        ``logits`` act. ``needs_classifier`` lets that be found before the first round. In ``training`` mode batch norm
        and dropout act as in training, and running statistics are updated inside ``tree``: give it a copy.
        """
        self._refuse_heads()
        return self.network.forward(tree, x, training=training)

    def classify(self, tree: Tree, h: Tensor) -> Tensor:
        """The logits of features under the classifier in ``tree``, on the device of ``h``, with gradient."""
        self._refuse_heads()
        return self.network.classify(tree, h)

    def _refuse_heads(self) -> None:
        if self.heads:
            raise PlanError(no_classifier(self.key, self.heads[0]))

    @property
    def public(self) -> Samples:
        """Samples that the server has of its own (the setting ``public``); they are in nobody's training or test set.

        Raises:
            PlanError: If the run has none. Declare ``needs_public``, and it is found before the first round.
        """
        if self.samples is None:
            raise PlanError(f"component {self.key!r} {NO_PUBLIC}")
        return self.samples

    # ------------------------------------------------------------ what is kept of the round
    def remember(self, slot: str, value: Tree | dict[int, Tree]) -> None:
        """Sets a server slot, or the entries of some clients in a mailbox. From now on ``mine`` shows the new value."""
        self.store(self.key, slot, value)

    def record(self, name: str, value: Any) -> None:
        """Puts a number, or a (nested) list or tensor of numbers, into the round's record as ``component.name``."""
        where = f"{self.key}.{name}"
        self.numbers[where] = plain_numbers(value, f"{where} of round {self.round + 1}")

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness for the server in this round."""
        return torch_rng(self.facts.seed, self.key, purpose, self.round)
