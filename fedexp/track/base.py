"""What a tracker is told, and what it has to do."""

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
    path: Path  # the run directory
    rounds: int
    commit: str = ""  # of the code, if that is known


class Tracker(Protocol):
    """Mirrors a run elsewhere. The run directory is the record, from which a mirror can be made at any time.

    A tracker may raise whatever it likes: ``Trackers`` keeps that from the run. The same run may be mirrored several
    times, because it was resumed or synchronised; then the mirror is completed or replaced, and nothing is in it twice.
    """

    def start(self, card: RunCard, history: Sequence[Record]) -> None:
        """Opens the mirror; ``history`` are the records already on file when a run is resumed."""

    def log(self, record: Record) -> None:
        """Mirrors one evaluated round."""

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Closes the mirror; no result means that the run stopped early, by an error or an interruption."""
