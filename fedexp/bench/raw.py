"""The raw limit: the same rounds as a loop written by hand, with nothing but torch.

Resident tensors, batches by permutation, a fused optimizer, one network per process whose weights are overwritten for
each client, sums in shared memory, clients and test batches taken from a common counter. No record, no file, no check.
The loop is FedAvg's; ``raw_map.py`` has MAP's, and ``raw_player.py`` plays either.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.client.optim import Sgd
from fedexp.config.make import make
from fedexp.server.sampler import UniformSampler

if TYPE_CHECKING:
    from fedexp.build import Experiment

TEST_BATCH = 500
Order = Callable[[int, int], Iterable[Tensor]]  # from round and client to the rows of each batch


@dataclass(frozen=True)
class Setting:
    """One way to use the machine."""

    processes: int
    threads: int
    channels_last: bool = False
    device: str = "cpu"  # any other has one process

    def __str__(self) -> str:
        layout = ", channels_last" if self.channels_last else ""
        device = "" if self.device == "cpu" else f", {self.device}"
        return f"{self.processes} × {self.threads} thread{'s' * (self.threads > 1)}{layout}{device}"


@dataclass(frozen=True)
class RawTask:
    """The samples, who owns which, and the network at its start."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    rows: Tensor  # [clients, samples]
    net: nn.Module
    optimizer: Sgd
    method: Mapping[str, Any]  # the settings of the method's components
    selections: int  # how often a client takes part in the whole run, on average

    def save(self, folder: Path) -> None:
        """Writes it where the raw loop's process finds it."""
        tensors = {k: v.contiguous() for k, v in vars(self).items() if isinstance(v, Tensor)}
        safetensors.torch.save_file(tensors, folder / "task.safetensors")
        rest = {k: v for k, v in vars(self).items() if k not in tensors}
        (folder / "parts.pickle").write_bytes(pickle.dumps(rest))

    @classmethod
    def load(cls, folder: Path) -> RawTask:
        """Reads what ``save`` wrote."""
        rest: dict[str, Any] = pickle.loads((folder / "parts.pickle").read_bytes())  # noqa: S301 - our own bytes
        return cls(**{**safetensors.torch.load_file(folder / "task.safetensors"), **rest})

    def to(self, device: str) -> RawTask:
        """The same with its samples and network on a device."""
        moved: dict[str, Any] = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved, net=self.net.to(device))

    @classmethod
    def of(cls, experiment: Experiment) -> RawTask:
        """What a run of fedexp is made of, so that both sides have the same."""
        data, config = experiment.data, experiment.config
        return cls(
            data.train.x, data.train.y, data.test.x, data.test.y,
            rows=torch.stack([torch.from_numpy(s.train) for s in experiment.splits]), net=experiment.net,
            optimizer=make(config["optim"]), method=config["algo"],
            selections=experiment.algorithm.facts.expected_selections,
        )  # fmt: skip


def carried(net: nn.Module) -> list[Tensor]:
    """What travels: parameters and running statistics. Counters of batches do not, since nothing reads them."""
    return [*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())]


def overwrite(own: Iterable[Tensor], given: Iterable[Tensor]) -> None:
    """Gives tensors the values of others."""
    with torch.no_grad():
        for mine, theirs in zip(own, given, strict=True):
            mine.copy_(theirs)


class Shuffle:
    """A new permutation of a client's rows for every epoch."""

    def __init__(self, rows: Tensor, epochs: int, size: int) -> None:
        self._rows, self._epochs, self._size = rows, epochs, size

    def __call__(self, round_: int, client: int) -> Iterator[Tensor]:  # noqa: ARG002
        """The batches of one client's round."""
        own = self._rows[client]
        for _ in range(self._epochs):
            yield from torch.split(own[torch.randperm(len(own), device=own.device)], self._size)


class RawWorker:
    """What one process does: train clients by FedAvg, test slices."""

    def __init__(self, task: RawTask, order: Order, memory: Sequence[Tensor], *, channels_last: bool) -> None:
        self._task, self._order, self._memory = task, order, memory
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._net = copy.deepcopy(task.net)
        self._weights = carried(self._net)
        if channels_last:
            self._net.to(memory_format=torch.channels_last)
        s = task.optimizer
        self._optimizer = torch.optim.SGD(
            self._net.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay, nesterov=s.nesterov,
            fused=True,
        )  # fmt: skip

    @staticmethod
    def remembered(task: RawTask) -> list[Tensor]:  # noqa: ARG004 - others remember something
        """What clients keep between rounds, one row of each tensor for a client: with FedAvg nothing."""
        return []

    def train(self, weights: Sequence[Tensor], total: Sequence[Tensor], round_: int, clients: Iterable[int]) -> int:
        """Trains clients from ``weights`` and leaves the sum of their weights in ``total``; returns the steps taken."""
        torch._foreach_zero_(list(total))
        self._net.train()
        steps = 0
        for client in clients:
            overwrite(self._weights, weights)
            self._optimizer.state.clear()
            steps += self._fit(client, self._order(round_, client), total)
        return steps

    def _fit(self, client: int, batches: Iterable[Tensor], total: Sequence[Tensor]) -> int:  # noqa: ARG002
        """A client's steps, and its upload added to ``total``."""
        steps = 0
        for rows in batches:
            x, y = self._batch(rows)
            self._step(F.cross_entropy(self._net(x), y))
            steps += 1
        self._upload(total)
        return steps

    def _batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self._task.x[rows].contiguous(memory_format=self._format), self._task.y[rows]

    def _step(self, loss: Tensor) -> None:
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()

    def _upload(self, total: Sequence[Tensor]) -> None:
        torch._foreach_add_(list(total), [w.detach() for w in self._weights])

    def test(self, weights: Sequence[Tensor], starts: Iterable[int]) -> int:
        """The correct answers in the test batches that begin at ``starts``."""
        overwrite(self._weights, weights)
        self._net.eval()
        correct = 0
        with torch.inference_mode():
            for start in starts:
                x = self._task.test_x[start : start + TEST_BATCH].contiguous(memory_format=self._format)
                answers = self._net(x).argmax(1)
                correct += int((answers == self._task.test_y[start : start + TEST_BATCH]).sum())
        return correct


class Crew:
    """All processes of the raw loop, and the round that they play. Several are forks of this one."""

    def __init__(
        self, task: RawTask, setting: Setting, order: Order, sampler: UniformSampler, worker: type[RawWorker]
    ) -> None:
        self._sampler, self._tests = sampler, range(0, len(task.test_y), TEST_BATCH)
        self.n_test = len(task.test_y)
        self.weights = [w.detach().clone() for w in carried(task.net)]
        self._totals = [[torch.zeros_like(w) for w in self.weights] for _ in range(setting.processes)]
        self._worker, self._memory = worker, worker.remembered(task)
        if setting.device == "cpu":
            for tensor in (*self.weights, *self._memory, *(t for total in self._totals for t in total)):
                tensor.share_memory_()  # type: ignore[no-untyped-call]
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        if setting.processes == 1:
            torch.set_num_threads(setting.threads)
            self._hand = worker(task, order, self._memory, channels_last=setting.channels_last)
            return
        context = mp.get_context("fork")
        self._counter = context.Value("i", 0)
        for index in range(setting.processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve, args=(index, task, setting, order, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def play(self, round_: int) -> tuple[dict[str, float], int, float]:
        """One round: seconds by kind of work, steps, accuracy."""
        clock = [time.perf_counter()]
        cohort = self._sampler(round_)
        steps = self._share("train", round_, cohort)
        clock.append(time.perf_counter())
        for weight, *totals in zip(self.weights, *self._totals, strict=True):
            torch.mul(sum(totals[1:], totals[0]), 1 / len(cohort), out=weight)
        clock.append(time.perf_counter())
        correct = self._share("test", round_, self._tests)
        clock.append(time.perf_counter())
        kinds = ("train", "aggregate", "evaluate")
        seconds = {kind: b - a for kind, a, b in zip(kinds, clock, clock[1:], strict=False)}
        return seconds, steps, correct / self.n_test

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()

    def _share(self, kind: str, round_: int, items: Sequence[int]) -> int:
        if not self._pipes:
            return self._work(self._hand, self._totals[0], kind, round_, items)
        self._counter.value = 0
        for pipe in self._pipes:
            pipe.send((kind, round_, items))
        return sum(pipe.recv() for pipe in self._pipes)

    def _work(self, hand: RawWorker, total: list[Tensor], kind: str, round_: int, items: Iterable[int]) -> int:
        return hand.train(self.weights, total, round_, items) if kind == "train" else hand.test(self.weights, items)

    def _serve(self, index: int, task: RawTask, setting: Setting, order: Order, pipe: Connection) -> None:
        torch.set_num_threads(setting.threads)
        torch.random.manual_seed(index)
        hand = self._worker(task, order, self._memory, channels_last=setting.channels_last)
        while (asked := pipe.recv()) is not None:
            kind, round_, items = asked
            pipe.send(self._work(hand, self._totals[index], kind, round_, _dealt(items, self._counter)))


def _dealt(items: Sequence[int], counter: Synchronized[int]) -> Iterator[int]:
    """Items that no other process has taken yet."""
    while True:
        with counter.get_lock():
            index = counter.value
            counter.value = index + 1
        if index >= len(items):
            return
        yield items[index]
