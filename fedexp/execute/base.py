"""What executors have in common."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from fedexp.client.faults import RAISE, Faults
from fedexp.client.loops import Loop
from fedexp.client.messages import Local
from fedexp.client.optim import OptimizerFactory
from fedexp.client.worker import Worker
from fedexp.core.algorithm import Algorithm, Components
from fedexp.core.ranges import Threads
from fedexp.core.state import Message
from fedexp.core.views import Facts
from fedexp.data.federated import FederatedData
from fedexp.execute.task import Task, TaskResult
from fedexp.models.split import SplitModel
from fedexp.server.sampler import cohort_size
from fedexp.system.resources import cores, keep_freed_memory


@dataclass(frozen=True)
class Blueprint:
    """All that a worker is made of, in a form that can be sent to another process."""

    net: SplitModel
    data: FederatedData
    components: Components
    facts: Facts
    loop: Callable[..., Loop]
    optimizer: OptimizerFactory
    local: Local
    faults: Faults = RAISE
    devices: int = 0  # accelerators; 0: the CPU

    def worker(self, *, threads: int, number: int = 0) -> Worker:
        """A worker with a network of its own; workers are dealt out to the accelerators by their number."""
        torch.set_num_threads(threads)
        keep_freed_memory()
        loop = self.loop(number=number)
        return Worker(
            copy.deepcopy(self.net), self.data.to(loop.device), Algorithm.compile(self.components, self.facts), loop,
            self.optimizer, self.local, self.faults,
        )  # fmt: skip

    @property
    def cohort(self) -> int:
        """Clients in a round; more workers than that would have nothing to do."""
        return cohort_size(self.facts.n_clients, self.facts.fraction)

    def worker_count(self, threads: int, per_device: int = 1) -> int:
        """As many workers as this machine has room for: so many on each accelerator or, without any, one per core."""
        return min(self.devices * per_device or max(cores() // threads, 1), self.cohort)


Say = Callable[[str], None]  # to the user


def quiet(_: str) -> None:
    """Says nothing."""


class Executor(Protocol):
    """Does tasks. Each is made when its turn comes; answers come in their order, valid until the next is asked for."""

    @property
    def workers(self) -> int: ...
    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]: ...
    def use(self, blueprint: Blueprint) -> None: ...
    def underway(self) -> float: ...  # clients that are being trained right now, as far as each of them is, if known
    def close(self) -> None: ...


class SerialExecutor:
    """One task after another, in this process."""

    workers = 1

    def __init__(self, blueprint: Blueprint, *, threads: Threads = 1, say: Say = quiet) -> None:  # noqa: ARG002
        self._threads = threads
        self.use(blueprint)

    def use(self, blueprint: Blueprint) -> None:
        """From now on tasks are done by workers of this blueprint."""
        self._worker = blueprint.worker(threads=self._threads)

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]:
        """The answers, in order."""
        return (task.by(self._worker, broadcast) for task in tasks)

    def underway(self) -> float:
        """How far the running task is, in clients."""
        return self._worker.meter.value

    def close(self) -> None:
        """Has nothing to let go."""
