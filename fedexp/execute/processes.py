"""Tasks in parallel on one machine: persistent worker processes, tensors in shared memory."""

from __future__ import annotations

import mmap
import os
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from fedexp.core.ranges import PerDevice, Threads, Workers
from fedexp.core.state import Message
from fedexp.execute.base import Blueprint, Say, quiet
from fedexp.execute.pool import READY, Pool, Reply, WorkerDied, WorkerHandle, answered
from fedexp.execute.shared_memory import Part, SharedBuffer, TensorPickle, opened
from fedexp.execute.task import Task
from fedexp.system.resources import allow_many_files
from fedexp.system.signals import block_signals

EXIT_SECONDS = 1.0  # how long a process that has closed its connection may take to exit


class Channel:
    """One end of a connection. Every lane has a buffer for what this end sends, replaced when it is too small."""

    def __init__(self, fd: int) -> None:
        self.connection = Connection(fd)
        self._sent: dict[str, SharedBuffer] = {}
        self._received: dict[str, SharedBuffer] = {}

    def send(self, lane: str, header: Any, pickled: TensorPickle, buffer: SharedBuffer | None = None) -> None:
        """Sends a pickle, in a given buffer that is filled already or in the lane's own."""
        known, ours = self._sent.get(lane), buffer is None
        if buffer is None:
            buffer = known if known is not None and known.size >= pickled.size else SharedBuffer(pickled.size)
            pickled.fill(buffer)
        self.connection.send((lane, buffer.size if buffer is not known else 0, header, pickled.parts))
        if buffer is not known:
            self._sent[lane] = buffer
            send_handle(self.connection, buffer.fd, None)
            if ours:
                buffer.seal()

    def receive(self) -> tuple[str, Any, list[Part], SharedBuffer]:
        """Lane, header and parts of the next pickle, and the buffer in which its tensors lie.

        Raises:
            EOFError, OSError: If the other end is gone.
        """
        lane, new, header, parts = self.connection.recv()
        if new:
            self._received[lane] = buffer = SharedBuffer(new, recv_handle(self.connection))
            buffer.seal()
        return lane, header, parts, self._received[lane]

    def own(self, lane: str) -> SharedBuffer | None:
        """The buffer in which the last pickle was sent, which nobody reads once there is a new task in its lane."""
        return self._sent.get(lane)

    def close(self) -> None:
        """Ends the connection and lets go of the arenas."""
        self.connection.close()
        self._sent, self._received = {}, {}


# ---------------------------------------------------------------- in the worker
def serve(fd: int, meters: int, number: int, threads: int) -> None:
    """A worker process from its first to its last task. Signals are for the main process, whose end is ours too."""
    channel = Channel(fd)
    try:
        while True:
            lane, _, parts, buffer = channel.receive()
            started = time.perf_counter()
            content = opened(parts[0], buffer)
            transfer = time.perf_counter() - started
            if lane == "blueprint":
                worker = content.worker(threads=threads, number=number)
                worker.meter.write_to(_floats(meters), number)
                channel.send(READY, None, TensorPickle(None))
            elif lane == "broadcast":
                broadcast = content
            else:
                channel.send(lane, *answered(content, worker, broadcast, transfer, channel.own(lane)))
    except (EOFError, ConnectionError):
        return


# ---------------------------------------------------------------- in the main process
_SERVE = (  # the parent is watched before the imports, which take seconds
    "from fedexp.system.signals import exit_with_parent; exit_with_parent({parent}); "
    "from fedexp.system.fast_import import import_lightning; import_lightning(); "
    "from fedexp.execute.processes import serve; serve({fd}, {meters}, {number}, {threads})"
)


def _floats(file: int) -> memoryview[float]:
    """A file in memory as numbers that several processes see."""
    return memoryview(mmap.mmap(file, 0)).cast("d")


class Process(WorkerHandle):
    """A worker process and the channel to it."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], channel: Channel) -> None:
        super().__init__(number)
        self.ready = False
        self.process, self.channel = process, channel

    def give(self, lane: str, task: Task) -> None:
        """Sends a task."""
        self.send(lane, TensorPickle(task))

    def send(self, lane: str, pickled: TensorPickle, buffer: SharedBuffer | None = None) -> None:
        """Sends anything.

        Raises:
            WorkerDied: If the process is.
        """
        try:
            self.channel.send(lane, None, pickled, buffer)
        except OSError as cause:
            raise self._gone() from cause

    def fetch(self) -> tuple[str, Reply] | None:
        """The reply that has come."""
        try:
            lane, header, parts, buffer = self.channel.receive()
        except (EOFError, OSError) as cause:
            raise self._gone() from cause
        if lane == READY:
            self.ready = True
            return None
        return lane, (header, parts, buffer)

    def _gone(self) -> WorkerDied:
        """Lets it end by itself, so that its exit code is its own."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_SECONDS)
        return WorkerDied()

    def end(self) -> str:
        """Kills it."""
        self.channel.close()
        self.process.kill()
        return f"exit code {self.process.wait()}"


class ProcessExecutor(Pool[Process]):
    """A pool of worker processes.

    The data set and the round's weights are in memory once, however many workers there are.

    Args:
        blueprint: What a worker is made of.
        workers: Worker processes; None for one per core (or ``per_device`` on each accelerator), as far as a round has
            clients for them.
        threads: Torch's threads in each of them.
        per_device: Workers on each accelerator, if there are any.
        say: Where a lost worker is reported.
    """

    words = "their own words are above"

    def __init__(
        self, blueprint: Blueprint, *, workers: Workers | None = None, threads: Threads = 1,
        per_device: PerDevice = 1,
        say: Say = quiet,
    ) -> None:  # fmt: skip
        super().__init__(workers or blueprint.worker_count(threads, per_device), threads, say)
        allow_many_files()
        self._threads = threads
        self._arena = SharedBuffer(0)
        self._meters = SharedBuffer(8 * self.workers)  # a number for each worker
        self._underway = _floats(self._meters.fd)
        self.use(blueprint)
        self.handles = [self.start_worker(number) for number in range(self.workers)]

    def use(self, blueprint: Blueprint) -> None:
        """From now on tasks are done by workers of this blueprint."""
        pickled = TensorPickle(blueprint)
        buffer = SharedBuffer(pickled.size)
        pickled.fill(buffer, moving={id(t) for t in blueprint.data.samples})
        self._blueprint = pickled, buffer
        for handle in list(self.handles):
            try:
                handle.send("blueprint", *self._blueprint)
            except WorkerDied:  # it died while idle
                self.replace_worker(handle)

    def underway(self) -> float:
        """Clients that are being trained right now, as far as each of them is."""
        return sum(self._underway)

    def close(self) -> None:
        """Lets the workers go."""
        for handle in self.handles:
            handle.channel.close()
            if handle.tasks or not handle.ready:  # nobody waits for its answer, nor for the end of its imports
                handle.process.kill()
        for handle in self.handles:
            try:
                handle.process.wait(2)
            except subprocess.TimeoutExpired:
                handle.end()
        self.handles = []

    def start_worker(self, number: int) -> Process:
        """Starts a process."""
        ours, theirs = socket.socketpair()
        self._underway[number] = 0.0
        code = _SERVE.format(
            parent=os.getpid(), fd=theirs.fileno(), meters=self._meters.fd, number=number, threads=self._threads
        )
        path = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
        with block_signals():
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-c", code],  # what can be imported here, and nothing from the current folder
                pass_fds=[theirs.fileno(), self._meters.fd],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(self._threads)},
                stdin=subprocess.DEVNULL,
            )
        theirs.close()
        handle = Process(number, process, Channel(ours.detach()))
        with suppress(WorkerDied):  # which is seen when it is to get a task
            handle.send("blueprint", *self._blueprint)
        return handle

    def announce(self, broadcast: Message) -> None:
        """Fills a buffer that all workers see."""
        self._parcel = TensorPickle(broadcast)
        if self._parcel.size > self._arena.size:
            self._arena = SharedBuffer(self._parcel.size)
        self._parcel.fill(self._arena)

    def sync(self, handle: Process) -> None:
        """Sends the buffer, if it is a new one."""
        if handle.ready:
            handle.send("broadcast", self._parcel, self._arena)

    def wait(self, *, patient: bool = True) -> list[Process]:
        """The workers that have answered or ended."""
        busy = {h.channel.connection.fileno(): h for h in self.handles if h.tasks or not h.ready}
        if not busy:
            return []
        poll = select.poll()
        for fd in busy:
            poll.register(fd, select.POLLIN)
        return [busy[fd] for fd, _ in poll.poll(None if patient else 0)]
