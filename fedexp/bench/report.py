"""What a contest says, as tables for people. ``record.py`` writes it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from rich.console import Console
from rich.table import Table

from fedexp.bench import usage
from fedexp.bench.contest import Contestant
from fedexp.bench.ratios import RatioSpread, to_neighbours
from fedexp.terminal.numbers import DASH

DEAR = 1.25  # the time of a pass, over the base's, above which a method is named
KINDS = ("train", "evaluate", "aggregate", "write")  # in this order; what else a run counts comes after them


@dataclass(frozen=True)
class ReportLine:
    """One contestant's figures: medians and means over its rounds."""

    name: str
    wall: float  # median seconds of a round
    ratio: RatioSpread | None  # to the base; None for the base itself
    ratios: list[float]
    cpu: float
    seconds: dict[str, float]
    memory: float  # largest, in megabytes
    others: float
    startup: float
    accuracy: float | None  # after as many rounds as all have played
    note: str = ""
    passes: float | None = None  # forward and backward passes of a round, over the base's

    @property
    def beyond_passes(self) -> float | None:
        """How much longer than the base's a pass takes."""
        return self.ratio.median / self.passes if self.ratio and self.passes else None


def lines(
    base: Contestant, others: Sequence[Contestant], times: Sequence[tuple[str, float]], notes: Mapping[str, str]
) -> list[ReportLine]:
    """The figures of a contest, the base's first."""
    ratios = to_neighbours(times, base.name)
    tested = [c.learned.keys() for c in (base, *others) if c.learned]
    rounds = max(set(tested[0]).intersection(*tested), default=0) if tested else 0  # the base plays more than others
    return [_line(c, ratios.get(c.name, []), notes.get(c.name, ""), rounds) for c in (base, *others)]


def _line(contestant: Contestant, ratios: list[float], note: str, rounds: int) -> ReportLine:
    laps = contestant.laps
    wall, cpu = mean(lap.wall for lap in laps), mean(lap.cpu for lap in laps)
    kinds = dict.fromkeys(k for lap in laps for k in lap.seconds)
    seconds = {k: mean(lap.seconds.get(k, 0.0) for lap in laps) for k in kinds}
    counted = sum(seconds.values())
    seconds["other"] = wall * (usage.cores() if counted > wall else 1) - counted  # the framework's own, and idle time
    return ReportLine(
        name=contestant.name, wall=median(lap.wall for lap in laps), ratio=RatioSpread.of(ratios) if ratios else None,
        ratios=ratios, cpu=cpu, seconds=seconds, memory=max(lap.memory for lap in laps),
        others=mean(lap.others for lap in laps), startup=contestant.startup, accuracy=contestant.learned.get(rounds),
        note=note,
    )  # fmt: skip


def show(title: str, found: Sequence[ReportLine], console: Console) -> None:
    """One table: ratios with their spread, seconds by kind of work, memory, accuracy after equally many rounds."""
    extra = dict.fromkeys(k for line in found for k in line.seconds)
    kinds = [*KINDS, *(k for k in extra if k not in (*KINDS, "other")), "other"]
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    table.add_column(f"against {found[0].name}", no_wrap=True)
    counted = ["passes", "per pass"] if any(line.passes is not None for line in found) else []
    for heading in ("ratio", "quartiles", *counted, "s/round", "CPU s", *kinds, "MB", "accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    if any(line.note for line in found):
        table.add_column("its own work")
    for line in found:
        name, ratio, quartiles, *rest = _cells(line, kinds)
        passes = _passes(line) if counted else []
        table.add_row(name, ratio, quartiles, *passes, *rest, *([line.note] if line.note else []))
    console.print(table)
    if slow := [line.name for line in found if (line.beyond_passes or 0) > DEAR]:
        console.print(f"more than {DEAR:g} times what their passes explain: {', '.join(slow)}", highlight=False)
    busy = mean(line.others for line in found)
    console.print(f"[dim]others kept {busy:.2f} of {usage.cores()} cores busy meanwhile[/]\n", highlight=False)


def _cells(line: ReportLine, kinds: Sequence[str]) -> list[str]:
    ratio = [DASH, ""] if line.ratio is None else [f"{line.ratio.median:.3f}", _quartiles(line.ratio)]
    seconds = [f"{line.seconds[k]:.3f}" if k in line.seconds else DASH for k in kinds]
    accuracy = DASH if line.accuracy is None else f"{line.accuracy:.3f}"
    return [line.name, *ratio, f"{line.wall:.3f}", f"{line.cpu:.2f}", *seconds, f"{line.memory:,.0f}", accuracy]


def _passes(line: ReportLine) -> list[str]:
    beyond = line.beyond_passes
    return [DASH if line.passes is None else f"{line.passes:.2f}", DASH if beyond is None else f"{beyond:.2f}"]


def _quartiles(spread: RatioSpread) -> str:
    return f"{spread.lower:.3f}–{spread.upper:.3f}"
