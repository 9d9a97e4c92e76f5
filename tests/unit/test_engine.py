"""The order of things in a run: what workers are asked for, and when a round is written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import pytest

from fedexp.algos.scaffold import Scaffold
from fedexp.config.settings import Every
from fedexp.core.component import Component
from fedexp.core.state import Message, Slot, number
from fedexp.errors import CheckpointError
from fedexp.evaluate.fedrema import FedRemaProtocol
from fedexp.evaluate.map import MapProtocol
from fedexp.execute.base import SerialExecutor
from fedexp.execute.task import Task, TaskResult
from fedexp.server.sampler import ClientDropouts
from fedexp.testing import card, trial

ROUND, TEST, PERSONAL = "Train", "MeasureServer", "Measure"


class Noting(SerialExecutor):
    """Notes the kinds of tasks of each map, and what clients receive."""

    workers = 2

    def __init__(self, blueprint) -> None:
        super().__init__(blueprint)
        self.asked: list[list[str]] = []
        self.received: list[set[str]] = []

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]:
        def noted() -> Iterator[Task]:
            kinds: list[str] = []
            self.asked.append(kinds)
            for task in tasks:
                kinds.append(type(task).__name__)
                self.received += [set(job.downlink) for job in task._whole(self._worker, broadcast)]
                yield task

        return super().map(noted(), broadcast)

    @property
    def order(self) -> list[list[str]]:
        """The kinds of each map, without repetition."""
        return [[kind for kind, _ in groupby(kinds)] for kinds in self.asked]


@pytest.mark.parametrize(
    ("protocol", "every", "order"),
    [
        (MapProtocol(), 1, [[ROUND], [TEST, ROUND], [TEST, ROUND], [TEST, ROUND], [TEST, ROUND], [TEST]]),
        (MapProtocol(), 2, [[ROUND], [ROUND], [TEST, ROUND], [ROUND], [TEST, ROUND], [TEST]]),
        (FedRemaProtocol(), 2, [[ROUND], [ROUND], [TEST], [PERSONAL], [ROUND], [ROUND], [TEST], [PERSONAL], [ROUND],
                                [TEST], [PERSONAL]]),
    ],
)  # fmt: skip
def test_the_test_of_a_round_comes_first_among_the_tasks_of_the_next(tmp_path, protocol, every, order):
    """Unless the protocol asks clients: that cannot wait in the middle of another round."""
    engine = trial({}, tmp_path, rounds=5, executor=Noting)
    engine.protocol, engine.every = protocol, Every(every, 2)
    engine.run(card(engine))
    assert engine.executor.order == order
    assert [r["round"] for r in engine.records] == ([1, 2, 3, 4, 5] if every == 1 else [2, 4, 5])
    assert {int(row["round"]) for row in engine.rundir.rows("clients.csv")} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", ["metrics.jsonl", "clients.csv", "ledger.csv", "weights.csv"])
def test_a_run_is_not_taken_up_with_damaged_records(tmp_path, name, caplog):
    engine = trial({}, tmp_path, rounds=4)
    engine.rounds, engine.every = 2, Every(1, 1)
    engine.run(card(engine))
    path = tmp_path / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])  # what the last round wrote
    again = trial({}, tmp_path, rounds=4)
    assert again.progress.state.round == len(again.records) == 1
    (said,) = caplog.messages
    assert f"{name} is damaged" in said
    again.run(card(again))
    whole = trial({}, tmp_path / "whole", rounds=4)
    whole.run(card(whole))
    assert path.read_bytes() == (tmp_path / "whole" / name).read_bytes() or name == "metrics.jsonl"  # it has seconds
    assert len(again.records) == len(whole.records) == 4
    assert (again.ledger.up, again.ledger.down) == (whole.ledger.up, whole.ledger.down)


def test_damage_in_what_both_checkpoints_need_is_named(tmp_path):
    engine = trial({}, tmp_path, rounds=4)
    engine.rounds, engine.every = 2, Every(1, 1)
    engine.run(card(engine))
    path = tmp_path / "clients.csv"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(CheckpointError, match=r"clients\.csv is damaged(.|\n)*force=true"):
        trial({}, tmp_path, rounds=4)


@dataclass(frozen=True, kw_only=True)
class Secret(Component):
    """Keeps one number on the server, and sends another."""

    def slots(self):
        return Slot("kept", "server", number(1.0)), Slot("told", "server", number(2.0), down=True)


def test_clients_receive_what_is_sent_and_nothing_else(tmp_path):
    """Also when the server's whole state is at hand, for its test."""
    engine = trial({"secret": Secret()}, tmp_path, rounds=3, executor=Noting)
    engine.run(card(engine))
    assert [TEST, ROUND] in engine.executor.order
    assert {frozenset(names) for names in engine.executor.received} == {frozenset({"model", "secret.told"})}


def test_overlapping_rounds_give_the_numbers_of_rounds_in_order(tmp_path):
    """With clients that drop out, and tests and checkpoints that are not due every round."""

    def ran(name, play):
        engine = trial({"x": Scaffold()}, tmp_path / name, rounds=5, mishaps=ClientDropouts(0, dropout=0.3))
        engine.every = Every(2, 2)
        play(engine)
        for record in engine.records:
            record.pop("seconds")
        files = {f: (tmp_path / name / f).read_bytes() for f in ("clients.csv", "ledger.csv", "weights.csv")}
        return engine.digests(), engine.records, files

    def in_order(engine):
        engine._mark_committed()
        for t in range(5):
            engine.round(t)

    assert ran("in_order", in_order) == ran("overlapped", lambda engine: engine.run(card(engine)))
