"""A run of fedexp that plays rounds when it is asked to."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console

from fedexp.build import build
from fedexp.config.compose import composed, run_path
from fedexp.display.plain import PlainDisplay
from fedexp.engine import Engine
from fedexp.runs.directory import RunDir


def play(connection: Connection, overrides: Sequence[str]) -> None:
    """A contestant's process: as many rounds as are asked for, until the other end closes the connection."""
    config = composed(overrides)
    experiment = build(config)
    with RunDir(run_path(config)) as rundir, Path(os.devnull).open("w") as nowhere:
        display = PlainDisplay(Console(file=nowhere))
        engine = experiment.engine(rundir, display)
        display.start("bench", config["rounds"], engine.open())
        engine.tracker.start(experiment.card(rundir), [])
        try:
            connection.send({"ready": True})
            while rounds := connection.recv():
                connection.send(timed(engine, rounds))
        finally:
            engine.executor.close()
            engine.tracker.finish(None)


def timed(engine: Engine, rounds: int) -> dict[str, Any]:
    """Plays so many more rounds, with all that a user's run does in them; says what they took."""
    before, started = dict(engine.progress.seconds), time.perf_counter()
    engine.play(engine.progress.state.round + rounds)
    wall = time.perf_counter() - started
    spent = {k: v - before.get(k, 0.0) for k, v in engine.progress.seconds.items() if k != "elapsed"}
    return {"wall": wall, "seconds": spent, "accuracy": engine.records[-1].get("aggregation", {}).get("accuracy")}
