"""The jobs of a sweep with their cost, before any of them is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedexp.sweep.jobs import KEY_WIDTH, TABLE_STYLE, SweepJob, folded, say, varying
from fedexp.sweep.progress import roughly
from fedexp.system.resources import cores
from fedexp.terminal.numbers import DASH, clock, count, human_bytes

State = Literal["done", "partial", "missing"]
Basis = Literal["timed", "runs"]
BASES: dict[Basis, str] = {
    "timed": "timed: the local steps and tests of one client of each kind of job, timed just now on this machine",
    "runs": "runs: from the seconds that finished runs of the same kind in the same folder took",
}
NOT_COUNTED = (
    "not counted: start-up and reading data; where timed, also the server's own work, writing, and what protocols test "
    "or train besides"
)


@dataclass(frozen=True)
class Amount:
    """What rounds take: local steps, and bytes sent to and from the server."""

    steps: int
    up: int
    down: int


@dataclass(frozen=True)
class Cost:
    """What a job takes.

    Attributes:
        state: What is on file of it.
        done: Rounds on file.
        rounds: Rounds in all.
        clients: Clients per round.
        parameters: Of the network.
        disk: Bytes, at most, while the run is under way.
        whole: What all its rounds take.
        left: What the rounds take that are not on file.
        seconds: About how long the rest takes in one process, with the final pass over all clients; None if unknown.
        basis: How the seconds were found.
        note: Why they were not.
    """

    state: State
    done: int
    rounds: int
    clients: int
    parameters: int
    disk: int
    whole: Amount
    left: Amount
    seconds: float | None = None
    basis: Basis | None = None
    note: str = ""

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Cost:
        """The cost that a job has reported."""
        return cls(**{**content, "whole": Amount(**content["whole"]), "left": Amount(**content["left"])})


@dataclass(frozen=True)
class PlanLine:
    """A job in the list; without a cost if it cannot run."""

    job: SweepJob
    cost: Cost | None
    same_as: SweepJob | None  # an earlier job with the same run

    @property
    def state(self) -> str:
        """What there is to do."""
        if self.same_as:
            return f"= {self.same_as.name}"
        if self.cost is None:
            return "error"
        return f"{self.cost.done} done" if self.cost.state == "partial" else self.cost.state


Columns = dict[str, Callable[[Cost], str]]

EFFORT: Columns = {
    "rounds": lambda cost: f"{cost.rounds:,}",
    "clients\nper round": lambda cost: f"{cost.clients:,}",
    "local\nsteps": lambda cost: f"{cost.whole.steps:,}",
}
SIZES: Columns = {
    "up": lambda cost: human_bytes(cost.whole.up),
    "down": lambda cost: human_bytes(cost.whole.down),
    "parameters": lambda cost: f"{cost.parameters:,}",
    "disk": lambda cost: human_bytes(cost.disk),
}


def show_plan(jobs: Sequence[SweepJob], console: Console) -> None:
    """Prints the jobs with their cost, the whole of it, and how it was found. Jobs that cannot run say why."""
    lines = _lines(jobs)
    kinds = Counter("same run" if line.same_as else line.cost.state if line.cost else "cannot run" for line in lines)
    say(console, f"\n{count(len(jobs), 'job')}: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}\n")
    _show_jobs(lines, console)
    _show_total([line.cost for line in lines if line.cost and not line.same_as], console)
    for line in lines:
        if line.cost is None:
            say(console, f"{line.job.name} cannot run: {line.job.error}", "red")
        elif line.cost.note and not line.same_as:
            say(console, f"{line.job.name}: not timed: {line.cost.note}", "yellow")


def _lines(jobs: Sequence[SweepJob]) -> list[PlanLine]:
    first: dict[str | None, SweepJob] = {}
    lines = []
    for job in jobs:
        earlier = first.setdefault(job.path, job)
        cost = None if job.result is None else Cost.parse(job.result)
        lines.append(PlanLine(job, cost, None if earlier is job else earlier))
    return lines


def _show_jobs(lines: Sequence[PlanLine], console: Console) -> None:
    """One table of what differs between jobs, or two where it is too wide; then what does not differ."""
    costs = [line.cost for line in lines if line.cost]
    swept = varying([line.job.settings for line in lines])  # has a column already
    values = {heading: {write(cost) for cost in costs} for heading, write in {**EFFORT, **SIZES}.items()}
    effort, sizes = ({h: w for h, w in c.items() if len(values[h]) > 1 and h not in swept} for c in (EFFORT, SIZES))
    every: Columns = {**effort, **sizes}
    layouts: list[tuple[Columns, Columns]] = [(every, {}), (effort, sizes), ({}, every)]
    for first, second in layouts:
        grid = _grid(lines, first, key_width=0 if second else KEY_WIDTH)
        if console.measure(grid, options=console.options.update(width=1000)).maximum <= console.width:
            break
    console.print(grid)
    if second:
        console.print("", _sizes(lines, second), sep="\n")
    same = [f"{' '.join(heading.split())} {found.pop()}" for heading, found in values.items() if len(found) == 1]
    if same:
        console.print(Text(f"in every job: {', '.join(same)}", style="dim"))
    if costs:
        console.print(Text("disk: the most that a run takes while it is under way", style="dim"))


def _grid(lines: Sequence[PlanLine], columns: Columns, *, key_width: int) -> Table:
    settings = [line.job.settings for line in lines]
    keys = varying(settings)
    grid = Table(**TABLE_STYLE)
    grid.add_column("job", justify="right", no_wrap=True)
    for key in keys:
        widest = max(len(each.get(key, DASH)) for each in settings)
        grid.add_column(folded(key, width=max(widest, key_width)), overflow="fold")
    grid.add_column("state", no_wrap=True)
    for heading in (*columns, "time\nto go"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("from", no_wrap=True)
    for line, each in zip(lines, settings, strict=True):
        values = (Text(each.get(key, DASH)) for key in keys)
        grid.add_row(str(line.job.number + 1), *values, line.state, *_cells(line, columns), *_time(line))
    return grid


def _sizes(lines: Sequence[PlanLine], columns: Columns) -> Table:
    grid = Table("job", **TABLE_STYLE)
    for heading in columns:
        grid.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        grid.add_row(f"{line.job.number + 1:>3}", *_cells(line, columns))
    return grid


def _cells(line: PlanLine, columns: Columns) -> list[str]:
    return [write(line.cost) if line.cost else DASH for write in columns.values()]


def _time(line: PlanLine) -> tuple[str, str]:
    if line.cost is None or line.cost.seconds is None or line.same_as:
        return DASH, ""
    return clock(line.cost.seconds), line.cost.basis or ""


def _show_total(costs: Sequence[Cost], console: Console) -> None:
    steps, up, down = (sum(getattr(cost.left, part) for cost in costs) for part in ("steps", "up", "down"))
    say(console, f"\nto run: {steps:,} local steps, {human_bytes(up)} up, {human_bytes(down)} down")
    known = [cost.seconds for cost in costs if cost.seconds is not None]
    unknown = sum(cost.seconds is None and cost.state != "done" for cost in costs)
    if known:
        besides = f", and {count(unknown, 'job')} of unknown duration" if unknown else ""
        say(console, f"time:   about {roughly(sum(known))} in one process{besides}")
        bases = dict.fromkeys(cost.basis for cost in costs if cost.basis)
        divided = f"executor=processes divides it by up to {cores()} on this machine; auto does so where it pays"
        for sentence in (divided, *(BASES[basis] for basis in bases), NOT_COUNTED):
            console.print(Padding(Text(sentence, style="dim"), (0, 0, 0, 8)))
