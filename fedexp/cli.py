"""The command line: ``python -m fedexp`` and ``fedexp``. Config errors and help answer before torch is imported."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from fedexp import sweep
from fedexp.config import targets
from fedexp.config.arguments import VERSION, parse_arguments
from fedexp.config.compose import Config, composed, composed_hydra, composing, continuing, plain
from fedexp.config.help import help_text
from fedexp.config.hydra_loader import BASE, loader, use_loader
from fedexp.config.hydra_settings import PLAN_DIR
from fedexp.config.identity import run_path
from fedexp.config.sources import Sources, search_packages
from fedexp.display.prefixed import prefixed
from fedexp.errors import ConfigError, FedexpError
from fedexp.runs.sweep_manifest import Manifest
from fedexp.sweep.expand import combinations, parsed
from fedexp.system import limits, resources, scratch, signals
from fedexp.terminal.command import complain
from fedexp.terminal.console import open_console

if TYPE_CHECKING:
    from fedexp.api import Result

MISSING = "This runs what is missing:"
SUBMITTED = "What was submitted goes on; scancel --name=fedexp stops it. Later, this runs what is missing:"


@dataclass(frozen=True)
class Checked:
    """A command line that makes sense: the first job, and the sweep if it is one of a known set of jobs."""

    first: Config
    sources: Sources
    sweep: Manifest | None = None
    arguments: Sequence[str] = ()  # as Hydra is to see them
    single: bool = False  # one run
    stopped: str = "This continues from the last complete round:"  # said after Ctrl-C, before the command


def main() -> None:
    """Runs what the command line says. Ctrl-C and SIGTERM end it in order, with the command that continues."""
    arguments = sys.argv[1:]
    if "--version" in arguments:
        open_console().print(VERSION, highlight=False)
        sys.exit(0)
    checked: Checked | None = None
    with signals.raise_on_signal():
        try:
            if {"-h", "--help"} & set(arguments):
                code = _help(arguments)
            else:
                checked = check(arguments)
                code = _perform(checked)
        except FedexpError as error:
            code = _complain(error)
        except KeyboardInterrupt as told:
            code = signals.exit_code(told)
            said = checked.stopped if checked else Checked.stopped
            open_console().print(
                f"Stopped. {said}\n  {_again(arguments)}", soft_wrap=True, markup=False, highlight=False
            )
        sys.exit(code)


def _help(arguments: Sequence[str]) -> int:
    """Prints the help, with the values that the arguments give; of what is swept over, with the default."""
    given = parse_arguments(arguments)
    lines = [str(o.input_line) for o in parsed(given.overrides) if not o.is_sweep_override()]
    open_console(highlight=False, markup=False, soft_wrap=True).print(help_text(lines, given.sources))
    return 0


def _perform(checked: Checked | None) -> int:
    """Hands a command line over to Hydra, and ends a sweep with its table; returns the exit code."""
    if checked:
        sys.argv[1:] = checked.arguments
    if checked and checked.single:
        return _launch(checked)
    manifest = checked.sweep if checked else None
    with nullcontext(manifest.reports.absolute()) if manifest else scratch.folder() as reports:
        if manifest:
            manifest.write()
            sweep.say(open_console(), sweep.announce(manifest))
        os.environ[sweep.ENV] = str(reports)
        code = 0
        try:
            code = _launch(checked)
        finally:  # also after Ctrl-C
            jobs = [_with_own_window(job) for job in sweep.collect(reports)]
            if jobs or (manifest and code):  # a launcher that has failed leaves holes, if nothing else
                _show_sweep(jobs, manifest)
    return code or int(any(j.error is not None for j in jobs))


def _launch(checked: Checked | None) -> int:
    """Starts Hydra; returns the exit code."""
    sources = checked.sources if checked else Sources()
    search_packages()
    start = hydra.main(version_base=BASE, config_path=str(sources.conf), config_name=sources.name)(job)
    try:
        with use_loader(loader(sources), tried=checked.sweep is not None) if checked else nullcontext():
            start()
    except SystemExit as end:  # of a run, or because a launcher has failed: what is on file shall be shown
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _again(arguments: Sequence[str]) -> str:
    """The command that goes on where this one has stopped."""
    program = ["fedexp"] if Path(sys.argv[0]).stem == "fedexp" else ["python", "-m", "fedexp"]
    return shlex.join([*program, *continuing(arguments)])


def job(node: DictConfig) -> None:
    """One run, or one job of a sweep. A failed job of a sweep is reported in the table and stops no other."""
    hydra_config = HydraConfig.get()
    sources = _sources(hydra_config)
    for folder in filter(None, (sources.conf, sources.extra)):  # in a process of its own, a job has to be told
        targets.allow(folder)
    try:
        config = plain(node, hydra_config.runtime.choices)
        if hydra_config.mode != RunMode.MULTIRUN:
            _run(config, open_console())
            return
        reports = Path(os.environ[sweep.ENV])
        at_once = resources.at_once(hydra_config.launcher.get("n_jobs", 1), sys.maxsize)
        with resources.shared(at_once, reports):
            _run_job(config, hydra_config, reports, at_once=at_once)
    except FedexpError as error:
        sys.exit(_complain(error))


def _sources(hydra_config: HydraConf) -> Sources:
    """Where Hydra has read a job's configuration from."""
    folders = {source.provider: Path(source.path) for source in hydra_config.runtime.config_sources}
    name = hydra_config.job.config_name or Sources.name
    return Sources(folders["main"], folders.get("command-line"), name)


def _run_job(config: Config, hydra_config: HydraConf, reports: Path, *, at_once: int) -> None:
    number, overrides = hydra_config.job.num, list(hydra_config.overrides.task)
    options = _sources(hydra_config).options
    report = partial(sweep.record_job, reports, number, overrides=overrides, path=run_path(config), options=options)
    console = open_console() if at_once == 1 else prefixed(f"job {number + 1} │ ")
    manifest = Manifest.behind(reports)
    line = f"job {number + 1}: {' '.join(overrides)}"
    if manifest:
        known = None if "submitit_folder" in hydra_config.launcher else at_once
        line = sweep.heading(number, manifest, reports, known)
    if not config["plan"]:
        sweep.say(console, f"\n{line}" if at_once == 1 else line, "bold")
    if manifest and (same_as := manifest.jobs[number].same_as) is not None:
        report(status="skipped", same_as=same_as, evaluate=config["evaluate"])
        return
    _report_job(config, console, report)


def _report_job(config: Config, console: Console, report: Callable[..., object]) -> None:
    """Runs a job, or counts what it would take, and reports what became of it."""
    status: sweep.Status = "planned" if config["plan"] else "failed"
    started = time.perf_counter()
    try:
        if config["plan"]:
            report(status=status, result=_cost(config, console))
        else:
            result = _run(config, console)
            taken = time.perf_counter() - started
            report(status=result.status, path=result.path, result=result.summary, seconds=taken)
    except Exception as error:
        if not isinstance(error, FedexpError):
            traceback.print_exc()
        report(status=status, error=f"{type(error).__name__}: {error}")


def _cost(config: Config, console: Console) -> dict[str, Any]:
    with console.status("counting what the jobs take"):
        import_all()
        from fedexp.sweep.cost import cost

        return asdict(cost(config))


def check(arguments: list[str]) -> Checked | None:
    """Composes what the arguments ask for, so that whatever is wrong with it is explained before anything else happens.

    Of a sweep, every job is composed and its parts are tried. None if Hydra is to answer.
    """
    given = parse_arguments(arguments)
    if given.completion:
        return None
    overrides = parsed(given.overrides)
    settings = composed_hydra(given.overrides, given.sources)
    if given.question:
        return None
    if given.sweep or settings.mode == RunMode.MULTIRUN:
        return _check_sweep(overrides, given.overrides, settings, given.sources)
    return Checked(composed(given.overrides, given.sources), given.sources, arguments=given.overrides, single=True)


def _check_sweep(
    overrides: Sequence[Override], lines: Sequence[str], settings: DictConfig, sources: Sources
) -> Checked:
    preset = parsed([f"{k}={v}" for k, v in (settings.sweeper.get("params") or {}).items()])
    given = {o.get_key_element(): o for o in (*preset, *overrides) if not o.is_hydra_override()}
    drawn = [str(o.input_line) for o in given.values() if o.is_sweep_override() and not o.is_discrete_sweep()]
    if drawn and "basic_sweeper" in settings.sweeper._target_:
        raise ConfigError(
            f"{drawn[0]}: values are drawn by a sweeper plugin, and none is chosen. Give them one by one."
        )
    jobs = combinations([o for o in given.values() if str(o.input_line) not in drawn], sources)
    lines = [*lines, *check_launcher(settings, len(jobs))]
    with composing(sources) as compose:
        configs = [compose(job) for job in jobs]
    _check_same(configs, ("plan", "force"))
    manifest = None if drawn else Manifest.of(list(zip(jobs, configs, strict=True)))
    _try_parts(configs)
    if configs[0]["plan"]:  # what Hydra writes goes where nothing stays
        lines.append(f"hydra.sweep.dir={PLAN_DIR}")
    return Checked(
        first=configs[0],
        sources=sources,
        sweep=None if configs[0]["plan"] else manifest,
        arguments=["--multirun", *lines],
        stopped=SUBMITTED if "submitit_folder" in settings.launcher else MISSING,
    )


def check_launcher(settings: DictConfig, jobs: int) -> list[str]:
    """What a launcher has to be told for so many jobs.

    Raises:
        ConfigError: If it cannot start any here.
    """
    launcher = settings.launcher
    if "array_parallelism" in launcher and shutil.which("srun") is None:
        raise ConfigError("hydra/launcher: there is no SLURM here (no srun). submitit_local does without, or joblib.")
    n_jobs = launcher.get("n_jobs")
    return [] if n_jobs is None else [f"hydra.launcher.n_jobs={resources.at_once(n_jobs, jobs)}"]


def _check_same(configs: Sequence[Config], keys: Sequence[str]) -> None:
    for key in keys:
        if any(config[key] != configs[0][key] for config in configs):
            raise ConfigError(f"{key} must be the same for all jobs of a sweep. Give it one value.")


def _try_parts(configs: Sequence[Config]) -> None:
    """Makes the parts of all jobs that can be made without data; equal ones once."""
    import_all()
    from fedexp.parts import CHECKED_EARLY, parts

    different = {json.dumps([c[k] for k in CHECKED_EARLY], sort_keys=True): c for c in configs}
    for config in different.values():
        parts(config)


def _show_sweep(jobs: list[sweep.SweepJob], manifest: Manifest | None) -> None:
    """The tables of all jobs, on screen and as CSV; of a plan, what they would take."""
    console = open_console()
    if any(job.status == "planned" for job in jobs):
        sweep.show_plan(jobs, console)
        return
    sweep.show(jobs, console, len(manifest.jobs) if manifest else None)
    if manifest and jobs:
        every, groups = sweep.write_csv(jobs, manifest.file(".csv"))
        sweep.say(console, f"\njobs    {every}\ngroups  {groups}")
    if manifest and len(jobs) < len(manifest.jobs):
        sweep.say(console, f"holes   python -m fedexp.runs status {shlex.quote(str(manifest.folder))}")


def _with_own_window(job: sweep.SweepJob) -> sweep.SweepJob:
    """A job with the run of another has the means of its own window, whichever the run was finished with."""
    if not (job.evaluate and job.path and job.result) or job.result["final"]["window"] == job.evaluate.get("window"):
        return job
    from fedexp.api import with_window
    from fedexp.runs.directory import RunDir

    return replace(job, result=with_window(job.evaluate, RunDir(Path(job.path)), job.result))


def _run(config: Config, console: Console) -> Result:
    with limits.explained():
        with console.status("loading PyTorch and Lightning"):
            import_all()
        from fedexp.api import run

        return run(config, console=console)


def import_all() -> None:
    """Imports all that a run needs. Signals wait: what is raised in an import may be swallowed."""
    with signals.defer_signals():
        from fedexp.system.fast_import import import_lightning

        import_lightning()
        import fedexp.build  # noqa: F401


def _complain(error: FedexpError) -> int:
    """Says what is wrong; 2 for the command line, 1 for the rest."""
    complain(error)
    return 2 if isinstance(error, ConfigError) else 1
