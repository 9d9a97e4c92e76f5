"""Runs the jobs of a request as one sweep: an explicit list, handed to Hydra's launcher as a grid would be."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from rich.console import Console

from fedexp import cli, sweep
from fedexp.config.compose import composed_hydra, literal
from fedexp.config.hydra_loader import loader
from fedexp.config.make import make
from fedexp.config.sources import Sources, search_packages
from fedexp.errors import DataError
from fedexp.reproduce.collect import observed
from fedexp.reproduce.jobs import ReproJob
from fedexp.runs.directory import RunDir
from fedexp.runs.sweep_manifest import Manifest, rounds_done
from fedexp.system import limits

MODE = "hydra.mode=MULTIRUN"


@dataclass(frozen=True)
class Launched:
    """What became of a sweep."""

    errors: dict[Path, str]  # by run directory: why jobs failed
    trouble: str = ""  # why the launcher itself has failed


def finished(job: ReproJob) -> bool:
    """Whether a job's run is on file, observed by the probes of its entry, and is not to be done again."""
    return rounds_done(job.config) is None and (not job.entry.probes or observed(job, RunDir(job.path).result() or {}))


def check_launcher(launcher: Sequence[str], jobs: int) -> list[str]:
    """Overrides of Hydra itself, as the launcher is to see them.

    Raises:
        ConfigError: If this launcher cannot start jobs here.
    """
    lines = [*launcher, MODE]
    return [*lines, *cli.check_launcher(composed_hydra(lines), jobs)]


def missing_data(jobs: Sequence[ReproJob], console: Console) -> dict[str, str]:
    """By scene, what its data set lacks and how to get it. Each data set is read once, as its runs will."""
    with console.status("loading PyTorch and Lightning"):
        cli.import_all()
    complaints: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for job in jobs:
        node = json.dumps(job.config["data"], sort_keys=True)
        if node not in complaints:
            complaints[node] = ""
            try:
                make(job.config["data"]).load()
            except DataError as error:
                complaints[node] = str(error)
        if complaints[node]:
            lacking[job.scene.name] = complaints[node]
    return lacking


def launch(jobs: Sequence[ReproJob], lines: Sequence[str], console: Console) -> Launched:
    """Runs jobs that are not finished; the others count as done in what is said on the way.

    Args:
        jobs: All jobs of the sweep, each with a run of its own.
        lines: Overrides of Hydra itself, see ``check_launcher``.
        console: Where the sweep is announced.
    """
    done = [job for job in jobs if finished(job)]
    due = [_anew(job) if rounds_done(job.config) is None else job for job in jobs if not finished(job)]
    if not due:
        return Launched({})
    place = jobs[0].path.parent  # whatever is done already: the same sweep has the same manifest
    manifest = Manifest.of([(list(job.overrides), job.config) for job in (*done, *due)], place)
    manifest.write()
    sweep.say(console, sweep.announce(manifest))
    os.environ[sweep.ENV] = str(manifest.reports.absolute())
    trouble = ""
    try:
        with limits.explained():
            _start(due, len(done), lines)
    except SystemExit as end:  # of a job that could not even report
        trouble = f"A job has ended with exit code {end.code}."
    except Exception as error:
        trouble = f"The launcher has failed: {type(error).__name__}: {error}"
    reports = sweep.collect(manifest.reports)
    errors = {(*done, *due)[r.number].path: r.error for r in reports if r.error is not None}
    return Launched(errors, trouble)


def _anew(job: ReproJob) -> ReproJob:
    """The same run from its first round, since a probe can observe no round that is over."""
    return replace(job, overrides=(*job.overrides, "force=true"), config={**job.config, "force": True})


def _start(jobs: Sequence[ReproJob], first: int, lines: Sequence[str]) -> None:
    """Hands jobs to the launcher, as Hydra's sweepers do; they count from ``first``."""
    search_packages()
    sources = Sources()
    own = loader(sources)
    place = [f"{key}={literal(jobs[0].config[key])}" for key in ("out", "name")]
    config = own.load_configuration(sources.name, [*lines, *place], RunMode.MULTIRUN)
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=HydraContext(config_loader=own, callbacks=Callbacks(config)),
        task_function=cli.job,
        config=config,
    )
    for end in launcher.launch([list(job.overrides) for job in jobs], initial_job_idx=first):
        _ = end.return_value  # raises what a job has raised
