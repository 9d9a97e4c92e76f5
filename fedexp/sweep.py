"""What became of the jobs of a multirun: one small file per job, one table for all of them.

Every job writes its file into the folder named by the environment variable ``FEDEXP_SWEEP``. Jobs that differ in their
seed only form a group; a group's numbers are the mean and the sample standard deviation over its seeds.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedexp.display.figures import DASH, percent

ENV = "FEDEXP_SWEEP"
COLUMNS = (
    ("aggregation", "last"),
    ("aggregation", "best"),
    ("personalization", "last"),
    ("personalization", "best"),
)

Status = Literal["finished", "skipped", "failed"]


@dataclass(frozen=True)
class Job:
    """One job; ``skipped`` means that its result was on file already."""

    number: int
    overrides: list[str]
    status: Status
    path: str | None = None
    result: dict[str, Any] | None = None
    error: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The overrides by key, without the marks that add or force a key."""
        pairs = (override.lstrip("+").partition("=") for override in self.overrides)
        return {key: value for key, _, value in pairs}

    @property
    def command(self) -> str:
        """The command that runs this job again."""
        return shlex.join(["fedexp", *self.overrides])

    def metric(self, kind: str, name: str) -> float | None:
        """A number of the result, or None where there is none."""
        value = ((self.result or {}).get(kind) or {}).get(name)
        return None if value is None else float(value)


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation; one value has no deviation."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Row:
    """A group of jobs that are equal in everything but the seed."""

    settings: dict[str, str]  # of the overrides that vary over the sweep
    jobs: list[Job]
    seeds: int  # with a result
    metrics: dict[tuple[str, str], Spread]  # absent where no seed has the metric

    @property
    def status(self) -> str:
        """How many jobs ended in which way."""
        return count_statuses(self.jobs)


def record_job(
    folder: Path,
    number: int,
    *,
    overrides: Sequence[str],
    status: Status,
    path: Path | str | None = None,
    result: Mapping[str, Any] | None = None,
    error: str | None = None,
) -> Path:
    """Writes the file of one job, whole or not at all; an earlier one of the same number is replaced."""
    job = Job(
        number=number,
        overrides=list(overrides),
        status=status,
        path=None if path is None else str(path),
        result=None if result is None else dict(result),
        error=None if error is None else _first_line(error),
    )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"job-{number:04}.json"
    draft = folder / f".{file.name}.{os.getpid()}"
    draft.write_text(json.dumps(asdict(job), indent=1), encoding="utf-8")
    draft.replace(file)
    return file


def collect(folder: Path) -> list[Job]:
    """Reads the jobs of a sweep in the order of their numbers."""
    jobs = [Job(**json.loads(file.read_text(encoding="utf-8"))) for file in folder.glob("job-*.json")]
    return sorted(jobs, key=lambda job: job.number)


def table(jobs: Sequence[Job]) -> list[Row]:
    """Groups the jobs by everything but their seed, in the order of the first job of each group."""
    groups: dict[frozenset[tuple[str, str]], list[Job]] = {}
    for job in jobs:
        groups.setdefault(frozenset(_but_seed(job).items()), []).append(job)
    varying = _varying([_but_seed(job) for job in jobs])
    return [_row(group, varying) for group in groups.values()]


def show(jobs: Sequence[Job], console: Console) -> None:
    """Prints the table, the jobs that failed with the command for another try, and the jobs without a trace."""
    rows = table(jobs)
    console.print(f"\n{len(jobs)} jobs: {count_statuses(jobs)}", highlight=False)
    console.print(_grid(rows))
    for job in jobs:
        if job.status == "failed":
            _line(console, Text(f"job {job.number} failed: {job.error or 'no reason given'}", style="red"))
            _line(console, Text(f"  {job.command}"))
    lost = sorted(set(range(max((job.number for job in jobs), default=-1))) - {job.number for job in jobs})
    if lost:
        numbers = ", ".join(map(str, lost))
        _line(console, Text(f"no record of job {numbers}: killed or still running; repeat the sweep", style="red"))


def write_csv(jobs: Sequence[Job], path: Path) -> tuple[Path, Path]:
    """Writes one line per job into ``path`` and one per group into ``<path>-groups.csv``, in full precision.

    Accuracies are shares of one; what is absent is an empty field.
    """
    grouped = path.with_name(f"{path.stem}-groups.csv")
    _write(path, [_job_fields(job) for job in jobs])
    _write(grouped, [_row_fields(row) for row in table(jobs)])
    return path, grouped


def count_statuses(jobs: Iterable[Job]) -> str:
    """Says how many jobs ended in which way, ``2 finished, 1 failed``."""
    counts = Counter(job.status for job in jobs)
    return ", ".join(f"{counts[status]} {status}" for status in ("finished", "skipped", "failed") if counts[status])


def _but_seed(job: Job) -> dict[str, str]:
    return {key: value for key, value in job.settings.items() if key != "seed"}


def _varying(settings: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({each.get(key) for each in settings}) > 1]


def _row(group: list[Job], varying: Sequence[str]) -> Row:
    # The same seed twice is the same run, not another sample.
    seeds = {job.settings.get("seed"): job for job in group if job.result is not None}
    metrics = {column: spread for column in COLUMNS if (spread := _spread(seeds.values(), column))}
    settings = {key: value for key, value in _but_seed(group[0]).items() if key in varying}
    return Row(settings=settings, jobs=group, seeds=len(seeds), metrics=metrics)


def _spread(jobs: Iterable[Job], column: tuple[str, str]) -> Spread | None:
    values = [value for job in jobs if (value := job.metric(*column)) is not None]
    if not values:
        return None
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def _grid(rows: Sequence[Row]) -> Table:
    keys = list(dict.fromkeys(key for row in rows for key in row.settings))
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for key in keys:
        grid.add_column(key, overflow="fold")
    grid.add_column("seeds", justify="right", no_wrap=True)
    for kind, name in COLUMNS:
        grid.add_column(f"{kind}\n{name}" if name == "last" else f"\n{name}", justify="right", no_wrap=True)
    grid.add_column("status")
    tops = {
        column: max((row.metrics[column].mean for row in rows if column in row.metrics), default=None)
        for column in COLUMNS
    }
    for row in rows:
        cells = [_cell(row.metrics.get(column), tops[column] if len(rows) > 1 else None) for column in COLUMNS]
        grid.add_row(*(row.settings.get(key, DASH) for key in keys), str(row.seeds), *cells, row.status)
    return grid


def _cell(spread: Spread | None, top: float | None) -> Text:
    if spread is None:
        return Text(DASH)
    return Text(percent(spread.mean, spread.std), style="bold" if spread.mean == top else "")


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)  # a wrapped command cannot be pasted


def _job_fields(job: Job) -> dict[str, Any]:
    metrics = {f"{kind}_{name}": job.metric(kind, name) for kind, name in COLUMNS}
    outcome = {"path": job.path, "error": job.error, "command": job.command}
    return {"job": job.number, "status": job.status, **job.settings, **metrics, **outcome}


def _row_fields(row: Row) -> dict[str, Any]:
    fields: dict[str, Any] = {**row.settings, "seeds": row.seeds}
    for (kind, name), spread in row.metrics.items():
        fields |= {f"{kind}_{name}_mean": spread.mean, f"{kind}_{name}_std": spread.std, f"{kind}_{name}_n": spread.n}
    return fields | {"status": row.status}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _first_line(error: str) -> str:
    return (error.strip().splitlines() or [""])[0]
