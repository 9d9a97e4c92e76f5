"""What became of the jobs of a multirun: one small file per job, one table for all of them.

Every job writes its file into the folder named by the environment variable ``FEDEXP_SWEEP``. Jobs that differ in their
seed only form a group; a group's numbers are the mean and the sample standard deviation over its seeds.
"""

from __future__ import annotations

import csv
import json
import re
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
from fedexp.errors import DamagedError
from fedexp.files import read_json, write_atomically, writing

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
    file = folder / f"job-{number:04}.json"
    with writing(file):
        write_atomically(file, json.dumps(asdict(job), indent=1).encode(), sync=False)
    return file


def collect(folder: Path) -> list[Job]:
    """Reads the jobs of a sweep in the order of their numbers."""
    jobs = (_read(file) for file in folder.glob("job-*.json"))
    return sorted((job for job in jobs if job), key=lambda job: job.number)


def _read(file: Path) -> Job | None:
    """A job; None if its file is damaged, which makes it one without a record."""
    try:
        job = Job(**read_json(file))
    except (DamagedError, TypeError):
        return None
    return job if isinstance(job.number, int) else None


def table(jobs: Sequence[Job]) -> list[Row]:
    """Groups the jobs by everything but their seed, in the order of the first job of each group."""
    groups: dict[frozenset[tuple[str, str]], list[Job]] = {}
    for job in jobs:
        groups.setdefault(frozenset(_but_seed(job).items()), []).append(job)
    varying = _varying([_but_seed(job) for job in jobs])
    return [_row(group, varying) for group in groups.values()]


def show(jobs: Sequence[Job], console: Console) -> None:
    """Prints the table, the jobs that failed with the command for another try, and the jobs without a trace."""
    _line(console, Text(f"\n{len(jobs)} jobs: {count_statuses(jobs) or 'none ended'}"))
    if not jobs:
        return
    console.print(_grid(table(jobs)))
    _line(console, Text("mean ± sample standard deviation over seeds", style="dim"))
    for job in jobs:
        if job.status == "failed":
            _line(console, Text(f"\njob {job.number} failed: {job.error or 'no reason given'}", style="red"))
            _line(console, Text(f"  {job.command}"))
    numbers = {job.number for job in jobs}
    lost = ", ".join(str(number) for number in range(max(numbers)) if number not in numbers)
    if lost:
        _line(console, Text(f"\nno record of job {lost}: killed or still running; repeat the sweep", style="red"))


def write_csv(jobs: Sequence[Job], path: Path) -> tuple[Path, Path]:
    """Writes one line per job into ``path`` and one per group into ``<path>-groups.csv``, in full precision.

    Accuracies are shares of one; what is absent is an empty field.
    """
    grouped = path.with_name(f"{path.stem}-groups.csv")
    rows = table(jobs)
    _write(path, [_job_fields(job, _keys(job.settings for job in jobs)) for job in jobs])
    _write(grouped, [_row_fields(row, _keys(row.settings for row in rows)) for row in rows])
    return path, grouped


def count_statuses(jobs: Iterable[Job]) -> str:
    """Says how many jobs ended in which way, ``2 finished, 1 failed``."""
    counts = Counter(job.status for job in jobs)
    return ", ".join(f"{counts[status]} {status}" for status in ("finished", "skipped", "failed") if counts[status])


def _but_seed(job: Job) -> dict[str, str]:
    return {key: value for key, value in job.settings.items() if key != "seed"}


def _varying(settings: Sequence[Mapping[str, str]]) -> list[str]:
    return [key for key in _keys(settings) if len({each.get(key) for each in settings}) > 1]


def _keys(settings: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for each in settings for key in each))


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
    keys = _keys(row.settings for row in rows)
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for key in keys:
        widest = max(len(row.settings.get(key, DASH)) for row in rows)
        grid.add_column(_heading(key, keys, width=max(widest, 12)), overflow="fold")
    grid.add_column("seeds", justify="right", no_wrap=True)
    pairs = {kind: _pairs(rows, kind) for kind in dict(COLUMNS)}
    for kind, cells in pairs.items():
        half = (len(cells[0]) - 2) // 2
        grid.add_column(f"{kind}, %\n{'last':>{half}}  {'best':>{half}}", justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        asked = len({job.settings.get("seed") for job in row.jobs})
        seeds = Text(f"{row.seeds}/{asked}", style="red") if row.seeds < asked else Text(str(row.seeds))
        settings = (Text(row.settings.get(key, DASH)) for key in keys)
        grid.add_row(*settings, seeds, *(cells[number] for cells in pairs.values()))
    return grid


def _heading(key: str, keys: Sequence[str], *, width: int) -> str:
    """The last word of a key where that is clear, in lines no wider than ``width`` if it can be."""
    leaf = key.rpartition(".")[2]
    clear = sum(other.rpartition(".")[2] == leaf for other in keys) == 1
    lines = [""]
    for piece in re.findall(r"[^._]*[._]?", leaf if clear else key):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _pairs(rows: Sequence[Row], kind: str) -> list[Text]:
    """One cell per row with the last and the best accuracy side by side; the highest mean of the sweep is bold."""
    halves = [_column(rows, column) for column in COLUMNS if column[0] == kind]
    width = max(len(text) for half in halves for text in half)
    for text in (text for half in halves for text in half):
        text.pad_left(width - len(text))
    return [Text("  ").join(texts) for texts in zip(*halves, strict=True)]


def _column(rows: Sequence[Row], column: tuple[str, str]) -> list[Text]:
    spreads = [row.metrics.get(column) for row in rows]
    top = max((spread.mean for spread in spreads if spread), default=None)
    texts = [Text(percent(spread.mean, spread.std)[:-2]) if spread else Text(DASH) for spread in spreads]
    for text, spread in zip(texts, spreads, strict=True):
        if len(rows) > 1 and spread and spread.mean == top:
            text.stylize("bold")
    return texts


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)  # a wrapped command cannot be pasted


def _job_fields(job: Job, keys: Sequence[str]) -> dict[str, Any]:
    settings = {key: job.settings.get(key) for key in keys}
    metrics = {f"{kind}_{name}": job.metric(kind, name) for kind, name in COLUMNS}
    outcome = {"path": job.path, "error": job.error, "command": job.command}
    return {"job": job.number, "status": job.status, **settings, **metrics, **outcome}


def _row_fields(row: Row, keys: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {**{key: row.settings.get(key) for key in keys}, "seeds": row.seeds}
    for kind, name in COLUMNS:
        spread = row.metrics.get((kind, name))
        for part in ("mean", "std", "n"):
            fields[f"{kind}_{name}_{part}"] = getattr(spread, part, None)
    return {**fields, "status": row.status}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _first_line(error: str) -> str:
    return (error.strip().splitlines() or [""])[0]
