"""What executors have in common."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch

from fedexp.client.faults import RAISE, Faults
from fedexp.client.loops import Loop
from fedexp.client.messages import Local
from fedexp.client.optim import OptimizerFactory
from fedexp.client.worker import Worker
from fedexp.core.algorithm import Algorithm, Components
from fedexp.core.devices import free_memory
from fedexp.core.ranges import Threads
from fedexp.core.state import Message
from fedexp.core.views import Facts
from fedexp.data.federated import FederatedData
from fedexp.execute.task import Task, TaskResult
from fedexp.models.split import SplitModel
from fedexp.probes.observer import Probes
from fedexp.server.sampler import cohort_size
from fedexp.system.resources import cores, keep_freed_memory

MAX_SHARE = 0.5  # of a device's free memory, for data that stay there


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
    probes: Probes = field(default_factory=dict)
    group: int | None = None  # clients that the loop takes together; None: one after another

    def worker(self, *, threads: int, number: int = 0) -> Worker:
        """A worker with a network of its own; workers are dealt out to the accelerators by their number."""
        torch.set_num_threads(threads)
        keep_freed_memory()
        loop = self.loop(number=number)
        resident = sum(t.nbytes for t in self.data.samples) < MAX_SHARE * free_memory(loop.device)
        return Worker(
            copy.deepcopy(self.net), self.data.to(loop.device, resident=resident),
            Algorithm.compile(self.components, self.facts), loop, self.optimizer, self.local, self.faults, self.probes,
        )  # fmt: skip

    @property
    def cohort(self) -> int:
        """Clients in a round."""
        return cohort_size(self.facts.n_clients, self.facts.fraction)

    def worker_count(self, threads: int, per_device: int = 1) -> int:
        """As many workers as this machine has room for: so many on each accelerator or, without any, one per core."""
        return min(self.devices * per_device or max(cores() // threads, 1), self.most_workers)

    @property
    def most_workers(self) -> int:
        """More than that would have nothing to do in a round."""
        return -(-self.cohort // (self.group or 1))


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
