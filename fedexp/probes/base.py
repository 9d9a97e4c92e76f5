"""The probe: what it is shown, and how it writes down what it sees.

A probe is a frozen dataclass of settings with up to three seams. It holds no state: what it needs from one step to the
next, it keeps in the log that every seam is given. What it is shown is read only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedexp.core.ranges import Count, CountOr0
from fedexp.core.state import Tree

if TYPE_CHECKING:
    from fedexp.core.views import Facts, Step
    from fedexp.data.federated import Info

Row = dict[str, Any]
Value = float | Sequence[float] | Tensor


@dataclass(frozen=True)
class Observation:
    """What was seen in a round: rows of probes.jsonl, and arrays by ``probe/client/name``."""

    rows: tuple[Row, ...] = ()
    arrays: Mapping[str, Tensor] = field(default_factory=dict)

    def copied(self) -> Observation:
        """The same with arrays of its own: those of another process lie in memory that is used again."""
        return Observation(self.rows, {name: array.clone() for name, array in self.arrays.items()})


@dataclass
class Log:
    """What a probe writes down of one client's round, or of the server's."""

    rows: list[Row] = field(default_factory=list)
    arrays: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)  # from one seam to the next; not written

    def row(self, name: str, values: Mapping[str, Value | None], **where: int | str) -> None:
        """Writes numbers, or lists with a number for each class. ``where`` may be a step, an epoch or a phase.

        A number that does not exist (None, NaN: the mean over no class) is left out.
        """
        known = {key: number for key, value in values.items() if (number := _plain(value)) is not None}
        self.rows.append({"name": name, **where, "values": known})

    def array(self, name: str, value: Tensor) -> None:
        """Writes an array."""
        self.arrays[name] = value.detach().cpu().contiguous().clone()


@dataclass(frozen=True)
class Place:
    """Where a step stands in a client's round, over all phases; counted from 0."""

    step: int
    epoch: int
    ends_epoch: bool


@dataclass(frozen=True)
class ClientView:
    """A client after its local training.

    Attributes:
        received: The weights that it began with.
        ends: The weights after each phase.
        uploaded: The whole model of which it sends a part or all, as it is trained: the end of the phase that uploads.
        personal: The model that it would use for itself.
        seconds: What the round took until now, without tests and probes.
        sizes: Bytes of what it ``received``, ``sent`` and has ``kept``, and of its ``network``.
        classify: Logits of features under the classifier of any weights.
        own: Features and labels of so many of its training samples (0: of all) under any weights.
        test: The same of so many samples of the global test set; the same samples for everyone, in every round.
    """

    round: int
    info: Info
    facts: Facts
    received: Tree
    ends: Mapping[str, Tree]
    uploaded: Tree
    personal: Tree
    seconds: float
    sizes: Mapping[str, int]
    classify: Callable[[Tree, Tensor], Tensor]
    own: Callable[[Tree, int], tuple[Tensor, Tensor]]
    test: Callable[[Tree, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ServerView:
    """The server after its step.

    Attributes:
        cohort: The clients whose answers came in.
        before: Its model before the step.
        after: Its model now; None if the method has no model that is everybody's.
        arrays: By client, what this probe has written down as arrays in this round.
        test: Features and labels of so many samples of the global test set (0: of all) under any weights.
    """

    round: int
    facts: Facts
    cohort: tuple[int, ...]
    before: Tree
    after: Tree | None
    arrays: Mapping[int, Mapping[str, Tensor]]
    test: Callable[[Tree, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Observes a run. Override any of ``step``, ``client`` and ``server``; what is not overridden costs nothing.

    Args:
        every: Observes rounds 1, ``every``, 2 · ``every`` and so on, and the last one.
        clients: Observes these clients when they take part; all of them if the list is empty.
    """

    every: Count = 1
    clients: Sequence[CountOr0] = ()

    def due(self, round: int, rounds: int) -> bool:  # noqa: A002
        """Whether a round (counted from 0) is observed."""
        return round == 0 or (round + 1) % self.every == 0 or round + 1 == rounds

    def watches(self, client: int) -> bool:
        """Whether a client is observed."""
        return not self.clients or client in self.clients

    def problems(self, facts: Facts) -> Iterator[str]:
        """Why the probe cannot observe this run, a sentence for each reason."""
        if unknown := [client for client in self.clients if client >= facts.n_clients]:
            yield f"clients={list(self.clients)} names client {unknown[0]}, and the last one is {facts.n_clients - 1}."

    def step(self, step: Step, at: Place, log: Log) -> None:
        """After the backward pass of a local step, before gradients are corrected, clipped and applied."""

    def client(self, view: ClientView, log: Log) -> None:
        """After a client's local training."""

    def server(self, view: ServerView, log: Log) -> None:
        """After the server's step."""


def overrides(probe: Probe, seam: str) -> bool:
    """Whether a probe overrides a seam."""
    return getattr(type(probe), seam) is not getattr(Probe, seam)


def _plain(value: Value | None) -> float | list[float | None] | None:
    """A number that can be written as JSON; of a list, None where there is no number."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().tolist()
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]  # type: ignore[misc]
    return float(value) if value is not None and math.isfinite(value) else None
