"""Tasks dealt out to workers elsewhere, and again if a worker is lost: they are functions of their inputs."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

from fedexp.errors import ClientError, FedexpError
from fedexp.execute.base import Say
from fedexp.execute.shared import Memory, Parcel, opened
from fedexp.execute.task import Answer, Task
from fedexp.state import Message
from fedexp.worker import Worker

LANES = ("first", "second")  # a worker has one task under way and may have one waiting, so that it need not wait for us
LIVES = 3  # workers that one task may cost


class Gone(Exception):  # noqa: N818 - not an error of the run
    """A worker is no more."""


# ---------------------------------------------------------------- where the worker is
def answered(task: Task, worker: Worker, broadcast: Message, transfer: float) -> tuple[float | Exception, Parcel]:
    """The answer to a task that came without the broadcast: seconds spent on moving, and a parcel; or its error."""
    try:
        answer = task.including(broadcast).by(worker, broadcast)
    except Exception as error:
        return _sendable(error), Parcel(None, None)
    started = time.perf_counter()
    parcel = Parcel(answer.fold.means, replace(answer, fold=replace(answer.fold, means={})))  # read in place; copied
    return transfer + time.perf_counter() - started, parcel


def _sendable(error: Exception) -> Exception:
    """The error, or, if it is a programming error, one that carries its traceback to the main process."""
    if isinstance(error, FedexpError):
        return error
    return RuntimeError(f"in a worker process: {type(error).__name__}: {error}\n{traceback.format_exc()}")


# ---------------------------------------------------------------- in the main process
Reply = tuple[float | Exception, Sequence[bytes], Memory]  # what ``answered`` sent, and where its tensors lie


@dataclass
class Hand(ABC):
    """A worker as the main process sees it."""

    number: int
    tasks: dict[str, Task] = field(default_factory=dict, init=False)  # by lane, oldest first
    answered: int = field(default=0, init=False)
    ready: bool = field(default=True, init=False)  # for tasks

    @abstractmethod
    def give(self, lane: str, task: Task) -> None:
        """Sends a task, without what everyone gets.

        Raises:
            Gone: If it cannot be reached.
        """

    @abstractmethod
    def fetch(self) -> tuple[str, Reply] | None:
        """The lane and the reply that has come; None if what has come is that the worker is ready.

        Raises:
            Gone: If the worker is.
        """

    def take(self) -> Answer | None:
        """The answer that has come, if it is one; or its error is raised."""
        if (news := self.fetch()) is None:
            return None
        lane, (header, parts, memory) = news
        del self.tasks[lane]
        self.answered += 1
        if isinstance(header, Exception):
            raise header
        started = time.perf_counter()
        means, answer = opened(parts[0], memory), opened(parts[1], memory, copy=True)
        transfer = header + time.perf_counter() - started
        filled: Answer = replace(answer, fold=replace(answer.fold, means=means), transfer=transfer)
        return filled

    @abstractmethod
    def end(self) -> str:
        """Ends it, if it is not ended; says how it ended."""


H = TypeVar("H", bound=Hand)


class Pool(ABC, Generic[H]):
    """Workers that are kept to the end of the run. One that is lost is replaced and its tasks are done again."""

    words: ClassVar[str]  # where a worker's own words are

    def __init__(self, workers: int, say: Say) -> None:
        self.workers = workers
        self.hands: list[H] = []
        self._say = say
        self._failed_starts = 0

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[Answer]:
        """The answers, as they come."""
        self.announce(broadcast)
        try:
            yield from _Turn(self, tasks, broadcast).answers()
        finally:
            for hand in self.hands:
                if hand.tasks:  # given up: an error, or Ctrl-C. Replaced when it is needed, if ever
                    hand.end()
                    hand.tasks = {}

    @abstractmethod
    def hire(self, number: int) -> H:
        """A new worker."""

    @abstractmethod
    def announce(self, broadcast: Message) -> None:
        """Puts what everyone gets where all workers see it."""

    @abstractmethod
    def greet(self, hand: H) -> None:
        """Tells a worker of what was announced.

        Raises:
            Gone: If it cannot be reached.
        """

    @abstractmethod
    def wait(self) -> Sequence[H]:
        """The workers of which there is something to ``take``, as soon as there is one."""

    def rehire(self, hand: H) -> str:
        """Puts another worker in the place of one that is gone; says how that one ended.

        Raises:
            FedexpError: If workers end before they have done anything.
        """
        why = hand.end()
        self._failed_starts = 0 if any(h.answered for h in self.hands) else self._failed_starts + 1
        if self._failed_starts >= self.workers + LIVES:
            raise FedexpError(
                f"Workers end before their first task ({why}); {self.words}. executor=serial does without them."
            )
        if hand.tasks:
            self._say(f"a worker was lost ({why}); another one does its work again")
        self.hands[hand.number] = self.hire(hand.number)
        return why


class _Turn(Generic[H]):
    """One ``map``: tasks are handed out in their order."""

    def __init__(self, pool: Pool[H], tasks: Iterable[Task], broadcast: Message) -> None:
        self._pool, self._broadcast = pool, broadcast
        self._tasks = iter(tasks)
        self._next: deque[Task] = deque()
        self._lives: Counter[int] = Counter()

    def answers(self) -> Iterator[Answer]:
        for hand in list(self._pool.hands):
            self._greet(hand)
        while self._deal():
            for hand in self._pool.wait():
                if hand is not self._pool.hands[hand.number]:  # replaced meanwhile
                    continue
                try:
                    answer = hand.take()
                except Gone:
                    self._replace(hand)
                    continue
                if answer is not None:
                    yield answer
                self._deal()

    def _deal(self) -> bool:
        """Gives tasks to whoever has room for one; returns whether anything is left to be done."""
        for lane in LANES:
            for hand in list(self._pool.hands):
                if lane not in hand.tasks:
                    self._give(hand, lane)
        return self._more() or any(h.tasks for h in self._pool.hands)

    def _more(self) -> bool:
        """Whether there are tasks to hand out; they are made no earlier than needed."""
        while len(self._next) <= self._pool.workers and (task := next(self._tasks, None)) is not None:
            self._next.append(task)
        return bool(self._next)

    def _greet(self, hand: H) -> None:
        try:
            self._pool.greet(hand)
        except Gone:  # it died while idle
            self._replace(hand)

    def _give(self, hand: H, lane: str) -> None:
        """Gives a worker its next task, or a second one while there are enough for the others."""
        if not hand.ready or not self._more() or (hand.tasks and len(self._next) < self._pool.workers):
            return
        task = hand.tasks[lane] = self._next.popleft()
        try:
            hand.give(lane, task.without(self._broadcast))
        except Gone:
            self._replace(hand)

    def _replace(self, hand: H) -> None:
        lost = list(hand.tasks.values())
        why = self._pool.rehire(hand)
        if lost:
            self._count(lost[0], why)
        self._next.extendleft(reversed(lost))
        self._greet(self._pool.hands[hand.number])

    def _count(self, task: Task, why: str) -> None:
        self._lives[task.index] += 1
        if self._lives[task.index] > LIVES:
            clients = ", ".join(str(j.client) for j in task.jobs)
            what = f"The work of clients {clients}" if clients else "A test of the server's model"
            raise ClientError(
                f"{what} has ended {LIVES + 1} workers ({why}; -9 may be a lack of memory). Try fewer workers "
                "(executor.workers), or executor=serial to see the cause."
            )
