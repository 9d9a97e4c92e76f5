"""The pool with workers of paper: whatever the order in which they answer or are lost, answers come in their order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedexp.errors import FedexpError
from fedexp.execute.base import quiet
from fedexp.execute.pool import LANES, MAX_WORKERS_LOST, TASKS_PER_WORKER, Pool, WorkerDied, WorkerHandle
from fedexp.execute.shared_memory import SharedBuffer, TensorPickle
from fedexp.execute.task import Task, TaskResult
from fedexp.server.aggregate import Fold, Mean


@dataclass(frozen=True)
class Square(Task):
    """Is answered with the square of its index, in a tensor."""

    def by(self, worker, broadcast):
        mean = Mean("sum", {"w": torch.full((3,), float(self.index**2))}, 1)
        return TaskResult(self.index, fold=Fold({"u": mean}, {}))


BAD = LookupError("planned")


@dataclass(frozen=True)
class Bad(Square):
    """Cannot be done."""


class Paper(WorkerHandle):
    """Answers what it is told to answer, in lanes whose memory is used again."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.arenas = {lane: SharedBuffer(1000) for lane in LANES}
        self.gone = self.synced = False

    def give(self, lane, task):
        if self.gone:
            raise WorkerDied
        assert self.ready
        assert self.synced
        assert len(self.tasks) <= TASKS_PER_WORKER
        assert lane not in [arrival.lane for arrival in self.held]

    def fetch(self):
        if self.gone:
            raise WorkerDied
        if not self.ready:
            self.ready = True
            return None
        lane, task = next(iter(self.tasks.items()))  # a worker does its tasks one after another
        if isinstance(task, Bad):
            return lane, (BAD, [], self.arenas[lane])
        answer = task.by(None, {})
        parcel = TensorPickle(answer.fold.means, replace(answer, fold=replace(answer.fold, means={})))
        parcel.fill(self.arenas[lane])
        return lane, (0.0, parcel.parts, self.arenas[lane])

    def end(self):
        self.gone = True
        return "torn"


class Desk(Pool[Paper]):
    """Lets fate say who answers next, and who is lost."""

    words = "there are none"

    def __init__(self, workers: int, draw) -> None:
        super().__init__(workers, 1, quiet)
        self._draw = draw
        self.lost = 0
        self.handles = [self.start_worker(n) for n in range(workers)]

    def start_worker(self, number):
        handle = Paper(number)
        handle.ready = self._draw is None or self._draw(st.booleans())
        return handle

    def announce(self, broadcast): ...

    def sync(self, handle):
        if handle.gone:
            raise WorkerDied
        handle.synced = handle.ready

    def wait(self, *, patient=True):
        busy = [h for h in self.handles if h.tasks or not h.ready]
        if not busy or not (patient or self._draw(st.booleans())):
            assert not patient  # it would wait for ever
            return []
        handle = self._draw(st.sampled_from(busy))
        if self.lost < MAX_WORKERS_LOST and self._draw(st.booleans()):
            handle.gone = True
            self.lost += 1
        return [handle]


@given(st.integers(1, 5), st.integers(0, 25), st.data())
def test_answers_come_in_their_order_and_as_they_were(workers, count, data):
    desk = Desk(workers, data.draw)
    made = []

    def tasks():
        for index in range(7, 7 + count):  # as when an executor takes over in the middle of a round
            made.append(index)
            yield Square(index)

    got = []
    for answer in desk.map(tasks(), {}):
        assert answer.fold.means["u"].total["w"].tolist() == [float(answer.index**2)] * 3
        got.append(answer.index)
        assert len(made) - len(got) <= 2 * workers + len(LANES) * workers + 1  # no task is made long before its turn
    assert got == made == list(range(7, 7 + count))
    assert not any(h.tasks or h.held for h in desk.handles)


@given(st.integers(1, 5), st.integers(1, 25), st.data())
def test_an_error_has_its_turn(workers, count, data):
    """All answers before it come first: what they complete is not lost."""
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    answers = Desk(workers, data.draw).map(((Bad if i in bad else Square)(i) for i in range(count)), {})
    assert [next(answers).index for _ in range(min(bad))] == list(range(min(bad)))
    with pytest.raises(LookupError, match="planned"):
        next(answers)


class Halved(Desk):
    """Of its two workers one is never ready: it takes for ever, or it is lost again and again."""

    def __init__(self, *, lost: bool) -> None:
        self._lost = lost
        super().__init__(2, None)

    def start_worker(self, number):
        handle = Paper(number)
        handle.ready = number == 0
        return handle

    def wait(self, *, patient=True):
        one, other = self.handles
        other.gone = self._lost
        return [h for h in (one, other) if h.tasks or (self._lost and not h.ready)] if patient else []


def test_others_do_the_work_while_a_worker_starts():
    assert len(list(Halved(lost=False).map(map(Square, range(40)), {}))) == 40


def test_workers_that_cannot_start_are_not_started_for_ever():
    with pytest.raises(FedexpError, match="end before their first task"):
        list(Halved(lost=True).map(map(Square, range(1000)), {}))


def test_workers_have_one_map_at_a_time():
    desk = Desk(2, None)
    desk.wait = lambda patient: [next(h for h in desk.handles if h.tasks)] if patient else []
    first = desk.map(map(Square, range(9)), {})
    next(first)
    with pytest.raises(RuntimeError, match="asks_clients"):
        next(desk.map(map(Square, range(9)), {}))
    first.close()
    assert len(list(desk.map(map(Square, range(9)), {}))) == 9


def test_an_answer_that_waits_too_long_is_copied_before_its_lane_is_used_again():
    """Two workers: the first never answers until the second has done all the rest."""
    desk = Desk(2, None)
    desk.wait = lambda patient: [next(h for h in reversed(desk.handles) if h.tasks)] if patient else []
    totals = [a.fold.means["u"].total["w"][0].item() for a in desk.map(map(Square, range(20)), {})]
    assert totals == [float(i**2) for i in range(20)]
