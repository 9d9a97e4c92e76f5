"""The plain Python interface: ``fedexp.run(...)``."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from rich.console import Console

from fedexp import __version__, stop
from fedexp.config import Config, composed, run_id, run_path, title
from fedexp.display import Display, choose, summary
from fedexp.rundir import Record, RunDir


@dataclass(frozen=True)
class Result:
    """What a run has to say. ``summary`` is result.json; ``records`` are the evaluated rounds."""

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


def run(overrides: Sequence[str] | Mapping[str, Any] = (), *, console: Console | None = None) -> Result:
    """Runs an experiment, or continues it, or says that it is finished.

    Args:
        overrides: As on the command line, e.g. ``["algo=map", "rounds=5"]``; or a whole configuration, as
            ``fedexp.config.composed`` gives it.
        console: Where to show progress; the default shows nothing.
    """
    config: Config = dict(overrides) if isinstance(overrides, Mapping) else composed(overrides)
    console = console or Console(quiet=True)
    rundir = RunDir(run_path(config))
    if config["plan"]:
        return _plan(config, rundir, console)
    return _finished(config, rundir, console) or _run(config, rundir, choose(console), console)


def _finished(config: Config, rundir: RunDir, console: Console) -> Result | None:
    """The result on file, unless the run is to be done again."""
    result = None if config["force"] else rundir.result()
    if result is None:
        return None
    console.print(f"{title(config)}: finished already; force=true runs it again.", highlight=False)
    summary(result, console)
    return Result("skipped", rundir.path, result)


def _plan(config: Config, rundir: RunDir, console: Console) -> Result:
    from fedexp.build import build

    plan = build(config).plan
    plan.show(console)
    return Result("planned", rundir.path, plan.content)


def _run(config: Config, rundir: RunDir, display: Display, console: Console) -> Result:
    started = time.perf_counter()
    from fedexp.build import build

    experiment = build(config)  # before the directory is made: what cannot be built leaves none
    with rundir, rundir.failures():
        return _finished(config, rundir, console) or _hold(experiment, rundir, display, console, started)


def _hold(experiment: Any, rundir: RunDir, display: Display, console: Console, started: float) -> Result:
    """Runs an experiment in a directory that no other process can write to meanwhile."""
    config: Config = experiment.config
    engine = experiment.engine(rundir, display)
    result: dict[str, Any] | None = None
    setup = time.perf_counter() - started
    try:
        if config["force"]:
            engine.checkpoint.clear()  # first: without its record, a checkpoint is of no use
            rundir.clear()
        for note in experiment.plan.content["notes"]:
            display.note(note)
        rundir.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
        rundir.write("plan.json", experiment.plan.content)
        display.start(title(config), config["rounds"], engine.open())
        for record in engine.records:  # of the rounds before a stop
            display.record(record)
        engine.run(experiment.card(rundir))
        result = _conclude(config, rundir, engine, experiment, setup)
    finally:
        display.stop()
        engine.executor.close()
        engine.tracker.finish(result)
    summary(result, console)
    return Result("finished", rundir.path, result)


def _conclude(config: Config, rundir: RunDir, engine: Any, experiment: Any, setup: float) -> dict[str, Any]:
    from fedexp.checkpoint import save_model
    from fedexp.protocol import summarise

    blocks = summarise(engine.records, engine.protocol.window)
    with engine.timed("final"):
        for goal, extra in engine.protocol.conclude(engine).items():
            blocks[goal] = {**blocks.get(goal, {}), **extra}
    seconds = {"setup": setup, **engine.saved.seconds}
    seconds["elapsed"] += setup + seconds["final"]
    result = {
        "status": "finished",
        "run": run_id(config),
        "title": title(config),
        "path": str(rundir.path),
        "rounds": config["rounds"],
        **blocks,
        "bytes": {"up": engine.ledger.up, "down": engine.ledger.down},
        "seconds": {k: round(v, 3) for k, v in seconds.items()},
        "digests": {**engine.digests(), "partition": experiment.plan.content["partition_digest"]},
        "versions": versions(),
    }
    save_model(rundir, engine.saved.state.model, {"run": result["run"], "title": result["title"]})
    with stop.later():  # or a signal in between would leave a finished run its checkpoint
        result = rundir.conclude(result)
        if config["keep"] == "model":
            engine.checkpoint.clear()
    return result


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
