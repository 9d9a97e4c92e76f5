"""A data set dealt out to clients: resident tensors, index selections, no loader workers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from torch import Tensor

from fedexp.core.devices import send
from fedexp.core.seeding import derive
from fedexp.data.source import Augment, DataSpec, Samples
from fedexp.partition.base import ClientSplit


@dataclass(frozen=True)
class Info:
    """What a client knows about its own training data."""

    client: int
    n: int
    counts: Tensor  # [C] samples per class

    @property
    def share(self) -> Tensor:
        """The share of each class in the client's training samples."""
        return self.counts / self.counts.sum()

    @property
    def owned(self) -> Tensor:
        """Which classes the client has training samples of."""
        return self.counts > 0


@dataclass(frozen=True)
class Batches:
    """A stretch ``[begin, end)`` of a client's endless, seeded sequence of batches; a new order every epoch."""

    data: Samples
    device: torch.device  # where the batches are needed
    rows: Tensor  # the client's training samples
    size: int
    begin: int
    end: int
    seed: int
    augment: Augment | None

    def __len__(self) -> int:
        return self.end - self.begin

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step, rows in enumerate(self.selections()):
            batch = self.data.select(rows)
            yield self.augmented(send(batch.x, self.device), step), send(batch.y, self.device)

    def selections(self) -> Iterator[Tensor]:
        """The rows of each batch."""
        return islice(self._rows(), self.begin, self.end)

    def augmented(self, x: Tensor, step: int) -> Tensor:
        """The samples of a batch as they are trained on."""
        if self.augment is None:
            return x
        seed = derive(self.seed, "augment", self.begin + step)
        return self.augment(x, torch.Generator(x.device).manual_seed(seed))

    def _rows(self) -> Iterator[Tensor]:
        order = torch.Generator().manual_seed(self.seed)
        sizes = list(batch_sizes(len(self.rows), self.size))
        while True:
            mixed = self.rows.index_select(0, torch.randperm(len(self.rows), generator=order))
            yield from torch.split(send(mixed, self.data.y.device), sizes)


@dataclass(frozen=True)
class Groups:
    """Batches for steps that take several of them."""

    batches: Batches
    size: int

    def __len__(self) -> int:
        return len(self.batches) // self.size

    def __iter__(self) -> Iterator[tuple[tuple[Tensor, Tensor], ...]]:
        return zip(*[iter(self.batches)] * self.size, strict=True)


@cache
def batch_sizes(n: int, size: int) -> tuple[int, ...]:
    """How n samples fall into batches. A last batch of one sample joins the one before: batch norm cannot use it."""
    sizes = (size,) * (n // size) + ((n % size,) if n % size else ())
    return (*sizes[:-2], sizes[-2] + 1) if len(sizes) > 1 and sizes[-1] == 1 < size else sizes


class FederatedData:
    """The samples, and who owns which of them."""

    def __init__(
        self,
        spec: DataSpec,
        train: Samples,
        test: Samples,
        splits: Sequence[ClientSplit],
        augment: Augment | None = None,
    ) -> None:
        self.spec, self.train, self.test, self.augment = spec, train, test, augment
        self._splits = splits
        labels = [train.y[torch.from_numpy(s.train)] for s in splits]
        counts = [torch.bincount(y, minlength=spec.n_classes) for y in labels]
        self.counts = torch.stack(counts).to(torch.get_default_dtype()) if counts else torch.zeros(0, spec.n_classes)
        self.device = train.y.device

    def to(self, device: torch.device, *, resident: bool = True) -> FederatedData:
        """The same data for a device: there for the whole run or, if not ``resident``, moved there batch by batch."""
        if self.device == device:
            return self
        there = copy.copy(self)
        there.device, there.counts = device, self.counts.to(device)
        if resident:
            there.train, there.test = (Samples(s.x.to(device), s.y.to(device)) for s in (self.train, self.test))
        return there

    @property
    def samples(self) -> tuple[Tensor, ...]:
        """The tensors that make up nearly all of its bytes."""
        return self.train.x, self.train.y, self.test.x, self.test.y

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self._splits)

    def info(self, client: int) -> Info:
        """What a client knows about its own training data."""
        return Info(client, len(self._splits[client].train), self.counts[client])

    def steps_per_epoch(self, client: int, batch_size: int) -> int:
        """Batches in one pass over a client's training samples."""
        return len(batch_sizes(len(self._splits[client].train), batch_size))

    def batches(self, client: int, *, size: int, begin: int, end: int, seed: int) -> Batches:
        """A stretch of a client's sequence of training batches."""
        rows = torch.from_numpy(self._splits[client].train)
        if len(rows) == 1:  # seen twice in its only batch: the same gradient, and batch norm needs two
            rows = rows.repeat(2)
        return Batches(self.train, self.device, rows, size, begin, end, seed, self.augment)

    def own_train(self, client: int) -> Samples:
        """A client's training samples, as they are."""
        return self.train.select(torch.from_numpy(self._splits[client].train))

    def own_test(self, client: int) -> Samples | None:
        """A client's held-out samples; None if it has none."""
        split = self._splits[client]
        if not len(split.test):
            return None
        held = self.train if split.test_from == "train" else self.test
        return held.select(torch.from_numpy(split.test))
