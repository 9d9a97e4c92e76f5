"""The plain Python interface: ``fedexp.run(...)``."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import OmegaConf
from rich.console import Console

from fedexp import __version__
from fedexp.config.arguments import sources
from fedexp.config.compose import Config, checked, composed, federation, literal, title
from fedexp.config.identity import of_missing_classes, run_id, run_path
from fedexp.config.make import make
from fedexp.core.record import Record
from fedexp.display import Display, choose, summary
from fedexp.errors import CheckpointError, ConfigError
from fedexp.runs import observations
from fedexp.runs.directory import RunDir
from fedexp.runs.names import CHECKPOINT, CONFIG, PLAN, RESULT
from fedexp.system import signals
from fedexp.system.versions import commit
from fedexp.terminal.numbers import count

if TYPE_CHECKING:
    from fedexp.build import Experiment
    from fedexp.core.algorithm import Algorithm
    from fedexp.engine import Engine
    from fedexp.evaluate.protocol import EvaluationProtocol


@dataclass(frozen=True)
class Result:
    """The outcome of a run. ``summary`` is result.json; ``records`` are the evaluated rounds."""

    status: Literal["finished", "skipped", "planned"]
    path: Path
    summary: dict[str, Any]

    @property
    def aggregation(self) -> dict[str, Any] | None:
        """Accuracy of the server's model: last, best, mean, std; None if the method has no such model."""
        return self.summary.get("aggregation")

    @property
    def personalization(self) -> dict[str, Any] | None:
        """Accuracy of personal models on their owners' held-out samples; None if nothing is held out."""
        return self.summary.get("personalization")

    @property
    def records(self) -> list[Record]:
        """One entry per evaluated round."""
        return RunDir(self.path).records()


def run(
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    console: Console | None = None,
    config_dir: str | Path | None = None,
) -> Result:
    """Runs an experiment, or continues it, or says that it is finished.

    Args:
        overrides: As on the command line, e.g. ``["algo=map", "rounds=5"]``; or a whole configuration, as
            ``fedexp.config.composed`` gives it.
        console: Where to show progress; the default shows nothing.
        config_dir: A folder with configuration files of your own, as ``--config-dir``.
    """
    known = sources(config_dir)
    config: Config = checked(overrides) if isinstance(overrides, Mapping) else composed(overrides, known)
    console = console or Console(quiet=True)
    rundir = RunDir(run_path(config))
    display = choose(console)
    try:
        if config["plan"]:
            return _plan(config, rundir, display, console)
        return _finished(config, rundir, console) or _run(config, rundir, display, console)
    finally:
        display.stop()


def _finished(config: Config, rundir: RunDir, console: Console) -> Result | None:
    """The result on file, unless the run is to be done again, or something after its last round is."""
    result = None if config["force"] else rundir.result()
    if result is None:
        return None
    asked, done = final_settings(config), result["final"]
    missing = _not_measured(asked, done)
    if missing and (rundir.path / CHECKPOINT).exists():
        return None
    console.print(f"{title(config)}: finished already; force=true runs it again.", soft_wrap=True, highlight=False)
    for key in missing:
        console.print(
            f"note: it was finished with evaluate.{key}={done[key]}, not {asked[key]}. What another pass after the "
            "last round needs is kept only with keep=all.", soft_wrap=True, highlight=False,
        )  # fmt: skip
    if note := _measured_otherwise(config, rundir):
        console.print(note, soft_wrap=True, highlight=False)
    for why in observations.lacking(config.get("probe", {}), result.get("probes", {})):
        console.print(f"note: {why}. force=true runs it again with it; its numbers stay the same.", soft_wrap=True,
                      highlight=False)  # fmt: skip
    if asked["window"] != done["window"]:
        result = with_window(config["evaluate"], rundir, result)
    summary(result, console)
    return Result("skipped", rundir.path, result)


def _not_measured(asked: Mapping[str, Any], done: Mapping[str, Any]) -> list[str]:
    """What is asked for after the last round, and was not done. More clients than are asked for will do."""
    other = [
        key for key in asked if key not in ("window", "all_clients") and done.get(key, 0) not in (None, asked[key])
    ]
    return (["all_clients"] if asked["all_clients"] > done["all_clients"] else []) + other


def _measured_otherwise(config: Config, rundir: RunDir) -> str | None:
    """A note if missing classes were not measured in the way that is asked for."""
    asked, done = (of_missing_classes(c) for c in (config, rundir.config() or {}))
    if not asked or not done or asked == done:
        return None
    was, now = (", ".join(f"evaluate.{key}={literal(of[key])}" for key in of) for of in (done, asked))
    return f"note: rounds so far were measured with {was}, not with {now}."


def with_window(evaluate: Mapping[str, Any], rundir: RunDir, result: dict[str, Any]) -> dict[str, Any]:
    """A result with the means over the window of other settings of ``evaluate``, from the rounds on file."""
    from fedexp.evaluate.summary import summarise

    window = make(evaluate).window
    blocks = summarise(rundir.records(), window)
    means = {goal: {**result.get(goal, {}), **block} for goal, block in blocks.items()}
    return {**result, **means, "final": {**result["final"], "window": window}}


def _plan(config: Config, rundir: RunDir, display: Display, console: Console) -> Result:
    from fedexp.build import build

    plan = build(config, display.stage).plan
    display.stop()
    plan.show(console)
    return Result("planned", rundir.path, plan.content)


def _run(config: Config, rundir: RunDir, display: Display, console: Console) -> Result:
    started = time.perf_counter()
    from fedexp.build import build

    rundir.demand_writable()
    experiment = build(config, display.stage)  # before the directory is made: what cannot be built leaves none
    try:
        with rundir, rundir.failures():
            return _finished(config, rundir, console) or _run_locked(experiment, rundir, display, console, started)
    except ConfigError:
        rundir.remove_unused()
        raise


def _run_locked(experiment: Experiment, rundir: RunDir, display: Display, console: Console, started: float) -> Result:
    """Runs an experiment in a directory that no other process can write to meanwhile."""
    config = experiment.config
    engine = experiment.engine(rundir, display)
    result: dict[str, Any] | None = None
    try:
        if config["force"]:
            engine.checkpoint.clear()  # first: without its record, a checkpoint is of no use
            rundir.clear()
        for note in experiment.plan.content["notes"]:
            display.note(note)
        if (rundir.path / CHECKPOINT).exists() and (note := _measured_otherwise(config, rundir)):
            display.note(note)
        if rundir.result() is None:  # else the result on file vouches for them
            _write_settings(experiment, rundir, config)
        if not (config["force"] or (rundir.path / CHECKPOINT).exists()):
            _begin_with_finished(experiment, rundir, display)
        final = engine.measurement.work_after_rounds if experiment.tests_clients else 0.0
        done = engine.open()
        for name in engine.late_probes if done else ():
            display.note(
                f"probe {name} has not observed the first {count(done, 'round')} with these settings. force=true runs "
                "them again, with the same numbers."
            )
        display.start(title(config), config["rounds"], done, final=final, underway=engine.executor.underway)
        for record in engine.records:  # of the rounds before a stop
            display.record(record)
        setup = time.perf_counter() - started
        engine.run(experiment.card(rundir))
        result = _conclude(experiment, rundir, engine, console, setup)
    finally:
        display.stop()
        engine.executor.close()
        engine.tracker.finish(result)
    summary(result, console)
    return Result("finished", rundir.path, result)


def _begin_with_finished(experiment: Experiment, rundir: RunDir, display: Display) -> None:
    """Begins a run with the rounds of a finished one that is the same, but shorter; else says why that cannot be."""
    from fedexp.runs.continuation import Beginning

    config = experiment.config
    beginning = Beginning.of(config)
    if beginning is None:
        return
    there = f"{beginning.path} has the first {count(beginning.rounds, 'round')}"
    try:
        schedule = make(config["schedule"])
        if why := [*beginning.obstacles(config, experiment.algorithm, schedule, experiment.plan.digest)]:
            display.note(f"{there}, but this run begins anew. {'; '.join(why)}.")
            return
        if note := _measured_otherwise(config, RunDir(beginning.path)):
            display.note(note)
        beginning.copy_to(rundir)
    except CheckpointError as error:
        display.note(f"{there}, but this run begins anew: {error}")
    else:
        display.note(f"{there}, and is continued; force=true begins anew.")


def _write_settings(experiment: Experiment, rundir: RunDir, settings: Config) -> None:
    rundir.write_text(CONFIG, OmegaConf.to_yaml(OmegaConf.create(settings)))
    rundir.write(PLAN, experiment.plan.content)


def _conclude(experiment: Experiment, rundir: RunDir, engine: Engine, console: Console, setup: float) -> dict[str, Any]:
    """Writes the results of the rounds, then does and adds what comes after the last one.

    If that fails or is stopped, the rounds' results and the model are on file, and the last checkpoint is too.
    """
    from fedexp.evaluate.summary import summarise
    from fedexp.runs.checkpoint import save_model

    config, algorithm = experiment.config, engine.algorithm
    blocks = summarise(engine.records, engine.protocol.window)
    result: dict[str, Any] = {
        "status": "trained",
        "run": run_id(config),
        "title": title(config),
        "path": str(rundir.path),
        "rounds": config["rounds"],
        **blocks,
        "caveats": experiment.plan.content["caveats"],
        "final": final_settings(config, algorithm),
        "bytes": {"up": engine.ledger.up, "down": engine.ledger.down},
        "workers": engine.executor.workers,
        "seconds": _seconds(engine, setup),
        "digests": {
            **engine.digests(),
            "partition": experiment.plan.content["partition_digest"],
            "data": experiment.plan.content["data_digest"],
        },
        "versions": versions(),
        "commit": commit(Path.cwd()),
    }
    if seen := observations.observed(rundir.observations()):
        result["probes"] = seen
    save_model(rundir, algorithm.released(engine.progress.state), {k: result[k] for k in ("run", "title")})
    if rundir.result() is None:  # else there is one of an earlier pass, which stays until this pass is done
        rundir.conclude(result)
    try:
        with engine.timed("final"):
            more = engine.protocol.conclude(engine.measurement)
    except BaseException:
        engine.display.stop()
        summary(result, console)
        console.print("The rounds are done and on file; the same command does what comes after them.", highlight=False)
        raise
    for goal, extra in more.items():
        result[goal] = {**result.get(goal, {}), **extra}
    result |= {"status": "finished", "workers": engine.executor.workers, "seconds": _seconds(engine, setup)}
    measured = of_missing_classes(rundir.config() or {})  # in the rounds, which may be of an earlier pass
    settings = {**config, "evaluate": {**config["evaluate"], **measured}}
    with signals.defer_signals():  # or a signal in between would leave a finished run its checkpoint
        (rundir.path / RESULT).unlink(missing_ok=True)  # it vouches for the settings as they were
        _write_settings(experiment, rundir, settings)
        result = rundir.conclude(result)
        if config["keep"] == "model" and any(True for _ in engine.progress.store):
            engine.checkpoint.clear()
        elif config["keep"] == "model":  # a longer run can begin with it
            engine.checkpoint.clear_older()
    return result


def final_settings(config: Config, algorithm: Algorithm | None = None) -> dict[str, Any]:
    """What is to be measured after the last round; None for what the algorithm, if it is known, has no need of."""
    protocol: EvaluationProtocol = make(config["evaluate"])
    return protocol.final_settings(federation(config)[0], algorithm)


def _seconds(engine: Engine, setup: float) -> dict[str, float]:
    """Seconds by kind of work, summed over all workers, and ``elapsed``, those that the clock has shown."""
    seconds = {"setup": setup, **engine.progress.seconds}
    seconds["elapsed"] = seconds.get("elapsed", 0.0) + setup + seconds.get("final", 0.0)
    return {k: round(v, 3) for k, v in seconds.items()}


def versions() -> dict[str, str]:
    """The versions that could matter to a number."""
    import lightning
    import numpy as np
    import torch

    return {
        "fedexp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "numpy": np.__version__,
    }
