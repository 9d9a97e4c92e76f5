"""The command line: ``python -m fedexp`` and ``fedexp``. Config errors and help answer before torch is imported."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from fedexp import sweep
from fedexp.config import Config, composed, conf_dir, plain
from fedexp.errors import ConfigError, FedexpError

SWEEP = "FEDEXP_SWEEP"  # the folder in which the jobs of a sweep leave their reports


def main() -> None:
    """Checks the command line, hands it to Hydra, and ends a sweep with its table."""
    console = Console(soft_wrap=True) if not sys.stdout.isatty() else Console()
    try:
        check(sys.argv[1:])
    except ConfigError as error:
        sys.exit(_complain(error))
    with tempfile.TemporaryDirectory(prefix="fedexp-") as reports:
        os.environ[SWEEP] = reports
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
        jobs = sweep.collect(Path(reports))
    if jobs:
        sweep.show(jobs, console)
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
            console.print("Stopped. The same command continues from the last complete round.")
            sys.exit(130)
        return
    report = sweep.Reporter(Path(os.environ[SWEEP]), hydra_config.job.num, list(hydra_config.overrides.task))
    console.rule(f"job {hydra_config.job.num}: {' '.join(hydra_config.overrides.task)}")
    try:
        report.done(_run(config, console))
    except Exception as error:
        if not isinstance(error, FedexpError):
            traceback.print_exc()
        report.failed(error)


def check(arguments: list[str]) -> None:
    """Composes what the arguments ask for, so that a misspelt one is explained before anything else happens.

    Of a sweep, each value is tried once, with the others at their first.
    """
    if any(a.startswith("-") and a not in ("-m", "--multirun") for a in arguments):
        return  # help, completion, or Hydra's own options: Hydra answers
    parser = OverridesParser.create()
    axes: list[list[str]] = []
    for override in parser.parse_overrides([a for a in arguments if not a.startswith("-")]):
        swept = override.is_sweep_override()
        key = override.get_key_element()
        axes.append([f"{key}={v}" for v in override.sweep_string_iterator()] if swept else [str(override.input_line)])
    first = [axis[0] for axis in axes]
    composed(first)
    for index, axis in enumerate(axes):
        for value in axis[1:]:
            composed([*first[:index], value, *first[index + 1 :]])


def _run(config: Config, console: Console) -> object:
    from fedexp.api import run

    return run(config, console=console)


def _complain(error: FedexpError) -> int:
    """Says what is wrong; 2 for the command line, 1 for the rest."""
    Console(stderr=True, soft_wrap=True).print(f"[bold red]{type(error).__name__}[/]: ", end="")
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(str(error))
    return 2 if isinstance(error, ConfigError) else 1
