"""Which runs are done, and how to go on with the others."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedexp import sweep
from fedexp.config import overrides_of, title
from fedexp.display.figures import DASH
from fedexp.errors import ConfigError, DamagedError, FedexpError
from fedexp.manifest import Manifest
from fedexp.rundir import RunDir

State = Literal["done", "running", "partial", "failed", "missing"]
COLOURS: dict[State, str] = {
    "done": "green", "running": "cyan", "partial": "yellow", "failed": "red", "missing": "magenta",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """What a sweep knows of a run: its overrides, those that vary over the sweep, and why it failed the last time."""

    overrides: list[str]
    label: str
    error: str | None


@dataclass(frozen=True)
class Run:
    """One run as it stands."""

    path: Path
    state: State
    rounds: str
    label: str
    note: str = ""
    command: str = ""  # to go on with; empty where there is nothing to do


def show_status(folder: Path, console: Console) -> int:
    """Prints every run below a folder and the commands for the holes; 0 if everything is done."""
    runs = survey(folder)
    counts = Counter(run.state for run in runs)
    console.print(f"{len(runs)} runs: " + ", ".join(f"{counts[state]} {state}" for state in COLOURS if counts[state]))
    grid = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    for run in runs:
        grid.add_row(Text(run.state, COLOURS[run.state]), run.rounds, Text(str(run.path)), Text(run.label))
    console.print(grid, soft_wrap=False)
    for run in (run for run in runs if run.command):
        console.print(f"\n{run.state}  {run.path.name}" + (f"  {run.note}" if run.note else ""))
        console.print(f"  {run.command}")
    return int(any(run.state != "done" for run in runs))


def survey(folder: Path) -> list[Run]:
    """Every run below a folder, and those that sweeps there have announced.

    Raises:
        FedexpError: If there is no such folder, or nothing in it.
    """
    folder = Path(os.path.normpath(folder))
    if not folder.is_dir():
        raise FedexpError(f"{folder} is not a folder. Runs are in <out>/<name>, multirun/main by default.")
    known = {path: job for file in sorted(folder.rglob("sweep-*.json")) for path, job in _announced(file)}
    found = {path.parent for path in folder.rglob("config.yaml") if (path.parent / "plan.json").exists()}
    if not known and not found:
        raise FedexpError(
            f"There is no run and no sweep in {folder}. Runs are in <out>/<name>, multirun/main by default."
        )
    return [_look(path, known.get(path)) for path in [*known, *sorted(found - known.keys())]]


def _announced(file: Path) -> Iterator[tuple[Path, Job]]:
    manifest = Manifest.read(file)
    errors = {job.number: job.error for job in sweep.collect(manifest.reports) if job.status == "failed"}
    everywhere = set.intersection(*(set(job.overrides) for job in manifest.jobs))
    for number, job in enumerate(manifest.jobs):
        label = " ".join(o for o in job.overrides if o not in everywhere)
        yield Path(os.path.normpath(manifest.folder / job.path)), Job(job.overrides, label, errors.get(number))


def _look(path: Path, job: Job | None) -> Run:
    try:
        return _seen(path, job)
    except DamagedError as error:
        command = _command([*job.overrides, "force=true"]) if job else ""
        return Run(path, "failed", "?", job.label if job else "", str(error), command)


def _seen(path: Path, job: Job | None) -> Run:
    rundir = RunDir(path)
    config = rundir.config()
    if config is None:
        error = job.error if job else None
        command = _command(job.overrides) if job else ""
        return Run(path, "failed" if error else "missing", DASH, job.label if job else "", error or "", command)
    label = job.label if job and job.label else title(config)
    total = config["rounds"]
    if rundir.result() is not None:
        return Run(path, "done", f"{total}/{total}", label)
    if holder := rundir.holder():
        rounds = deque((row["round"] for row in rundir.rows("clients.csv")), maxlen=1)
        return Run(path, "running", f"{rounds[0] if rounds else 0}/{total}", label, holder)
    error = rundir.error()
    try:
        command = _command(job.overrides if job else overrides_of(config))
    except ConfigError as cause:
        command = f"its settings are no longer those of this version: {cause}"
    return Run(path, "failed" if error else "partial", f"{_kept(path)}/{total}", label, error or "", command)


def _kept(path: Path) -> str:
    """The rounds that need not be run again; a question mark if the checkpoint is damaged."""
    pointer = path / "checkpoint" / "latest.json"
    try:
        return str(json.loads(pointer.read_text())["round"]) if pointer.exists() else "0"
    except (ValueError, KeyError):
        return "?"


def _command(overrides: list[str]) -> str:
    return shlex.join(["python", "-m", "fedexp", *overrides])
