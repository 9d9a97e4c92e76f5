"""The tables of a sweep, on screen and as CSV.

Jobs that differ in their seed only form a group; a group's numbers are the mean and the sample standard deviation over
its seeds. Every number is named by its key in result.json.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedexp.sweep.jobs import KEY_WIDTH, TABLE_STYLE, SweepJob, count_statuses, folded, keys_of, listed, say, varying
from fedexp.system.files import writing
from fedexp.terminal.numbers import DASH, count

# The columns of the tables on screen; {window} is the number of rounds.
SHOWN: dict[str, dict[str, str]] = {
    "aggregation": {"last": "last", "best": "best", "mean": "mean of\nlast {window}", "GA": "GA"},
    "personalization": {
        "last": "last",
        "best": "best",
        "mean": "mean of\nlast {window}",
        "all_clients": "all\nclients",
        "worst_decile": "worst\ndecile",
        "before": "before",
        "personal_before": "personal\nbefore",
        "PA": "PA",
    },
    "missing": {"absent": "absent", "forgotten": "forgotten"},
}
TITLES = {"missing": "missing classes"}  # where it is not the key
# Of these neither more nor less is better: a model that knew nothing forgets nothing.
UNRANKED = ("missing.forgotten", "missing.predicted_owned")
EXPLAINED = {
    "mean": "± is the sample standard deviation over seeds; where there is one seed, the mean of the last rounds has "
    "the deviation over these rounds.",
    "all_clients": "all clients: each, or as many as evaluate.all_clients says, trained and tested once more after the "
    "last round.",
    "worst_decile": "worst decile: the worst tenth of a round's clients, mean of the last rounds.",
    "before": "before: clients' accuracy with the model they receive, before local training, mean of the last rounds.",
    "personal_before": "personal before: the same with the personal model that they have by then.",
    "absent": "absent: accuracy of personal models on classes that their clients do not own, on a sample of the global "
    "test set, mean of the last rounds.",
    "forgotten": "forgotten: the same of the model they receive, less that of the personal model.",
}
# The numbers of the CSVs.
METRICS = (
    *(f"aggregation.{key}" for key in ("last", "best", "mean", "std", "GA")),
    *(
        f"personalization.{key}"
        for key in ("last", "best", "mean", "std", "before", "personal_before", "worst_decile", "all_clients")
    ),
    *(f"personalization.all_clients_detail.{key}" for key in ("before", "worst_decile", "std", "owned")),
    "personalization.PA",
    *(
        f"missing.{key}"
        for key in ("accuracy", "owned", "owned_restricted", "absent", "rare", "forgotten", "predicted_owned")
    ),
)


@dataclass(frozen=True)
class SeedSpread:
    """Mean and sample standard deviation; one value has no deviation."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Row:
    """A group of jobs that are equal in everything but the seed."""

    settings: dict[str, str]  # of the overrides that vary over the sweep
    jobs: list[SweepJob]
    seeds: int  # with a result
    metrics: dict[str, SeedSpread]  # absent where no seed has the metric

    @property
    def status(self) -> str:
        """How many jobs ended in which way."""
        return count_statuses(self.jobs)

    def shown(self, key: str) -> SeedSpread | None:
        """A number as the table has it: the mean over a single seed's last rounds has their deviation."""
        spread = self.metrics.get(key)
        if spread is None or spread.n > 1 or not key.endswith(".mean"):
            return spread
        over_rounds = self.metrics.get(key.removesuffix("mean") + "std")
        return SeedSpread(spread.mean, over_rounds.mean if over_rounds else None, 1)


def table(jobs: Sequence[SweepJob]) -> list[Row]:
    """Groups the jobs by everything but their seed, in the order of the first job of each group."""
    groups: dict[frozenset[tuple[str, str]], list[SweepJob]] = {}
    for job in jobs:
        groups.setdefault(frozenset(_but_seed(job).items()), []).append(job)
    keys = varying([_but_seed(job) for job in jobs])
    return [_row(group, keys) for group in groups.values()]


def _but_seed(job: SweepJob) -> dict[str, str]:
    return {key: value for key, value in job.settings.items() if key != "seed"}


def _row(group: list[SweepJob], keys: Sequence[str]) -> Row:
    # The same seed twice is the same run, not another sample.
    seeds = {job.settings.get("seed"): job for job in group if job.result is not None}
    metrics = {key: spread for key in METRICS if (spread := _spread(seeds.values(), key))}
    settings = {key: value for key, value in _but_seed(group[0]).items() if key in keys}
    return Row(settings=settings, jobs=group, seeds=len(seeds), metrics=metrics)


def _spread(jobs: Iterable[SweepJob], key: str) -> SeedSpread | None:
    values = [value for job in jobs if (value := job.metric(key)) is not None]
    if not values:
        return None
    return SeedSpread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


# ---------------------------------------------------------------- on screen
def show(jobs: Sequence[SweepJob], console: Console, total: int | None = None) -> None:
    """Prints a table for each goal, then the jobs that failed, and those of ``total`` that have not ended."""
    numbers = {job.number for job in jobs}
    total = total or max(numbers, default=-1) + 1
    open_ = [number for number in range(total) if number not in numbers]
    outcome = [count_statuses(jobs), f"{len(open_)} not ended" if open_ else ""]
    say(console, f"\n{count(total, 'job')}: {', '.join(filter(None, outcome)) or 'none ended'}")
    if jobs:
        _show_tables(jobs, console)
    for job in jobs:
        if job.status == "failed" and job.same_as is None:
            _show_failure(job, console)
    if open_ and jobs:
        it = "it was" if len(open_) == 1 else "they were"
        say(console, f"\n{listed(open_)}: not ended; {it} stopped or killed, or still running", "red")


def _show_tables(jobs: Sequence[SweepJob], console: Console) -> None:
    rows = table(jobs)
    measured: list[str | None] = [goal for goal in SHOWN if _columns(rows, goal)]
    for goal in measured or [None]:
        for grid in _grids(rows, goal, _columns(rows, goal), console):
            console.print()
            console.print(grid)
    there = {key for row in rows for key in row.metrics}
    for key, sentence in EXPLAINED.items():
        if any(f"{goal}.{key}" in there for goal in SHOWN):
            console.print(Text(sentence, style="dim"))


def _show_failure(job: SweepJob, console: Console) -> None:
    say(console, f"\n{job.name} failed: {job.error or 'no reason given'}", "red")
    if where := job.error_file or job.path:
        say(console, f"  {'see  ' if job.error_file else 'run  '}  {where}")
    say(console, f"  again  {job.command}")


def _columns(rows: Sequence[Row], goal: str | None) -> dict[str, str]:
    """The headings of a goal's numbers, by their keys; none if nothing was measured."""
    shown = {f"{goal}.{key}": heading for key, heading in SHOWN.get(goal or "", {}).items()}
    window = _window(rows, goal)
    return {k: heading.format(window=window) for k, heading in shown.items() if any(k in row.metrics for row in rows)}


def _grids(rows: Sequence[Row], goal: str | None, columns: dict[str, str], console: Console) -> list[Table]:
    """The numbers of one goal in a table that fits, or in several if there is none."""

    def fits(grid: Table) -> bool:
        return console.measure(grid, options=console.options.update(width=1000)).maximum <= console.width

    layouts: list[tuple[bool, int]] = [(False, KEY_WIDTH), (True, KEY_WIDTH), (True, 0)]
    grids = [_grid(rows, goal, columns, stacked=stacked, key_width=width) for stacked, width in layouts]
    if fitting := next(filter(fits, grids), None):
        return [fitting]
    names, half = list(columns), (len(columns) + 1) // 2
    halves = [{name: columns[name] for name in part} for part in (names[:half], names[half:])]
    if len(columns) < 2 or not fits(_grid(rows, goal, {}, stacked=True, key_width=0)):
        return grids[-1:]  # long values are broken
    return [grid for part in halves for grid in _grids(rows, goal, part, console)]


def _grid(rows: Sequence[Row], goal: str | None, columns: Mapping[str, str], *, stacked: bool, key_width: int) -> Table:
    """Some numbers of one goal; ``stacked`` puts deviations below their means."""
    keys = keys_of(row.settings for row in rows)
    title = Text(f"{TITLES.get(goal, goal)}, %", style="bold") if goal else None
    grid = Table(title=title, title_justify="left", **TABLE_STYLE)
    for key in keys:
        widest = max(len(row.settings.get(key, DASH)) for row in rows)
        grid.add_column(folded(key, width=max(widest, key_width)), overflow="fold")
    grid.add_column("seeds", justify="right", no_wrap=True)
    for heading in columns.values():
        grid.add_column(heading, justify="right", no_wrap=True)
    cells = [_column(rows, key, stacked=stacked) for key in columns]
    for number, row in enumerate(rows):
        settings = (Text(row.settings.get(key, DASH)) for key in keys)
        grid.add_row(*settings, _seeds(row), *(column[number] for column in cells))
    return grid


def _seeds(row: Row) -> Text:
    asked = len({job.settings.get("seed") for job in row.jobs})
    return Text(f"{row.seeds}/{asked}", style="red") if row.seeds < asked else Text(str(row.seeds))


def _window(rows: Sequence[Row], goal: str | None) -> str:
    """The rounds that the mean is over; short runs have fewer than others."""
    found = (job.metric(f"{goal}.window") for row in rows for job in row.jobs)
    windows = sorted({int(window) for window in found if window is not None})
    return "few" if not windows else "–".join(str(n) for n in dict.fromkeys((windows[0], windows[-1])))


def _column(rows: Sequence[Row], key: str, *, stacked: bool) -> list[Text]:
    """One cell per row; the highest mean of the sweep is bold, where higher is better."""
    spreads = [row.shown(key) for row in rows]
    top = max((spread.mean for spread in spreads if spread), default=None)
    texts = [Text(_written(spread, "\n" if stacked else " ")) for spread in spreads]
    for text, spread in zip(texts, spreads, strict=True):
        if len(rows) > 1 and spread and spread.mean == top and key not in UNRANKED:
            text.stylize("bold")
    return texts


def _written(spread: SeedSpread | None, gap: str) -> str:
    if spread is None:
        return DASH
    return f"{100 * spread.mean:.1f}" + ("" if spread.std is None else f"{gap}± {100 * spread.std:.1f}")


# ---------------------------------------------------------------- as CSV
def write_csv(jobs: Sequence[SweepJob], path: Path) -> tuple[Path, Path]:
    """Writes one line per job into ``path`` and one per group into ``<path>-groups.csv``, in full precision.

    Accuracies are shares of one; what is absent is an empty field.
    """
    grouped = path.with_name(f"{path.stem}-groups.csv")
    rows = table(jobs)
    of_jobs, of_rows = keys_of(job.settings for job in jobs), keys_of(row.settings for row in rows)
    _write(path, [_job_fields(job, of_jobs) for job in jobs])
    _write(grouped, [_row_fields(row, of_rows) for row in rows])
    return path, grouped


def _job_fields(job: SweepJob, keys: Sequence[str]) -> dict[str, Any]:
    return {
        "job": job.number + 1,
        "status": job.status,
        "same_as": None if job.same_as is None else job.same_as + 1,
        **{key: job.settings.get(key) for key in keys},
        **{key: job.metric(key) for key in METRICS},
        **{f"{goal}.window": _whole(job.metric(f"{goal}.window")) for goal in SHOWN},
        "path": job.path,
        "error": job.error,
        "error_file": job.error_file,
        "command": job.command,
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _row_fields(row: Row, keys: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {**{key: row.settings.get(key) for key in keys}, "seeds": row.seeds}
    for key in METRICS:
        for part in ("mean", "std", "n"):
            fields[f"{key}.{part}"] = getattr(row.metrics.get(key), part, None)
    for goal in SHOWN:
        fields[f"{goal}.window"] = _window([row], goal) if _columns([row], goal) else None
    return {**fields, "status": row.status}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
