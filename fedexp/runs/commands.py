"""The commands that make runs: of a sweep one, where its jobs are all combinations of some values."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path

from fedexp.config.compose import continuing, overrides_of, without
from fedexp.errors import FedexpError
from fedexp.runs.directory import RunDir
from fedexp.runs.status import harmless, manifests
from fedexp.runs.sweep_manifest import Manifest

PROGRAM = ("python", "-m", "fedexp")
OF_THIS_MACHINE = ("out",)
Job = Sequence[str]  # its overrides


def commands_of(folder: Path, paths: Iterable[Path]) -> list[str]:
    """The commands of the sweeps below a folder, then of those of the runs that no sweep has announced.

    A run whose settings this version cannot compose any more has none, and neither has one with an override that
    might run code when it is pasted.
    """
    sweeps = manifests(folder)
    announced = {place for sweep in sweeps for place in _places(sweep)}
    jobs = [[job.overrides for job in sweep.jobs if job.same_as is None] for sweep in sweeps]
    alone = [path for path in paths if os.path.realpath(path) not in announced]
    jobs.append([overrides for path in alone for overrides in _overrides(path)])
    return list(dict.fromkeys(line for each in jobs for line in _lines(each)))


def _places(sweep: Manifest) -> Iterator[str]:
    return (os.path.realpath(sweep.folder / job.path) for job in sweep.jobs)


def _overrides(path: Path) -> Iterator[list[str]]:
    try:
        if config := RunDir(path).config():
            yield overrides_of(config)
    except (FedexpError, KeyError, TypeError, AttributeError, ValueError):  # not what this version writes
        return


def _lines(jobs: Sequence[Job]) -> list[str]:
    """One command for all jobs if they are a grid, else one for each."""
    own = [without(continuing(job), *OF_THIS_MACHINE) for job in jobs]
    own = [job for job in own if all(map(harmless, job))]
    grid = _grid(own)
    return [shlex.join([*PROGRAM, *grid])] if grid else [shlex.join([*PROGRAM, *job]) for job in own]


def _grid(jobs: Sequence[Job]) -> list[str]:
    """The arguments of one command that has these jobs; empty if there is none."""
    if len(jobs) < 2:
        return []
    pairs = [dict(override.partition("=")[::2] for override in job) for job in jobs]
    values = {key: list(dict.fromkeys(job.get(key, "") for job in pairs)) for job in pairs for key in job}
    combinations = {tuple(job.get(key, "") for key in values) for job in pairs}
    whole = len(combinations) == len(jobs) == prod(map(len, values.values()))
    if not whole or combinations != set(product(*values.values())) or any("" in own for own in values.values()):
        return []
    return ["-m", *(f"{key}={','.join(own)}" for key, own in values.items())]
