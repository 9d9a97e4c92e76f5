"""What a worker is asked for, and what it answers: tensors and numbers only, so that both can go anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from fedexp.evaluate import Score
from fedexp.reduce import Fold
from fedexp.state import Message

if TYPE_CHECKING:
    from fedexp.client import Job, Result
    from fedexp.worker import Worker


def nothing() -> Fold:
    """The fold of no uploads."""
    return Fold({}, {})


@dataclass(frozen=True)
class Answer:
    """An answer to the task with the same index."""

    index: int
    results: tuple[Result, ...] = ()
    fold: Fold = field(default_factory=nothing)  # of the results' uploads
    scores: tuple[Score, ...] = ()  # of the server's model
    transfer: float = 0.0  # seconds spent on moving it


@dataclass(frozen=True)
class Task(ABC):
    """Something to be done. ``index`` is its place in the order in which answers count."""

    index: int
    jobs: tuple[Job, ...] = ()

    @abstractmethod
    def by(self, worker: Worker, broadcast: Message) -> Answer:
        """Lets a worker do it. ``broadcast`` is what the server sends to everyone."""

    def including(self, broadcast: Message) -> Self:
        """The task with jobs that have what everyone gets; it travels once, and not with every task."""
        return replace(self, jobs=tuple(replace(j, downlink={**broadcast, **j.downlink}) for j in self.jobs))


class Train(Task):
    """A round of some clients, whose uploads are summed."""

    def by(self, worker: Worker, broadcast: Message) -> Answer:  # noqa: ARG002
        results, fold = worker.train(self.jobs)
        return Answer(self.index, results, fold)


class Visit(Task):
    """A round of some clients of which only the measurements are wanted."""

    def by(self, worker: Worker, broadcast: Message) -> Answer:  # noqa: ARG002
        return Answer(self.index, worker.visit(self.jobs))


class Measure(Task):
    """A test of some clients' personal models as they stand."""

    def by(self, worker: Worker, broadcast: Message) -> Answer:  # noqa: ARG002
        return Answer(self.index, worker.test(self.jobs))


@dataclass(frozen=True)
class MeasureServer(Task):
    """A test of the server's model on a stretch of the global test set, one score for each batch."""

    span: tuple[int, int] = (0, 0)

    def by(self, worker: Worker, broadcast: Message) -> Answer:
        return Answer(self.index, scores=tuple(worker.test_server(broadcast, self.span)))


def complete(answers: Iterable[Answer], count: int) -> Iterator[Answer]:
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
