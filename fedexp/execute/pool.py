"""Tasks dealt out to workers elsewhere, and again if a worker is lost: they are functions of their inputs."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

import torch

from fedexp.client.worker import Worker
from fedexp.core.state import Message
from fedexp.errors import ClientError, FedexpError
from fedexp.execute.base import Say
from fedexp.execute.shared_memory import BufferAllocator, Memory, Part, SharedBuffer, TensorPickle, opened
from fedexp.execute.task import Task, TaskResult
from fedexp.system.resources import keep_freed_memory

TASKS_PER_WORKER = 2  # at a time: the one it works on, and the next, so that it need not wait for the main process
LANES = ("a", "b", "c", "d")  # ways between us and a worker: for its tasks, and for answers that wait for their turn
MAX_WORKERS_LOST = 3  # workers that may die while they work on the same task
MORE_STARTS = 8  # factor on the starts that may fail, if other workers do the work meanwhile
READY = "ready"  # the lane in which a new worker says that it is there; until then others do the work


class WorkerDied(Exception):  # noqa: N818 - not an error of the run
    """The worker process died."""


# ---------------------------------------------------------------- where the worker is
def answered(
    task: Task, worker: Worker, broadcast: Message, transfer: float, buffer: SharedBuffer | None = None
) -> tuple[float | Exception, TensorPickle]:
    """The answer to a task: seconds spent on moving, and a pickle of it; or its error.

    Sums are made in the buffer, if there is one, where the pickle will be.
    """
    worker.allocate = room = BufferAllocator(buffer)
    try:
        answer = task.by(worker, broadcast)
    except Exception as error:
        return _sendable(error), TensorPickle(None, None)
    started = time.perf_counter()
    in_place, copied = answer.fold.means, replace(answer, fold=replace(answer.fold, means={}))
    pickled = TensorPickle(in_place, copied, room=room)
    return transfer + time.perf_counter() - started, pickled


def _sendable(error: Exception) -> Exception:
    """The error, or, if it is a programming error, one that carries its traceback to the main process."""
    if isinstance(error, FedexpError):
        return error
    return RuntimeError(f"in a worker process: {type(error).__name__}: {error}\n{traceback.format_exc()}")


# ---------------------------------------------------------------- in the main process
Reply = tuple[float | Exception, Sequence[Part], Memory]  # what ``answered`` sent, and where its tensors lie


@dataclass(eq=False)
class Arrival:
    """An answer that has come: where it lies until its turn, or a copy of it; or an error, which has its turn too."""

    index: int
    lane: str
    transfer: float | Exception
    parts: Sequence[Part]
    memory: Memory
    settled: TaskResult | None = None

    def settle(self) -> None:
        """Copies the answer, so that its lane is free."""
        if not isinstance(self.transfer, Exception):
            self.settled = self.open(copy=True)

    def open(self, *, copy: bool = False) -> TaskResult:
        """The answer; unless copied, its sums are read where they lie."""
        if isinstance(self.transfer, Exception):
            raise self.transfer
        if self.settled is not None:
            return self.settled
        started = time.perf_counter()
        means, answer = opened(self.parts[0], self.memory, copy=copy), opened(self.parts[1], self.memory, copy=True)
        filled: TaskResult = replace(answer, fold=replace(answer.fold, means=means))
        return replace(filled, transfer=self.transfer + time.perf_counter() - started)


@dataclass
class WorkerHandle(ABC):
    """A worker as the main process sees it."""

    number: int
    tasks: dict[str, Task] = field(default_factory=dict, init=False)  # by lane, oldest first
    held: list[Arrival] = field(default_factory=list, init=False)  # answers that still lie in their lane
    answered: int = field(default=0, init=False)
    ready: bool = field(default=True, init=False)  # for tasks

    @abstractmethod
    def give(self, lane: str, task: Task) -> None:
        """Sends a task, without what everyone gets.

        Raises:
            WorkerDied: If it cannot be reached.
        """

    @abstractmethod
    def fetch(self) -> tuple[str, Reply] | None:
        """The lane and the reply that has come; None if what has come is that the worker is ready.

        Raises:
            WorkerDied: If the worker is.
        """

    def take(self) -> Arrival | None:
        """The answer or error that has come, if it is one."""
        if (news := self.fetch()) is None:
            return None
        lane, (header, parts, memory) = news
        task = self.tasks.pop(lane)
        self.answered += 1
        self.held.append(Arrival(task.index, lane, header, parts, memory))
        return self.held[-1]

    def free_lane(self) -> str:
        """A lane that is not in use. If answers that wait for their turn have all of them, the oldest is copied."""
        if len(self.tasks) + len(self.held) == len(LANES):
            self.held.pop(0).settle()
        used = {*self.tasks, *(arrival.lane for arrival in self.held)}
        return next(lane for lane in LANES if lane not in used)

    def release(self, arrival: Arrival) -> None:
        """Is told that an answer is not needed any more."""
        if arrival in self.held:
            self.held.remove(arrival)

    @abstractmethod
    def end(self) -> str:
        """Ends it, if it is not ended; says how it ended."""


H = TypeVar("H", bound=WorkerHandle)


class Pool(ABC, Generic[H]):
    """Workers that are kept to the end of the run. One that is lost is replaced and its tasks are done again."""

    words: ClassVar[str]  # where a worker's own words are

    def __init__(self, workers: int, threads: int, say: Say) -> None:
        torch.set_num_threads(threads)  # ours would take the cores that the workers are on
        keep_freed_memory()
        self.workers = workers
        self.handles: list[H] = []
        self._say = say
        self._failed_starts = 0

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]:
        """The answers, in the order of the tasks."""
        if any(handle.tasks for handle in self.handles):
            raise RuntimeError(
                "the workers are at the tasks of another map. A protocol whose personal() asks clients must say "
                "so with asks_clients."
            )
        self.announce(broadcast)
        try:
            yield from _Turn(self, tasks).answers()
        finally:
            for handle in self.handles:
                handle.held.clear()
                if handle.tasks:  # given up: an error, or Ctrl-C. Replaced when it is needed, if ever
                    handle.end()
                    handle.tasks = {}

    def underway(self) -> float:
        """Clients that are being trained right now; nothing is known of them until they are done."""
        return 0.0

    @abstractmethod
    def start_worker(self, number: int) -> H:
        """A new worker."""

    @abstractmethod
    def announce(self, broadcast: Message) -> None:
        """Puts what everyone gets where all workers see it."""

    @abstractmethod
    def sync(self, handle: H) -> None:
        """Tells a worker that is ready of what was announced.

        Raises:
            WorkerDied: If it cannot be reached.
        """

    @abstractmethod
    def wait(self, *, patient: bool = True) -> Sequence[H]:
        """The workers of which there is something to ``take``: as soon as there is one, or right now, if any."""

    def replace_worker(self, handle: H) -> str:
        """Puts another worker in the place of one that is gone; says how that one ended.

        Raises:
            FedexpError: If workers end before they have done anything.
        """
        why = handle.end()
        self._failed_starts = 0 if handle.answered else self._failed_starts + 1
        others = any(h.answered for h in self.handles)  # and do the work meanwhile
        if self._failed_starts >= (self.workers + MAX_WORKERS_LOST) * (MORE_STARTS if others else 1):
            raise FedexpError(
                f"Workers end before their first task ({why}); {self.words}. executor=serial does without them."
            )
        if handle.tasks:
            self._say(f"a worker was lost ({why}); another one does its work again")
        elif not handle.answered:
            self._say(f"a worker ended before its first task ({why}); another one is started")
        self.handles[handle.number] = self.start_worker(handle.number)
        return why


class _Turn(Generic[H]):
    """One ``map``: tasks are handed out in their order."""

    def __init__(self, pool: Pool[H], tasks: Iterable[Task]) -> None:
        self._pool = pool
        self._tasks = iter(tasks)
        self._next: deque[Task] = deque()
        self._due: deque[int] = deque()  # of tasks that are not answered yet, in their order
        self._arrived: dict[int, tuple[H, Arrival]] = {}
        self._losses: Counter[int] = Counter()

    def answers(self) -> Iterator[TaskResult]:
        """The answers in the order of their tasks."""
        for handle in list(self._pool.handles):
            self._sync(handle)
        while self._deal() or self._due:
            ready = bool(self._due) and self._due[0] in self._arrived
            for handle in self._pool.wait(patient=not ready):
                self._receive(handle)
            if ready:
                self._deal()  # before we add up: a worker shall not wait for that
                whose, first = self._arrived.pop(self._due.popleft())
                yield first.open()
                whose.release(first)

    def _receive(self, handle: H) -> None:
        if handle is not self._pool.handles[handle.number]:  # replaced meanwhile
            return
        try:
            arrival = handle.take()
        except WorkerDied:
            self._replace(handle)
            return
        if arrival is None:
            self._sync(handle)
        else:
            self._arrived[arrival.index] = handle, arrival

    def _deal(self) -> bool:
        """Gives tasks to whoever has room for one; returns whether anything is left to be done."""
        for already in range(TASKS_PER_WORKER):
            for handle in list(self._pool.handles):
                if len(handle.tasks) == already:
                    self._give(handle)
        return self._more() or any(h.tasks for h in self._pool.handles)

    def _more(self) -> bool:
        """Whether there are tasks to hand out; they are made no earlier than needed."""
        while len(self._next) <= self._pool.workers and (task := next(self._tasks, None)) is not None:
            self._next.append(task)
            self._due.append(task.index)
        return bool(self._next)

    def _sync(self, handle: H) -> None:
        try:
            self._pool.sync(handle)
        except WorkerDied:  # it died while idle
            self._replace(handle)

    def _give(self, handle: H) -> None:
        """Gives a worker its next task, or a second one while there are enough for the others."""
        if not handle.ready or not self._more() or (handle.tasks and len(self._next) < self._pool.workers):
            return
        lane = handle.free_lane()
        task = handle.tasks[lane] = self._next.popleft()
        try:
            handle.give(lane, task)
        except WorkerDied:
            self._replace(handle)

    def _replace(self, handle: H) -> None:
        lost = list(handle.tasks.values())
        why = self._pool.replace_worker(handle)
        if lost:
            self._count(lost[0], why)
        self._next.extendleft(reversed(lost))
        self._sync(self._pool.handles[handle.number])

    def _count(self, task: Task, why: str) -> None:
        self._losses[task.index] += 1
        if self._losses[task.index] > MAX_WORKERS_LOST:
            clients = ", ".join(str(j.client) for j in task.jobs)
            what = f"The work of clients {clients}" if clients else "A test of the server's model"
            raise ClientError(
                f"{what} has ended {MAX_WORKERS_LOST + 1} workers ({why}; -9 may be a lack of memory). Try fewer "
                "workers (executor.workers), or executor=serial to see the cause."
            )
