"""Progress on a terminal: bars for rounds and clients, and the accuracies with their course."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from fedexp.core.record import Record
from fedexp.display.progress import KINDS, Progress, nothing
from fedexp.terminal.numbers import clock, duration, percent, sparkline

MAX_WIDTH = 100  # numbers far from their bars are hard to read
COLOURS = {"aggregation": "cyan", "personalization": "magenta"}


class LiveDisplay:
    """Redraws one block of lines in place; notes scroll above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title = ""
        self._progress = Progress(1, 0)
        self._live: Live | None = None
        self._status: Status | None = None

    def stage(self, text: str) -> None:
        """Shows what is being done, until the next stage or the start."""
        self.stop()
        self._status = self._console.status(text)
        self._status.start()

    def start(
        self, title: str, rounds: int, done: int, *, final: float = 0.0, underway: Callable[[], float] = nothing
    ) -> None:
        """Opens the block."""
        self.stop()
        self._title = title
        self._progress = Progress(rounds, done, final=final, underway=underway)
        self._live = Live(console=self._console, get_renderable=self.frame, refresh_per_second=8)
        self._live.start(refresh=True)

    def cohort(self, round_: int, clients: int, samples: int) -> None:
        """Empties the bar of the clients."""
        self._progress.cohort(round_, clients, samples)

    def after(self, what: str, work: float, clients: int, samples: int) -> None:
        """Empties the bar, which has another name now."""
        self._progress.after(what, work, clients, samples)

    def client(self, seconds: float, samples: int) -> None:
        """Moves the bar of the clients."""
        self._progress.client(seconds, samples)

    def record(self, record: Record) -> None:
        """Moves the bar of the rounds and shows the accuracies."""
        self._progress.record(record)

    def note(self, text: str) -> None:
        """Writes a line above the block."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def stop(self) -> None:
        """Draws the block a last time and gives the cursor back."""
        for shown in (self._live, self._status):
            if shown is not None:
                shown.stop()
        self._live = self._status = None
        self._progress = Progress(1, 0)  # that of a run knows its executor, and with it the data set

    def frame(self) -> Group:
        """Draws the block as it is now."""
        progress = self._progress
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.width = min(self._console.width, MAX_WIDTH)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(no_wrap=True, min_width=22)
        grid.add_row("rounds", _bar(min(progress.done, progress.rounds), progress.rounds, "green"), *_rounds(progress))
        if progress.working:
            grid.add_row(progress.what, _bar(progress.running, progress.size, "blue"), *_clients(progress))
        for kind in (kind for kind in KINDS if kind in progress.series):
            grid.add_row(kind, *_accuracy(progress, kind))
        return Group(Text(self._title, style="bold", overflow="ellipsis", no_wrap=True), grid)


class _Course:
    """A sparkline as wide as its cell, under the bar of the rounds and with the same axis."""

    def __init__(self, points: list[tuple[int, float]], rounds: int, *, style: str) -> None:
        self._points = points
        self._rounds = rounds
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self._points, self._rounds, width=options.max_width), style=self._style)


def _bar(done: float, total: int, colour: str) -> ProgressBar:
    return ProgressBar(total=total, completed=done, complete_style=colour, finished_style=colour)


def _rounds(progress: Progress) -> tuple[str, Text]:
    left = progress.left()
    if progress.ended:
        text = f"took {clock(progress.elapsed)}"
    else:
        text = f"{clock(progress.elapsed)} so far" if left is None else f"about {clock(left)} left"
    return f"{progress.full}/{progress.rounds}", Text(text)


def _clients(progress: Progress) -> tuple[str, Text]:
    mean = f"{duration(progress.seconds / progress.clients)} each" if progress.clients else ""
    return f"{progress.clients}/{progress.size}", Text(mean, style="dim")


def _accuracy(progress: Progress, kind: str) -> tuple[_Course, Text, Text]:
    points = progress.series[kind]
    number, best = progress.best(kind)
    last = Text(percent(points[-1][1]), style=f"bold {COLOURS[kind]}")
    note = Text(f"best {percent(best)}, round {number}", style="dim")
    return _Course(points, progress.rounds, style=COLOURS[kind]), last, note
