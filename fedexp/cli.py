"""The command line: ``python -m fedexp`` and ``fedexp``. Config errors and help answer before torch is imported."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from fedexp import limits, resources, scratch, stop, sweep
from fedexp.config import Config, choices_of, composed, composed_hydra, conf_dir, plain
from fedexp.display.prefixed import prefixed
from fedexp.errors import ConfigError, FedexpError
from fedexp.manifest import Manifest

if TYPE_CHECKING:
    from fedexp.api import Result

MISSING = "This runs what is missing:"
SUBMITTED = "What was submitted goes on; scancel --name=fedexp stops it. Later, this runs what is missing:"


@dataclass(frozen=True)
class Checked:
    """A command line that makes sense: the first job, and the sweep if it is one of a known set of jobs."""

    first: Config
    sweep: Manifest | None = None
    arguments: Sequence[str] = ()  # of the sweep, as Hydra is to see them
    stopped: str = "This continues from the last complete round:"  # said after Ctrl-C, before the command


def main() -> None:
    """Runs what the command line says. Ctrl-C and SIGTERM end it in order, with the command that continues."""
    arguments = sys.argv[1:]
    checked: Checked | None = None
    with stop.heeding():
        try:
            checked = check(arguments)
            code = _perform(checked)
        except ConfigError as error:
            code = _complain(error)
        except KeyboardInterrupt as told:
            code = stop.exit_code(told)
            said = checked.stopped if checked else Checked.stopped
            Console().print(f"Stopped. {said}\n  {_again(arguments)}", soft_wrap=True, markup=False, highlight=False)
        sys.exit(code)


def _perform(checked: Checked | None) -> int:
    """Hands a command line over to Hydra, and ends a sweep with its table; returns the exit code."""
    if checked and not checked.arguments:
        return _launch()  # one run
    manifest = checked.sweep if checked else None
    if checked:
        sys.argv[1:] = checked.arguments
    with nullcontext(manifest.reports.absolute()) if manifest else scratch.folder() as reports:
        if manifest:
            manifest.write()
        os.environ[sweep.ENV] = str(reports)
        code = 0
        try:
            code = _launch()
        finally:  # also after Ctrl-C
            jobs = sweep.collect(reports)
            if jobs or (manifest and code):  # a launcher that has failed leaves holes, if nothing else
                _show_sweep(jobs, manifest)
    return code or int(any(j.status == "failed" for j in jobs))


def _launch() -> int:
    """Starts Hydra; returns the exit code."""
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
    except SystemExit as end:  # of a run, or because a launcher has failed: what is on file shall be shown
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _again(arguments: Sequence[str]) -> str:
    """The command that goes on where this one has stopped."""
    program = ["fedexp"] if Path(sys.argv[0]).stem == "fedexp" else ["python", "-m", "fedexp"]
    return shlex.join([*program, *(a for a in arguments if a.lstrip("+").partition("=")[0] != "force")])


def job(node: DictConfig) -> None:
    """One run, or one job of a sweep. A failed job of a sweep is reported in the table and stops no other."""
    hydra_config = HydraConfig.get()
    config = plain(node, hydra_config.runtime.choices)
    if hydra_config.mode == RunMode.MULTIRUN:
        reports = Path(os.environ[sweep.ENV])
        at_once = resources.at_once(hydra_config.launcher.get("n_jobs", 1), sys.maxsize)
        with resources.shared(at_once, reports):
            _run_job(config, hydra_config.job.num, list(hydra_config.overrides.task), reports, alone=at_once == 1)
        return
    try:
        _run(config, Console())
    except FedexpError as error:
        sys.exit(_complain(error))


def _run_job(config: Config, number: int, overrides: list[str], reports: Path, *, alone: bool) -> None:
    report = partial(sweep.record_job, reports, number, overrides=overrides)
    console = Console() if alone else prefixed(f"job {number} │ ")
    console.rule(f"job {number}: {' '.join(overrides)}")
    try:
        result = _run(config, console)
        if result.status != "planned":
            report(status=result.status, path=result.path, result=result.summary)
    except Exception as error:
        if not isinstance(error, FedexpError):
            traceback.print_exc()
        report(status="failed", error=f"{type(error).__name__}: {error}")


def check(arguments: list[str]) -> Checked | None:
    """Composes what the arguments ask for, so that a misspelt one is explained before anything else happens.

    Of a sweep, every job is composed. None if Hydra is to answer.
    """
    if any(a.startswith("-") and a not in ("-m", "--multirun") for a in arguments):
        return None  # help, completion, or Hydra's own options
    lines = [a for a in arguments if not a.startswith("-")]
    overrides = _parsed(lines)
    if len(lines) == len(arguments) and not any(o.key_or_group in ("sweep", "hydra.mode") for o in overrides):
        return Checked(composed(lines))
    return _check_sweep(overrides)


def _check_sweep(overrides: Sequence[Override]) -> Checked:
    swept = {o.key_or_group for o in overrides if o.is_sweep_override()}
    lines = [_line(o, swept) for o in overrides]
    settings = composed_hydra(lines)
    if "array_parallelism" in settings.launcher and shutil.which("srun") is None:
        raise ConfigError("hydra/launcher: there is no SLURM here (no srun). submitit_local does without, or joblib.")
    preset = _parsed([f"{k}={v}" for k, v in (settings.sweeper.get("params") or {}).items()])
    axes = {o.get_key_element(): _values(o) for o in (*preset, *overrides) if not o.is_hydra_override()}
    jobs = [list(values) for values in itertools.product(*(v for v in axes.values() if v))]
    configs = [composed(job) for job in jobs]
    drawn = any(not values for values in axes.values())  # by a sweeper plugin
    if (n_jobs := settings.launcher.get("n_jobs")) is not None:
        lines.append(f"hydra.launcher.n_jobs={resources.at_once(n_jobs, len(jobs))}")
    return Checked(
        first=configs[0],
        sweep=None if drawn or configs[0]["plan"] else Manifest.of(list(zip(jobs, configs, strict=True))),
        arguments=["--multirun", *lines],
        stopped=SUBMITTED if "submitit_folder" in settings.launcher else MISSING,
    )


def _line(override: Override, swept: set[str]) -> str:
    """An override as Hydra is to see it. What belongs to a swept group is swept with it, over its one value.

    Hydra would try it on the group's default choice otherwise, which may have no such setting.
    """
    if override.is_sweep_override() or override.key_or_group.partition(".")[0] not in swept:
        return str(override.input_line)
    return f"{override.get_key_element()}=choice({override.get_value_element_as_str()})"


def _parsed(lines: list[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(lines)
    except HydraException as cause:
        raise ConfigError(str(cause)) from cause


def _values(override: Override) -> list[str]:
    """One override for each value of a swept key; none where a sweeper plugin draws them."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    value, key = override.value(), override.get_key_element()
    if isinstance(value, Glob):
        return [f"{key}={choice}" for choice in value.filter(choices_of(override.key_or_group))]
    return [f"{key}={v}" for v in override.sweep_string_iterator()] if override.is_discrete_sweep() else []


def _show_sweep(jobs: list[sweep.Job], manifest: Manifest | None) -> None:
    """The table of all jobs, on screen and as CSV."""
    console = Console()
    sweep.show(jobs, console)
    if manifest and jobs:
        path = manifest.file(".csv")
        sweep.write_csv(jobs, path)
        console.print(f"table  {path}", highlight=False)
    if manifest and len(jobs) < len(manifest.jobs):
        console.print(f"holes  python -m fedexp.runs status {shlex.quote(str(manifest.folder))}", highlight=False)


def _run(config: Config, console: Console) -> Result:
    with limits.explained():
        with stop.later():
            from fedexp.lean import import_lightning

            import_lightning()
            import fedexp.build  # noqa: F401 - all that a run needs
            from fedexp.api import run

        return run(config, console=console)


def _complain(error: FedexpError) -> int:
    """Says what is wrong; 2 for the command line, 1 for the rest."""
    Console(stderr=True, soft_wrap=True).print(f"[bold red]{type(error).__name__}[/]: ", end="")
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(str(error))
    return 2 if isinstance(error, ConfigError) else 1
