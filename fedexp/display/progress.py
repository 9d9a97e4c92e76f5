"""How far a run is: rounds and clients done, the time left, the accuracies so far."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from fedexp.core.record import Record

KINDS = ("aggregation", "personalization")


def nothing() -> float:
    """Is all that is known of clients that are being trained elsewhere."""
    return 0.0


class Progress:
    """Counts for a display. Work is measured in rounds: a client's share of one is that of its samples.

    Args:
        rounds: Rounds of the run.
        done: Rounds that are on file already.
        final: Work after the last round, in rounds.
        underway: Clients that are being trained right now, as far as each of them is; asked whenever it matters.
        clock: Any function of rising seconds.
    """

    def __init__(
        self, rounds: int, done: int, *, final: float = 0.0, underway: Callable[[], float] = nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.rounds = rounds
        self.first = done
        self.full = done  # completed rounds
        self.final = final
        self.what = "clients"  # of the round, or the name of what comes after the last one
        self.size = 0  # clients of the round, or of what comes after the last one
        self.clients = 0  # of them that are done
        self.seconds = 0.0
        self.series: dict[str, list[tuple[int, float]]] = {}
        self._samples = self._samples_done = 0
        self._share = 0.0  # work of the clients of now
        self._after = 0.0  # work done after the last round, before that of the clients of now
        self._underway = underway
        self._clock = clock
        self._began = clock()
        self._course: deque[tuple[float, float]] = deque()  # time and work done, in the later half of the time so far

    @property
    def working(self) -> bool:
        """Whether clients are being trained."""
        return self._share > 0 and self.size > 0

    @property
    def ended(self) -> bool:
        """Whether all rounds are done, and what comes after them too."""
        return self.done >= self.rounds + self.final - 1e-9

    @property
    def running(self) -> float:
        """Clients of now that are done, with the shares of those that are being trained."""
        return min(self.clients + self._underway(), self.size)

    @property
    def done(self) -> float:
        """Work done, in rounds."""
        return self.full + self._after + self._share * self._part

    @property
    def _part(self) -> float:
        """The part of the clients of now that is done, by samples."""
        if not self.size:
            return 0.0
        waiting = max(self.size - self.clients, 1)
        rest = (self._samples - self._samples_done) * min((self.running - self.clients) / waiting, 1.0)
        return (self._samples_done + max(rest, 0.0)) / max(self._samples, 1)

    @property
    def elapsed(self) -> float:
        """Seconds since the display was started."""
        return self._clock() - self._began

    def cohort(self, round_: int, clients: int, samples: int) -> None:
        """Begins a round with so many clients, which have so many samples in all."""
        self.full = round_ - 1
        self._begin("clients", 1.0, clients, samples)

    def after(self, what: str, work: float, clients: int, samples: int) -> None:
        """Begins what comes after the last round, or the next part of it; ``work`` is counted in rounds."""
        self.full = self.rounds
        self._after += self._share
        self._begin(what, work, clients, samples)

    def _begin(self, what: str, share: float, clients: int, samples: int) -> None:
        self.what, self._share, self.size, self._samples = what, share, clients, samples
        self.clients, self._samples_done, self.seconds = 0, 0, 0.0

    def client(self, seconds: float, samples: int) -> None:
        """Counts one client."""
        self.clients += 1
        self._samples_done += samples
        self.seconds += seconds
        self._mark()

    def record(self, record: Record) -> bool:
        """Keeps the accuracies of a round; false for one that was on file before the start."""
        number = int(record["round"])
        for kind in KINDS:
            accuracy = record.get(kind, {}).get("accuracy")
            if accuracy is not None and math.isfinite(accuracy):
                self.series.setdefault(kind, []).append((number, accuracy))
        if number <= self.first:
            return False
        self.full, self._share = number, 0.0
        self._mark()
        return True

    def _mark(self) -> None:
        """Notes how much is done by now."""
        now = self._clock()
        self._course.append((now, self.done))
        while len(self._course) > 1 and self._course[1][0] <= (self._began + now) / 2:
            self._course.popleft()

    def best(self, kind: str) -> tuple[int, float]:
        """The round of the highest accuracy, the earliest of equals, and the accuracy."""
        return max(self.series[kind], key=lambda point: point[1])

    def left(self) -> float | None:
        """Seconds to go at the pace of the later half of the time so far, which leaves out the start of workers.

        Until a second client is done, at the pace of the first; unknown before that.
        """
        if not self._course:
            return None
        since, before = self._course[0]
        if self.done <= before:
            since, before = self._began, float(self.first)
        moved = self.done - before
        return (self._clock() - since) / moved * (self.rounds + self.final - self.done) if moved > 0 else None
