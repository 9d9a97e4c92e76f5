"""What a worker is asked for, and what it answers: tensors and numbers only, so that both can go anywhere."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fedexp.core.state import Message
from fedexp.evaluate.tester import Score
from fedexp.server.aggregate import Fold

if TYPE_CHECKING:
    from fedexp.client.messages import ClientResult, Job
    from fedexp.client.worker import Worker


def nothing() -> Fold:
    """The fold of no uploads."""
    return Fold({}, {})


@dataclass(frozen=True)
class TaskResult:
    """An answer to the task with the same index."""

    index: int
    results: tuple[ClientResult, ...] = ()
    fold: Fold = field(default_factory=nothing)  # of the results' uploads
    scores: tuple[Score, ...] = ()  # of the server's model
    seconds: float = 0.0  # that they took
    transfer: float = 0.0  # seconds spent on moving it


@dataclass(frozen=True)
class Task(ABC):
    """Something to be done. ``index`` is its place in the order in which answers count."""

    index: int
    jobs: tuple[Job, ...] = ()  # without what everyone gets: that travels once, and not with every task
    ahead: int = 0  # clients whose turn comes later, after the last round

    @abstractmethod
    def by(self, worker: Worker, broadcast: Message) -> TaskResult:
        """Lets a worker do it. ``broadcast`` is the server's state, or the part of it that is needed."""

    def _whole(self, worker: Worker, broadcast: Message) -> tuple[Job, ...]:
        """The jobs with what everyone gets."""
        sent = worker.algorithm.sent(broadcast)
        return tuple(replace(j, downlink={**sent, **j.downlink}) for j in self.jobs)


class Train(Task):
    """A round of some clients, whose uploads are summed."""

    def by(self, worker: Worker, broadcast: Message) -> TaskResult:
        results, fold = worker.train(self._whole(worker, broadcast))
        return TaskResult(self.index, results, fold)


class Visit(Task):
    """A round of some clients of which only the measurements are wanted."""

    def by(self, worker: Worker, broadcast: Message) -> TaskResult:
        return TaskResult(self.index, worker.visit(self._whole(worker, broadcast)))


@dataclass(frozen=True)
class Measure(Task):
    """A test of some clients' personal models, or of the models they receive, without a round."""

    personal: bool = True

    def by(self, worker: Worker, broadcast: Message) -> TaskResult:
        return TaskResult(self.index, worker.test(self._whole(worker, broadcast), personal=self.personal))


@dataclass(frozen=True)
class MeasureServer(Task):
    """A test of the server's model on a stretch of the global test set, one score for each batch."""

    span: tuple[int, int] = (0, 0)

    def by(self, worker: Worker, broadcast: Message) -> TaskResult:
        started = time.perf_counter()
        scores = tuple(worker.test_server(broadcast, self.span))
        return TaskResult(self.index, scores=scores, seconds=time.perf_counter() - started)


def complete(answers: Iterable[TaskResult], count: int) -> Generator[TaskResult, None, None]:
    """The same answers. That they are all there, in the order of their tasks, is what executors owe us.

    Raises:
        RuntimeError: If one is missing or out of order.
    """
    done = 0
    for answer in answers:
        if answer.index != done:
            raise RuntimeError(f"the answer to task {answer.index} came where that to task {done} was due")
        yield answer
        done += 1
    if done != count:
        raise RuntimeError(f"no answer came back for task {done} of {count}")
