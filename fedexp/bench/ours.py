"""A run of fedexp that plays rounds when it is asked to."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console

from fedexp.bench.contest import COUNT
from fedexp.bench.passes import counting, mark
from fedexp.build import build
from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.display.plain import PlainDisplay
from fedexp.engine import Engine
from fedexp.runs.directory import RunDir


def play(connection: Connection, overrides: Sequence[str]) -> None:
    """A contestant's process: as many rounds as are asked for, or ``COUNT``, until the other end closes it."""
    config = composed(overrides)
    experiment = build(config)
    mark(experiment.net)
    with RunDir(run_path(config)) as rundir, Path(os.devnull).open("w") as nowhere:
        display = PlainDisplay(Console(file=nowhere))
        engine = experiment.engine(rundir, display)
        display.start("bench", config["rounds"], engine.open())
        engine.tracker.start(experiment.card(rundir), [])
        try:
            connection.send({"ready": True})
            while asked := connection.recv():
                connection.send(counted(engine) if asked == COUNT else timed(engine, asked))
        finally:
            engine.executor.close()
            engine.tracker.finish(None)


def counted(engine: Engine) -> dict[str, Any]:
    """Plays one more round, and says which passes it took."""
    with counting() as passes:
        engine.play(engine.progress.state.round + 1)
    return {"passes": passes}


def timed(engine: Engine, rounds: int) -> dict[str, Any]:
    """Plays so many more rounds, with all that a user's run does in them; says what they took."""
    before, started = dict(engine.progress.seconds), time.perf_counter()
    engine.play(engine.progress.state.round + rounds)
    wall = time.perf_counter() - started
    spent = {k: v - before.get(k, 0.0) for k, v in engine.progress.seconds.items() if k != "elapsed"}
    return {"wall": wall, "seconds": spent, "accuracy": engine.records[-1].get("aggregation", {}).get("accuracy")}
