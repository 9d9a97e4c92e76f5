"""What a display is told, the display that shows nothing, and which one fits a console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console

from fedexp.core.record import Record
from fedexp.display.progress import nothing


class Display(Protocol):
    """Follows a run. Rounds count from 1, in ``cohort`` as in the records."""

    def stage(self, text: str) -> None:
        """Shows what is being done before the first round."""

    def start(
        self, title: str, rounds: int, done: int, *, final: float = 0.0, underway: Callable[[], float] = nothing
    ) -> None:
        """Begins; ``done`` rounds are on file already.

        A resumed run may hand in its earlier records next: they count for the best accuracy but are not shown.

        Args:
            title: Names the run.
            rounds: Rounds of the run.
            done: Rounds that are on file.
            final: Work after the last round, in rounds.
            underway: Clients that are being trained right now, as far as each of them is.
        """

    def cohort(self, round_: int, clients: int, samples: int) -> None:
        """Is told that a round begins, with so many clients, which have so many samples in all."""

    def after(self, what: str, work: float, clients: int, samples: int) -> None:
        """Is told that clients are trained and tested after the last round, which is as much work as so many rounds."""

    def client(self, seconds: float, samples: int) -> None:
        """Is told that one client is done, how long its work took, and how many samples it has."""

    def record(self, record: Record) -> None:
        """Shows an evaluated round."""

    def note(self, text: str) -> None:
        """Shows one line to the user: a warning, where things are."""

    def stop(self) -> None:
        """Ends, and leaves the terminal as it was; harmless when nothing was started."""


class SilentDisplay:
    """Shows nothing."""

    def stage(self, text: str) -> None:
        """Shows nothing."""

    def start(
        self, title: str, rounds: int, done: int, *, final: float = 0.0, underway: Callable[[], float] = nothing
    ) -> None:
        """Shows nothing."""

    def cohort(self, round_: int, clients: int, samples: int) -> None:
        """Shows nothing."""

    def after(self, what: str, work: float, clients: int, samples: int) -> None:
        """Shows nothing."""

    def client(self, seconds: float, samples: int) -> None:
        """Shows nothing."""

    def record(self, record: Record) -> None:
        """Shows nothing."""

    def note(self, text: str) -> None:
        """Shows nothing."""

    def stop(self) -> None:
        """Has nothing to end."""


def choose(console: Console) -> Display:
    """Picks the display for a console: live on a terminal, lines in a log file, nothing if it is quiet."""
    from fedexp.display.live import LiveDisplay
    from fedexp.display.plain import PlainDisplay

    if console.quiet:
        return SilentDisplay()
    return LiveDisplay(console) if console.is_interactive else PlainDisplay(console)


@contextmanager
def shown(display: Display, title: str, *, rounds: int, done: int) -> Iterator[Display]:
    """Shows a run while the block lasts; the terminal is restored however it ends."""
    try:
        display.start(title, rounds, done)
        yield display
    finally:
        display.stop()
