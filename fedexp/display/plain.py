"""Progress as lines, for log files and pipes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console

from fedexp.core.record import Record
from fedexp.display.progress import KINDS, Progress, nothing
from fedexp.system.signals import defer_signals
from fedexp.terminal.numbers import clock, count, percent


class PlainDisplay:
    """Writes the first and the last evaluated round and, between them, a line every tenth of the run.

    Slow runs write more often, so that a log file moves: after a round, whenever ``pause`` seconds have passed since
    the last line; inside a round or after the last one, whenever ``patience`` seconds have.
    """

    def __init__(
        self, console: Console, *, pause: float = 5.0, patience: float = 30.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._console = console
        self._pause, self._patience = pause, patience
        self._now = now
        self._progress = Progress(1, 0)
        self._written: tuple[int, float] | None = None  # round and time of the last line of a round
        self._last = now()  # time of the last line
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def stage(self, text: str) -> None:
        """Writes what is being done."""
        self.note(text)

    def start(
        self, title: str, rounds: int, done: int, *, final: float = 0.0, underway: Callable[[], float] = nothing
    ) -> None:
        """Writes the title."""
        self.stop()
        self._progress = Progress(rounds, done, final=final, underway=underway, clock=self._now)
        self._written = None
        some = count(rounds, "round")
        self.note(f"{title}: " + (f"continues after round {done} of {rounds}" if done else some))
        self._ended.clear()
        with defer_signals():  # only a thread that runs can be waited for
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()

    def cohort(self, round_: int, clients: int, samples: int) -> None:
        """Counts."""
        self._progress.cohort(round_, clients, samples)

    def after(self, what: str, work: float, clients: int, samples: int) -> None:
        """Writes what comes after the last round."""
        self._progress.after(what, work, clients, samples)
        self.note(f"after the last round: {what}{self._left()}")

    def client(self, seconds: float, samples: int) -> None:
        """Counts."""
        self._progress.client(seconds, samples)
        self.look()

    def record(self, record: Record) -> None:
        """Writes a line if one is due."""
        if self._progress.record(record) and self._due(record["round"]):
            self._written = (record["round"], self._now())
            self.note(self._line(record))

    def note(self, text: str) -> None:
        """Writes a line as it is."""
        self._last = self._now()
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def look(self) -> None:
        """Writes how far the clients of now are, if nothing was written for long."""
        progress = self._progress
        if not progress.working or self._now() - self._last < self._patience:
            return
        where = progress.what if progress.full >= progress.rounds else f"round {progress.full + 1}/{progress.rounds}"
        self.note(f"{where}: {progress.running:.1f} of {count(progress.size, 'client')} done{self._left()}")

    def stop(self) -> None:
        """Writes nothing from now on.

        The other thread must end first: as the last that knows the run's tensors it would free them while Python ends,
        which aborts the process.
        """
        if self._ticker is not None:
            self._ended.set()
            self._ticker.join()
            self._ticker = None
        self._progress = Progress(1, 0)  # that of a run knows its executor, and with it the data set

    def _tick(self) -> None:
        """Looks now and then, also while a client takes long."""
        while not self._ended.wait(1.0):
            self.look()

    def _left(self) -> str:
        left = self._progress.left()
        return "" if left is None else f", about {clock(left)} left"

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
        parts.append(f"took {clock(self._progress.elapsed)}" if last else f"about {clock(left or 0.0)} left")
        return "  ".join(parts)
