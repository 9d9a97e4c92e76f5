"""A run that is told to stop before any line of its book-keeping goes on as if it had not been."""

from __future__ import annotations

import os
import random
import signal
import sys

import pytest

from fedexp.algos.scaffold import Scaffold
from fedexp.config.settings import Every
from fedexp.core.seeding import derive
from fedexp.system import signals
from fedexp.testing import card, trial

BOOKS = tuple(
    f"fedexp/{name}.py"
    for name in (
        "engine",
        "overlap",
        "runs/client_store",
        "runs/checkpoint",
        "runs/directory",
        "runs/tensor_files",
        "runs/ledger",
    )
)
ROUNDS = 5
POINTS = max(int(os.environ.get("FEDEXP_KILLS", "0")), 12)


class Signal:
    """Sends a signal before the n-th line of the books that is run in the third and fourth round."""

    def __init__(self, n: int) -> None:
        self.lines: list[str] = []  # the functions in which they are
        self._n, self._on = n, False

    def run(self, engine) -> None:
        send = engine.send

        def watched(t):
            self._on = t in (2, 3)
            return send(t)

        engine.send = watched
        sys.settrace(self._enter)
        try:
            with signals.raise_on_signal():
                engine.run(card(engine))
        finally:
            sys.settrace(None)

    def _enter(self, frame, event, arg):
        return self._line if self._on and frame.f_code.co_filename.endswith(BOOKS) else None

    def _line(self, frame, event, arg):
        if event == "line" and self._on:
            self.lines.append(frame.f_code.co_name)
            if len(self.lines) == self._n:
                signal.raise_signal(signal.SIGTERM)
        return self._line


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in signals.SIGNALS}
    yield lambda: [signal.signal(number, handler) for number, handler in before.items()]
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("hold", [None, 0], ids=["memory", "disk"])
def test_stopped_anywhere_it_ends_with_the_same_numbers(tmp_path, hold, handlers):
    def begun(name):
        engine = trial({"scaffold": Scaffold()}, tmp_path / name, rounds=ROUNDS, hold=hold)
        engine.every = Every(1, 2)
        return engine

    quiet, counting = begun("quiet"), Signal(0)
    counting.run(quiet)
    points = range(1, len(counting.lines) + 1)
    critical = [p for p in points if counting.lines[p - 1] in ("_mark_committed", "commit")]
    drawn = random.Random(derive(0, "stops")).sample(points, POINTS)  # noqa: S311
    for point in {*critical[: len(critical) // 2], *drawn}:  # of the first of two rounds
        with pytest.raises(signals.Stopped):
            Signal(point).run(begun(f"at{point}"))
        handlers()
        again = begun(f"at{point}")
        assert again.progress.state.round >= 1
        again.run(card(again))
        assert again.digests() == quiet.digests(), point
        assert [r["round"] for r in again.records] == list(range(1, ROUNDS + 1))
        assert (again.ledger.up, again.ledger.down) == (quiet.ledger.up, quiet.ledger.down)
        for file in ("clients.csv", "ledger.csv", "weights.csv"):
            assert (tmp_path / f"at{point}" / file).read_bytes() == (tmp_path / "quiet" / file).read_bytes()
