"""Uploads, reduced. Sums are made in an order that depends on the cohort alone, so that their last bits do too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from fedexp.core.algorithm import Algorithm
from fedexp.core.state import Message, Reduce, Tree, snapshot

Allocate = Callable[[Tensor], Tensor]  # makes a tensor like the one that is given, with any content

BLOCKS = 32  # about as many as a cohort is cut into, so that as many workers have something to do
MIN_BLOCK_SAMPLES = (
    576  # samples in a block, unless it is one of the last: of fewer, the sum takes long beside the training
)
TAIL_DIVISOR = 3  # a block has at most this part of what is left, so that all workers end at the same time


def blocks(cohort: Sequence[int], samples: Sequence[int]) -> list[list[int]]:
    """The pieces of a cohort that one worker sums on its own: a function of the cohort, not of the workers."""
    left = sum(samples[c] for c in cohort)
    usual = max(left / BLOCKS, MIN_BLOCK_SAMPLES)
    cut: list[list[int]] = []
    room = 0.0
    for client in cohort:
        if samples[client] > room:
            cut.append([])
            room = min(usual, left / TAIL_DIVISOR)
        cut[-1].append(client)
        room -= samples[client]
        left -= samples[client]
    return cut


def groups(clients: Sequence[int], size: int) -> list[list[int]]:
    """As few pieces as can be with at most so many clients in each, as equal as can be: for loops that stack them."""
    count = -(-len(clients) // size)
    edges = [len(clients) * i // count for i in range(count + 1)] if count else []
    return [list(clients[a:b]) for a, b in pairwise(edges)]


@dataclass
class Mean:
    """A sum that is fed one upload after another, and never holds more than one tree."""

    reduce: Reduce
    total: Tree = field(default_factory=dict)
    fed: int = 0

    def feed(self, tree: Tree, weight: float, allocate: Allocate = torch.empty_like) -> None:
        """Adds one upload; the sum lies where ``allocate`` puts it. Integer tensors are those of the first."""
        factor = weight if self.reduce == "weighted" else 1.0
        if self.fed:
            self._add(tree, factor)
        else:
            self.total = {k: allocate(v) for k, v in tree.items()}
            for name, sum_ in self.total.items():
                torch.mul(tree[name], factor, out=sum_) if sum_.is_floating_point() else sum_.copy_(tree[name])
        self.fed += 1

    def merge(self, other: Mean) -> None:
        """Adds the sum of the uploads that come next."""
        if self.fed and other.fed:
            self._add(other.total, 1.0)
        elif other.fed:
            self.total = snapshot(other.total)
        self.fed += other.fed

    def result(self, share: float = 1.0) -> Tree:
        """The reduced tree; empty if nothing was sent. ``share`` is the sum of the weights that were fed."""
        divisor = {"weighted": share, "uniform": self.fed or 1}.get(self.reduce, 1)
        if divisor == 1:
            return self.total
        return {k: v * (1 / divisor) if v.is_floating_point() else v for k, v in self.total.items()}

    def _add(self, tree: Tree, factor: float) -> None:
        names = [k for k, v in tree.items() if v.is_floating_point()]
        if names:
            torch._foreach_add_([self.total[k] for k in names], [tree[k] for k in names], alpha=factor)


@dataclass
class Fold:
    """What is left of the uploads of some clients: a sum of each kind, and those that are kept by client."""

    means: dict[str, Mean]
    kept: dict[str, dict[int, Tree]]

    @classmethod
    def empty(cls, algorithm: Algorithm) -> Fold:
        """Before the first upload."""
        how: dict[str, Reduce] = {"model": "weighted", **{n: u.reduce for n, u in algorithm.uploads.items()}}
        return cls({n: Mean(r) for n, r in how.items() if r != "keep"}, {n: {} for n in algorithm.keeps()})

    def feed(self, client: int, message: Message, weight: float, allocate: Allocate = torch.empty_like) -> None:
        """Adds the uploads of one client."""
        for name, tree in message.items():
            if name in self.means:
                self.means[name].feed(tree, weight, allocate)
            if name in self.kept:
                self.kept[name][client] = snapshot(tree)

    def merge(self, other: Fold) -> None:
        """Adds the uploads of the clients that come next."""
        for name, mean in self.means.items():
            mean.merge(other.means[name])
        for name, kept in self.kept.items():
            kept.update(other.kept[name])

    @property
    def is_finite(self) -> bool:
        """Whether every sum is, and so everything that was added up."""
        trees = (*(m.total for m in self.means.values()), *(t for box in self.kept.values() for t in box.values()))
        return all(is_finite(tree) for tree in trees)


def is_finite(tree: Tree) -> bool:
    """Whether every number of a tree is. A finite sum says so at once; one that is not may have overflowed."""
    floats = [v for v in tree.values() if v.is_floating_point()]
    if not floats or bool(torch.stack([v.sum() for v in floats]).isfinite().all()):
        return True
    return all(bool(v.isfinite().all()) for v in floats)
