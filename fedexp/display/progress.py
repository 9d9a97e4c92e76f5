"""How far a run is: rounds and clients done, the time left, the accuracies so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from fedexp.track.base import Record

KINDS = ("aggregation", "personalization")


class Progress:
    """Counts for a display; ``clock`` is any function of rising seconds."""

    def __init__(self, rounds: int, done: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.rounds = rounds
        self.first = done
        self.full = done  # completed rounds
        self.running = False  # between the start of a round and its record
        self.size = 0
        self.clients = 0
        self.seconds = 0.0
        self.series: dict[str, list[tuple[int, float]]] = {}
        self._clock = clock
        self._began = clock()
        self._warm: float | None = None  # when the first round was over; it pays for imports and warming up

    @property
    def done(self) -> float:
        """Rounds done, with the share of the running one."""
        share = self.clients / self.size if self.running and self.size else 0.0
        return min(self.full + share, self.rounds)

    @property
    def elapsed(self) -> float:
        """Seconds since the display was started."""
        return self._clock() - self._began

    def cohort(self, round_: int, size: int) -> None:
        """Begins a round."""
        self._complete(round_ - 1)
        self.running = True
        self.size, self.clients, self.seconds = size, 0, 0.0

    def client(self, seconds: float) -> None:
        """Counts one client of the round."""
        self.clients += 1
        self.seconds += seconds

    def record(self, record: Record) -> bool:
        """Keeps the accuracies of a round; false for one that was on file before the start."""
        number = int(record["round"])
        for kind in KINDS:
            accuracy = record.get(kind, {}).get("accuracy")
            if accuracy is not None and math.isfinite(accuracy):
                self.series.setdefault(kind, []).append((number, accuracy))
        if number <= self.first:
            return False
        self._complete(number)
        self.running = False
        return True

    def best(self, kind: str) -> tuple[int, float]:
        """The round of the highest accuracy, the earliest of equals, and the accuracy."""
        return max(self.series[kind], key=lambda point: point[1])

    def left(self) -> float | None:
        """Seconds to go at the pace so far, of the rounds after the first if there are any.

        Unknown before the first client is done.
        """
        began, first = self._began, self.first
        if self._warm is not None and self.done > first + 1:
            began, first = self._warm, first + 1
        moved = self.done - first
        return (self._clock() - began) / moved * (self.rounds - self.done) if moved > 0 else None

    def _complete(self, rounds: int) -> None:
        self.full = rounds
        if self._warm is None and rounds == self.first + 1:
            self._warm = self._clock()
