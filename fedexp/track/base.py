"""What a tracker is told, and the tracker that does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedexp.core.record import Record


@dataclass(frozen=True)
class RunCard:
    """Identifies a run to a tracker."""

    run: str  # short hash of the result-relevant config
    name: str  # the group it belongs to: a sweep, a table of a paper
    config: dict[str, Any]
    plan: dict[str, Any]
    partition: list[list[int]]  # training samples, clients × classes
    path: Path  # the run directory
    rounds: int


class Tracker(Protocol):
    """Mirrors a run. The core writes the run directory whatever the tracker does."""

    def start(self, card: RunCard, history: Sequence[Record]) -> None:
        """Opens the mirror; ``history`` are the records already on file when a run is resumed."""

    def log(self, record: Record) -> None:
        """Mirrors one evaluated round."""

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Closes the mirror; no result means that the run stopped early, by an error or an interruption."""


class NoTracker:
    """Mirrors nothing."""

    def start(self, card: RunCard, history: Sequence[Record]) -> None:
        """Opens nothing."""

    def log(self, record: Record) -> None:
        """Mirrors nothing."""

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Closes nothing."""
