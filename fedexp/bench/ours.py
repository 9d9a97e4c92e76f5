"""A run of fedexp that plays a round when it is asked to."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console

from fedexp.build import build
from fedexp.checkpoint import Saved
from fedexp.config import composed, run_path
from fedexp.display.plain import PlainDisplay
from fedexp.engine import Engine
from fedexp.rundir import RunDir
from fedexp.track.base import Record


class Stop(Exception):  # noqa: N818 - not an error
    """No more rounds are wanted."""


class Gate(PlainDisplay):
    """A display that lets a round begin when it is asked for, and reports the one before.

    The engine runs its own loop: whatever a round costs its user falls between two calls of ``cohort``.
    """

    def __init__(self, connection: Connection, console: Console) -> None:
        super().__init__(console)
        self._connection = connection
        self._began: float | None = None
        self._seconds: dict[str, float] = {}
        self._accuracy: float | None = None
        self.engine: Engine | None = None

    def cohort(self, round_: int, size: int) -> None:
        """Waits for the request."""
        now = time.perf_counter()
        spent = {kind: value for kind, value in self._saved.seconds.items() if kind != "elapsed"}
        if self._began is None:
            self._connection.send({"ready": True})
        else:
            seconds = {kind: value - self._seconds.get(kind, 0.0) for kind, value in spent.items()}
            self._connection.send({"wall": now - self._began, "seconds": seconds, "accuracy": self._accuracy})
        if not self._connection.recv():
            raise Stop
        self._seconds = spent
        self._began = time.perf_counter()
        super().cohort(round_, size)

    def record(self, record: Record) -> None:
        """Keeps the accuracy."""
        self._accuracy = record.get("aggregation", {}).get("accuracy")
        super().record(record)

    @property
    def _saved(self) -> Saved:
        if self.engine is None:
            raise RuntimeError("the gate was not told which engine it is for")
        return self.engine.saved


def play(connection: Connection, overrides: Sequence[str]) -> None:
    """A contestant's process: a round for every request, until the other end says no."""
    config = composed(overrides)
    experiment = build(config)
    with RunDir(run_path(config)) as rundir, Path(os.devnull).open("w") as nowhere:
        gate = Gate(connection, Console(file=nowhere))
        gate.engine = engine = experiment.engine(rundir, gate)
        gate.start("bench", config["rounds"], engine.open())
        try:
            engine.run(experiment.card(rundir))
        except Stop:
            pass
        finally:
            engine.executor.close()
            engine.tracker.finish(None)
