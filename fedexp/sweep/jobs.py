"""The report of a job: one small file in the folder named by the environment variable ``FEDEXP_SWEEP``."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from fedexp.config.compose import continuing
from fedexp.errors import DamagedError
from fedexp.runs.names import ERROR
from fedexp.system.files import read_json, write_atomically, writing

ENV = "FEDEXP_SWEEP"

Status = Literal["finished", "skipped", "failed", "planned"]


@dataclass(frozen=True)
class SweepJob:
    """One job; ``skipped`` means that its result was on file already, ``planned`` that only its cost was counted."""

    number: int  # from 0, as Hydra counts
    overrides: list[str]
    status: Status
    path: str | None = None  # of its run, whether or not it was begun
    result: dict[str, Any] | None = None  # result.json, or the cost of a planned job
    error: str | None = None
    seconds: float | None = None  # that it took
    same_as: int | None = None  # the number of an earlier job with the same run, which alone was run
    evaluate: dict[str, Any] | None = None  # its own settings of ``evaluate``, if another job's run is its run
    options: list[str] = field(default_factory=list)  # of its command, --config-dir FOLDER

    @property
    def name(self) -> str:
        """The job as people count: the first is job 1."""
        return f"job {self.number + 1}"

    @property
    def settings(self) -> dict[str, str]:
        """The overrides by key, without the marks that add or force a key."""
        pairs = (override.lstrip("+").partition("=") for override in self.overrides)
        return {key: value for key, _, value in pairs}

    @property
    def command(self) -> str:
        """The command that runs this job again."""
        return shlex.join(["fedexp", *self.options, *continuing(self.overrides)])

    @property
    def error_file(self) -> Path | None:
        """Where the traceback of its error is; None if its run was never begun."""
        file = Path(self.path, ERROR) if self.path and self.error else None
        return file if file and file.exists() else None

    def metric(self, key: str) -> float | None:
        """A number of the result by its key in result.json, ``personalization.last``; None where there is none."""
        node: Any = self.result
        for name in key.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        return float(node) if isinstance(node, int | float) else None


def record_job(
    folder: Path,
    number: int,
    *,
    overrides: Sequence[str],
    status: Status,
    path: Path | str | None = None,
    result: Mapping[str, Any] | None = None,
    error: str | None = None,
    seconds: float | None = None,
    same_as: int | None = None,
    evaluate: Mapping[str, Any] | None = None,
    options: Sequence[str] = (),
) -> Path:
    """Writes the file of one job, whole or not at all; an earlier one of the same number is replaced."""
    job = SweepJob(
        number=number,
        overrides=list(overrides),
        status=status,
        path=None if path is None else str(path),
        result=None if result is None else dict(result),
        error=None if error is None else _first_line(error),
        seconds=seconds,
        same_as=same_as,
        evaluate=None if evaluate is None else dict(evaluate),
        options=list(options),
    )
    file = report_file(folder, number)
    with writing(file):
        write_atomically(file, json.dumps(asdict(job), indent=1).encode(), sync=False)
    return file


def report_file(folder: Path, number: int) -> Path:
    """The file of one job."""
    return folder / f"job-{number:04}.json"


def collect(folder: Path) -> list[SweepJob]:
    """Reads the jobs of a sweep in the order of their numbers. Jobs with the same run get the outcome of the first."""
    found = (read_job(file) for file in folder.glob("job-*.json"))
    jobs = {job.number: job for job in found if job}
    outcomes = (_outcome(jobs[number], jobs) for number in sorted(jobs))
    return [job for job in outcomes if job]


def read_job(file: Path) -> SweepJob | None:
    """A job; None if its file is damaged, which makes it one without a record."""
    try:
        job = SweepJob(**read_json(file))
    except (DamagedError, TypeError):
        return None
    return job if isinstance(job.number, int) else None


def _outcome(job: SweepJob, jobs: Mapping[int, SweepJob]) -> SweepJob | None:
    if job.same_as is None:
        return job
    first = jobs.get(job.same_as)
    if first is None:
        return None
    status: Status = "failed" if first.status == "failed" else "skipped"
    return replace(job, status=status, path=first.path, result=first.result, error=first.error)


# ---------------------------------------------------------------- words for jobs
TABLE_STYLE: dict[str, Any] = {"box": None, "padding": (0, 2, 0, 0), "header_style": "dim", "pad_edge": False}
KEY_WIDTH = 12  # of a heading that names a setting, where there is room


def listed(numbers: Iterable[int]) -> str:
    """Names jobs by their numbers, ``job 3`` or ``jobs 1, 3 to 7 and 9``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = [w for a, b in spans for w in _span(a + 1, b + 1)]
    noun = "job" if len(spans) == 1 and spans[0][0] == spans[0][1] else "jobs"
    return f"{noun} {' and '.join(filter(None, [', '.join(words[:-1]), words[-1]]))}"


def _span(first: int, last: int) -> list[str]:
    return [f"{first} to {last}"] if last > first + 1 else [str(n) for n in range(first, last + 1)]


def count_statuses(jobs: Iterable[SweepJob]) -> str:
    """Says how many jobs ended in which way, ``2 finished, 1 failed``."""
    counts = Counter(job.status for job in jobs)
    return ", ".join(f"{counts[status]} {status}" for status in ("finished", "skipped", "failed") if counts[status])


def varying(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values are not the same everywhere."""
    return [key for key in keys_of(settings) if len({each.get(key) for each in settings}) > 1]


def keys_of(settings: Iterable[Mapping[str, str]]) -> list[str]:
    """All keys, in the order in which they first appear."""
    return list(dict.fromkeys(key for each in settings for key in each))


def folded(key: str, *, width: int) -> str:
    """A whole key, in lines no wider than ``width`` if it can be."""
    lines = [""]
    for piece in filter(None, re.findall(r"[^._]*[._]?", key)):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def say(console: Console, text: str, style: str = "") -> None:
    """Prints a line of any length: a wrapped command cannot be pasted."""
    console.print(Text(text, style=style), soft_wrap=True)


def _first_line(error: str) -> str:
    return (error.strip().splitlines() or [""])[0]
