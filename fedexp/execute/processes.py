"""Tasks in parallel on one machine: persistent worker processes, tensors in shared memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from fedexp.errors import ClientError, FedexpError
from fedexp.execute.base import Blueprint, Say, quiet
from fedexp.execute.shared import Arena, Parcel, opened
from fedexp.execute.task import Answer, Task
from fedexp.resources import cores
from fedexp.state import Message
from fedexp.stop import unheard
from fedexp.worker import Worker

LANES = ("first", "second")  # a worker has one task under way and may have one waiting, so that it need not wait for us
LIVES = 3  # workers that one task may cost


class Channel:
    """One end of a connection. Every lane has an arena for what this end sends, replaced when it is too small."""

    def __init__(self, fd: int) -> None:
        self.connection = Connection(fd)
        self._sent: dict[str, Arena] = {}
        self._received: dict[str, Arena] = {}

    def send(self, lane: str, header: Any, parcel: Parcel, arena: Arena | None = None) -> None:
        """Sends a parcel, in a given arena that is filled already or in the lane's own."""
        known = self._sent.get(lane)
        if arena is None:
            arena = known if known is not None and known.size >= parcel.size else Arena(parcel.size)
            parcel.fill(arena)
        self.connection.send((lane, arena.size if arena is not known else 0, header, parcel.parts))
        if arena is not known:
            self._sent[lane] = arena
            send_handle(self.connection, arena.fd, None)

    def receive(self) -> tuple[str, Any, list[bytes], Arena]:
        """Lane, header and parts of the next parcel, and the arena in which its tensors lie.

        Raises:
            EOFError, OSError: If the other end is gone.
        """
        lane, new, header, parts = self.connection.recv()
        if new:
            self._received[lane] = Arena(new, recv_handle(self.connection))
        return lane, header, parts, self._received[lane]


# ---------------------------------------------------------------- in the worker
def serve(fd: int, number: int, threads: int) -> None:
    """A worker process from its first to its last task. Signals are for the main process, whose end is ours too."""
    channel = Channel(fd)
    try:
        while True:
            lane, _, parts, arena = channel.receive()
            started = time.perf_counter()
            content = opened(parts[0], arena)
            transfer = time.perf_counter() - started
            if lane == "blueprint":
                worker = content.worker(threads=threads, number=number)
            elif lane == "broadcast":
                broadcast = content
            else:
                _answer(channel, lane, content, worker, broadcast, transfer)
    except (EOFError, ConnectionError):
        return


def _answer(
    channel: Channel, lane: str, task: Task, worker: Worker, broadcast: Message, transfer: float
) -> None:  # fmt: skip
    try:
        answer = task.including(broadcast).by(worker, broadcast)
    except Exception as error:
        channel.send(lane, _sendable(error), Parcel(None, None))
        return
    started = time.perf_counter()
    parcel = Parcel(
        answer.fold.means, replace(answer, fold=replace(answer.fold, means={}))
    )  # read in place, and copied
    channel.send(lane, transfer + time.perf_counter() - started, parcel)


def _sendable(error: Exception) -> Exception:
    """The error, or, if it is a programming error, one that carries its traceback to the main process."""
    if isinstance(error, FedexpError):
        return error
    return RuntimeError(f"in a worker process: {type(error).__name__}: {error}\n{traceback.format_exc()}")


# ---------------------------------------------------------------- in the main process
_SERVE = (
    "from fedexp.stop import leave_with; leave_with({parent}); "  # before the imports, which take their time
    "from fedexp.lean import import_lightning; import_lightning(); "
    "from fedexp.execute.processes import serve; serve({fd}, {number}, {threads})"
)


@dataclass
class Hand:
    """A worker as the main process sees it."""

    number: int
    process: subprocess.Popen[bytes]
    channel: Channel
    tasks: dict[str, Task] = field(default_factory=dict)  # by lane, oldest first
    answered: int = 0


class ProcessExecutor:
    """A pool of worker processes, kept to the end of the run.

    The data set and the round's weights are in memory once, however many workers there are. A worker that dies is
    replaced and its tasks are done again: they are functions of their inputs, so no number changes.

    Args:
        blueprint: What a worker is made of.
        workers: Worker processes; None for one per core (or ``per_device`` on each accelerator).
        threads: Torch's threads in each of them.
        per_device: Workers on each accelerator, if there are any.
        say: Where a lost worker is reported.
    """

    def __init__(
        self, blueprint: Blueprint, *, workers: int | None = None, threads: int = 1, per_device: int = 1,
        say: Say = quiet,
    ) -> None:  # fmt: skip
        self.workers = workers or blueprint.places(per_device) or max(cores() // threads, 1)
        self._threads, self._say = threads, say
        self._broadcast = Arena(0)
        self._failed_starts = 0
        self._hands: list[Hand] = []
        self.use(blueprint)
        self._hands = [self._hire(number) for number in range(self.workers)]

    def use(self, blueprint: Blueprint) -> None:
        """From now on tasks are done by workers of this blueprint."""
        self._parcel = Parcel(blueprint)
        self._arena = Arena(self._parcel.size)
        self._parcel.fill(self._arena, moving={id(t) for t in blueprint.data.samples})
        for hand in self._hands:
            try:
                hand.channel.send("blueprint", None, self._parcel, self._arena)
            except OSError:  # it died while idle
                self.rehire(hand)

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[Answer]:
        """The answers, as they come."""
        turn = _Turn(self, tasks, broadcast)
        try:
            yield from turn.answers()
        finally:
            for hand in self._hands:
                if hand.tasks:  # given up: an error, or Ctrl-C. Replaced when it is needed, if ever
                    hand.process.kill()
                    hand.process.wait()
                    hand.tasks = {}

    def close(self) -> None:
        """Lets the workers go."""
        for hand in self._hands:
            hand.channel.connection.close()
            if hand.tasks:  # nobody waits for its answer
                hand.process.kill()
        for hand in self._hands:
            try:
                hand.process.wait(2)
            except subprocess.TimeoutExpired:
                hand.process.kill()
                hand.process.wait()
        self._hands = []

    # ------------------------------------------------------------ for a turn
    @property
    def hands(self) -> list[Hand]:
        """The workers."""
        return self._hands

    def broadcasting(self, message: Message) -> tuple[Parcel, Arena]:
        """What everyone gets, in an arena that all workers see."""
        parcel = Parcel(message)
        if parcel.size > self._broadcast.size:
            self._broadcast = Arena(parcel.size)
        parcel.fill(self._broadcast)
        return parcel, self._broadcast

    def rehire(self, hand: Hand) -> int:
        """Replaces a worker by a new one; returns the old one's exit code.

        Raises:
            FedexpError: If workers die before they have done anything.
        """
        hand.channel.connection.close()
        hand.process.kill()
        code = hand.process.wait()
        self._failed_starts = 0 if any(h.answered for h in self._hands) else self._failed_starts + 1
        if self._failed_starts > LIVES:
            raise FedexpError(
                f"Worker processes end before their first task (exit code {code}); their own words are above. "
                "executor=serial does without them."
            )
        if hand.tasks and code:
            self._say(f"a worker process ended with exit code {code}; another one does its work again")
        new = self._hire(hand.number)
        hand.process, hand.channel, hand.tasks, hand.answered = new.process, new.channel, {}, 0
        return code

    def _hire(self, number: int) -> Hand:
        ours, theirs = socket.socketpair()
        code = _SERVE.format(parent=os.getpid(), fd=theirs.fileno(), number=number, threads=self._threads)
        path = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
        with unheard():
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(self._threads)},
                stdin=subprocess.DEVNULL,
            )
        theirs.close()
        hand = Hand(number, process, Channel(ours.detach()))
        hand.channel.send("blueprint", None, self._parcel, self._arena)
        return hand


class _Turn:
    """One ``map``: tasks are handed out in their order, and again if their worker dies."""

    def __init__(self, pool: ProcessExecutor, tasks: Iterable[Task], broadcast: Message) -> None:
        self._pool, self._broadcast = pool, broadcast
        self._parcel, self._arena = pool.broadcasting(broadcast)
        self._tasks = iter(tasks)
        self._next: deque[Task] = deque()
        self._lives: Counter[int] = Counter()

    def answers(self) -> Iterator[Answer]:
        hands = self._pool.hands
        for hand in hands:
            self._greet(hand)
        for lane in LANES:
            for hand in hands:
                self._give(hand, lane)
        while busy := {h.channel.connection: h for h in hands if h.tasks}:
            for connection in wait(list(busy)):
                hand = busy[connection]  # type: ignore[index]
                try:
                    lane, header, parts, arena = hand.channel.receive()
                except (EOFError, OSError):
                    self._replace(hand)
                    continue
                del hand.tasks[lane]
                hand.answered += 1
                if isinstance(header, Exception):
                    raise header
                started = time.perf_counter()
                means, answer = opened(parts[0], arena), opened(parts[1], arena, copy=True)
                fold = replace(answer.fold, means=means)
                yield replace(answer, fold=fold, transfer=header + time.perf_counter() - started)
                self._give(hand, lane)

    def _greet(self, hand: Hand) -> None:
        try:
            hand.channel.send("broadcast", None, self._parcel, self._arena)
        except OSError:  # it died while idle
            self._replace(hand)

    def _give(self, hand: Hand, lane: str) -> None:
        """Gives a worker its next task, or a second one while there are enough for the others."""
        workers = len(self._pool.hands)
        while len(self._next) <= workers and (task := next(self._tasks, None)) is not None:
            self._next.append(task)
        if not self._next or (hand.tasks and len(self._next) < workers):
            return
        task = self._next.popleft()
        hand.tasks[lane] = task
        try:
            hand.channel.send(lane, None, Parcel(task.without(self._broadcast)))
        except OSError:
            self._replace(hand)

    def _replace(self, hand: Hand) -> None:
        lost = list(hand.tasks.values())
        code = self._pool.rehire(hand)
        if lost:
            self._lives[lost[0].index] += 1
            if self._lives[lost[0].index] > LIVES:
                who = ", ".join(str(j.client) for j in lost[0].jobs)
                raise ClientError(
                    f"The work of clients {who} has ended {LIVES + 1} worker processes (exit code {code}; -9 may be a "
                    "lack of memory). Try fewer workers (executor.workers), or executor=serial to see the cause."
                )
        self._next.extendleft(reversed(lost))
        self._greet(hand)
        for lane in LANES:
            self._give(hand, lane)
