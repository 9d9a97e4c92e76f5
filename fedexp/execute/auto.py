"""The executor that finds out: it begins in this process, and starts workers as soon as they are worth their start."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from statistics import mean

import torch

from fedexp.core.ranges import Threads
from fedexp.core.state import Message
from fedexp.errors import ConfigError
from fedexp.execute.base import Blueprint, Executor, Say, SerialExecutor, quiet
from fedexp.execute.processes import ProcessExecutor
from fedexp.execute.task import Measure, Task, TaskResult

WARM_UP = 5.0  # seconds, below which the first task is not measured: it pays for what later ones find ready
MIN_SAVING = 1.5  # workers are started if they save this many times the time of their start
CONTEXT_BYTES = 600_000_000  # of an accelerator's memory, which a process takes before it does anything
MAX_PER_DEVICE = 4  # workers on one accelerator


class AutoExecutor:
    """Serial for tiny runs; processes where the time measured so far says that they pay. The numbers are equal.

    On a CPU there is one single-threaded worker per core, but not more than clients in a round; on accelerators as
    many workers per device as fit into its free memory, at most four.
    """

    def __init__(self, blueprint: Blueprint, *, threads: Threads = 1, say: Say = quiet) -> None:
        self._blueprint, self._threads, self._say = blueprint, threads, say
        self._start = min(time.process_time(), 10.0)  # a worker imports what we have imported
        self._executor: Executor = SerialExecutor(blueprint, threads=threads)
        self._samples: list[float] = blueprint.facts.counts.sum(1).tolist()  # by client
        self._seconds, self._work = 0.0, 0.0  # of the tasks so far; work is the number of samples
        self._warm = False
        self._alone = False  # and the user knows it

    def use(self, blueprint: Blueprint) -> None:
        """From now on tasks are done by workers of this blueprint."""
        self._blueprint = blueprint
        self._executor.use(blueprint)

    @property
    def workers(self) -> int:
        """Workers in use now."""
        return self._executor.workers

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]:
        """The answers; from some task on in parallel."""
        rest = iter(tasks)
        while self._executor.workers == 1 and (task := next(rest, None)) is not None:
            started = time.perf_counter()
            yield from self._executor.map([task], broadcast)
            self._learn(task, time.perf_counter() - started)
        if self._executor.workers == 1 and self._warm and not self._alone:  # for now: long rounds may be yet to come
            self._alone = True
            self._say("executor: this process alone; workers would not be worth their start")
        yield from self._executor.map(rest, broadcast)

    def underway(self) -> float:
        """Clients that are being trained right now, as far as each of them is."""
        return self._executor.underway()

    def close(self) -> None:
        """Lets workers go, if there are any."""
        self._executor.close()

    def _learn(self, task: Task, seconds: float) -> None:
        """Counts what a task took, and starts workers if the rest of the run is long enough."""
        if not task.jobs:
            return
        cold, self._warm = not self._warm, True
        if cold and seconds < WARM_UP:
            return
        self._seconds += seconds
        if not isinstance(task, Measure):  # which only tests
            self._work += sum(job.share * self._samples[job.client] for job in task.jobs)
        if not self._work:
            return
        rounds = self._blueprint.facts.rounds - task.jobs[0].round
        clients = task.ahead if task.jobs[0].final else rounds * self._blueprint.cohort
        left = clients * mean(self._samples) * self._seconds / self._work
        workers = self._blueprint.worker_count(self._threads, _per_device())
        if left * (1 - 1 / workers) > MIN_SAVING * self._start:
            self._start_workers(workers, f"one would need about {left:.0f} s more")

    def _start_workers(self, workers: int, why: str) -> None:
        """Goes on with worker processes, if they can do the work."""
        try:
            self._executor = ProcessExecutor(self._blueprint, workers=workers, threads=self._threads, say=self._say)
        except ConfigError as error:
            self._start = math.inf  # never again
            self._alone = True
            self._say(f"executor: this process alone. {error}")
        else:
            self._say(f"executor: {workers} worker processes; {why}")


def _per_device() -> int:
    """How many workers fit on an accelerator, by what the first of them has taken."""
    if not torch.cuda.is_available():
        return 1
    free, _ = torch.cuda.mem_get_info()
    used: int = torch.cuda.max_memory_reserved() + CONTEXT_BYTES
    return max(min(int(free / (1.5 * used)), MAX_PER_DEVICE), 1)
