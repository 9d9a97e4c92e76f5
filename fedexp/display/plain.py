"""Progress as lines, for log files and pipes."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from fedexp.display.figures import clock, percent
from fedexp.display.progress import KINDS, Progress
from fedexp.track.base import Record


class PlainDisplay:
    """Writes the first and the last evaluated round and, between them, a line every tenth of the run.

    Slow runs write more often, so that a log file moves: whenever ``pause`` seconds have passed since the last line.
    """

    def __init__(self, console: Console, *, pause: float = 5.0, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._pause = pause
        self._now = now
        self._progress = Progress(1, 0)
        self._written: tuple[int, float] | None = None  # round and time of the last line

    def start(self, title: str, rounds: int, done: int) -> None:
        """Writes the title."""
        self._progress = Progress(rounds, done, clock=self._now)
        self._written = None
        self.note(f"{title}: " + (f"continues after round {done} of {rounds}" if done else f"{rounds} rounds"))

    def cohort(self, round_: int, size: int) -> None:
        """Counts."""
        self._progress.cohort(round_, size)

    def client(self, seconds: float) -> None:
        """Counts."""
        self._progress.client(seconds)

    def record(self, record: Record) -> None:
        """Writes a line if one is due."""
        if self._progress.record(record) and self._due(record["round"]):
            self._written = (record["round"], self._now())
            self.note(self._line(record))

    def note(self, text: str) -> None:
        """Writes a line as it is."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def stop(self) -> None:
        """Has nothing to restore."""

    def _due(self, round_: int) -> bool:
        if self._written is None or round_ >= self._progress.rounds:
            return True
        written, when = self._written
        return round_ - written >= self._progress.rounds / 10 or self._now() - when >= self._pause

    def _line(self, record: Record) -> str:
        rounds = self._progress.rounds
        accuracies = {kind: record.get(kind, {}).get("accuracy") for kind in KINDS}
        parts = [f"round {record['round']:>{len(str(rounds))}}/{rounds}"]
        parts += [f"{kind} {percent(value)}" for kind, value in accuracies.items() if value is not None]
        left = self._progress.left()
        last = record["round"] >= rounds or left is None
        parts.append(f"took {clock(self._progress.elapsed)}" if last else f"{clock(left or 0.0)} left")
        return "  ".join(parts)
