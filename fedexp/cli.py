"""The command line: ``python -m fedexp`` and ``fedexp``. Config errors and help answer before torch is imported."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import traceback
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

from fedexp import sweep
from fedexp.config import Config, choices_of, composed, conf_dir, plain
from fedexp.errors import ConfigError, FedexpError

if TYPE_CHECKING:
    from fedexp.api import Result


def main() -> None:
    """Checks the command line, hands it to Hydra, and ends a sweep with its table."""
    try:
        first = check(sys.argv[1:])
    except ConfigError as error:
        sys.exit(_complain(error))
    with tempfile.TemporaryDirectory(prefix="fedexp-") as reports:
        os.environ[sweep.ENV] = reports
        stopped = False
        try:
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
        except KeyboardInterrupt:  # of a sweep
            stopped = True
        jobs = sweep.collect(Path(reports))
    if jobs and first:
        _show_sweep(jobs, Path(first["out"]) / first["name"])
    if stopped:
        sys.exit(_stopped("The same command runs what is missing."))
    sys.exit(any(j.status == "failed" for j in jobs))


def job(node: DictConfig) -> None:
    """One run, or one job of a sweep. A failed job of a sweep is reported in the table and stops no other."""
    hydra_config = HydraConfig.get()
    config = plain(node, hydra_config.runtime.choices)
    console = Console()
    if hydra_config.mode == RunMode.RUN:
        try:
            _run(config, console)
        except FedexpError as error:
            sys.exit(_complain(error))
        except KeyboardInterrupt:
            command = "The same command without force=true" if config["force"] else "The same command"
            sys.exit(_stopped(f"{command} continues from the last complete round."))
        return
    overrides = list(hydra_config.overrides.task)
    report = partial(sweep.record_job, Path(os.environ[sweep.ENV]), hydra_config.job.num, overrides=overrides)
    console.rule(f"job {hydra_config.job.num}: {' '.join(overrides)}")
    try:
        result = _run(config, console)
        if result.status != "planned":
            report(status=result.status, path=result.path, result=result.summary)
    except Exception as error:
        if not isinstance(error, FedexpError):
            traceback.print_exc()
        report(status="failed", error=f"{type(error).__name__}: {error}")


def check(arguments: list[str]) -> Config | None:
    """Composes what the arguments ask for, so that a misspelt one is explained before anything else happens.

    Of a sweep, each value is tried once, with the others at their first; the first job's configuration is returned.
    """
    if any(a.startswith("-") and a not in ("-m", "--multirun") for a in arguments):
        return None  # help, completion, or Hydra's own options: Hydra answers
    try:
        overrides = OverridesParser.create().parse_overrides([a for a in arguments if not a.startswith("-")])
    except HydraException as cause:
        raise ConfigError(str(cause)) from cause
    sweeping = len(overrides) < len(arguments) or any(o.key_or_group in ("sweep", "hydra.mode") for o in overrides)
    axes = [_values(o) if sweeping else [str(o.input_line)] for o in overrides]
    axes = [axis for axis in axes if axis]
    first = [axis[0] for axis in axes]
    config = composed(first)
    for index, axis in enumerate(axes):
        for value in axis[1:]:
            composed([*first[:index], value, *first[index + 1 :]])
    return config


def _values(override: Override) -> list[str]:
    """One override for each value of a swept key; none where a sweeper plugin draws them."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    value, key = override.value(), override.get_key_element()
    if isinstance(value, Glob):
        return [f"{key}={choice}" for choice in value.filter(choices_of(override.key_or_group))]
    return [f"{key}={v}" for v in override.sweep_string_iterator()] if override.is_discrete_sweep() else []


def _show_sweep(jobs: list[sweep.Job], folder: Path) -> None:
    """The table of all jobs, on screen and as CSV."""
    console = Console()
    sweep.show(jobs, console)
    identity = hashlib.sha256("\n".join(sorted(" ".join(j.overrides) for j in jobs)).encode()).hexdigest()[:10]
    path = folder / f"sweep-{identity}.csv"
    sweep.write_csv(jobs, path)
    console.print(f"table  {path}", highlight=False)


def _run(config: Config, console: Console) -> Result:
    from fedexp.api import run

    return run(config, console=console)


def _stopped(advice: str) -> int:
    Console().print(f"Stopped. {advice}", highlight=False)
    return 130


def _complain(error: FedexpError) -> int:
    """Says what is wrong; 2 for the command line, 1 for the rest."""
    Console(stderr=True, soft_wrap=True).print(f"[bold red]{type(error).__name__}[/]: ", end="")
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(str(error))
    return 2 if isinstance(error, ConfigError) else 1
