"""The frame of all partitions: which samples a client owns, and which of them it is tested on."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedexp.core.ranges import ShareInside
from fedexp.errors import PartitionError
from fedexp.partition.table import IntArray, apportion, deal, tally

TestRule = Literal["holdout", "mirror", "none"]


@dataclass(frozen=True)
class ClientSplit:
    """One client's samples.

    Attributes:
        train: Indices into the training samples.
        test: Indices of its own test samples.
        test_from: Which samples ``test`` points into.
    """

    train: IntArray
    test: IntArray
    test_from: Literal["train", "test"]


@dataclass(frozen=True)
class Scene:
    """What there is to divide.

    Attributes:
        targets: Labels of the training samples.
        targets_test: Labels of the official test samples.
        n_classes: The number of classes.
        owners: Who made each training sample (a writer, a role, a centre), where the data set knows.
        owners_test: Who made each official test sample.
    """

    targets: IntArray
    targets_test: IntArray
    n_classes: int
    owners: IntArray | None = None
    owners_test: IntArray | None = None


class Splits(Protocol):
    """What a run needs of a partition, however it comes by it: drawn, natural, or read from a file."""

    @property
    def seed(self) -> int | None:
        """Fixes the partition whatever the run's seed is; None follows the run."""
        ...

    def splits(self, scene: Scene, n_clients: int, rng: np.random.Generator) -> list[ClientSplit]:
        """Returns the samples of each client, or raises ``PartitionError``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Divides labelled samples over clients; a subclass says how many of each class each client gets.

    Args:
        holdout: The share of a client's samples that ``test="holdout"`` takes away for its own test.
        test: Where a client's own test set comes from; see ``own_tests``.
        seed: Fixes the partition whatever the run's seed is; None follows the run.
    """

    holdout: ShareInside = 0.2
    test: TestRule = "holdout"
    seed: int | None = None

    @property
    def disjoint(self) -> bool:
        """Whether it promises that no sample has two owners."""
        return True

    @property
    def conserved(self) -> bool:
        """Whether it promises that every sample has an owner."""
        return True

    @abstractmethod
    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:
        """Returns the counts [clients, classes], given the number of samples of each class."""

    def __call__(self, targets: IntArray, n_clients: int, n_classes: int, rng: np.random.Generator) -> list[IntArray]:
        """Returns for each client the sorted indices of its samples."""
        totals = _totals(targets, n_classes)
        least = 1 if self.test == "none" else 2
        if n_clients < 1 or len(targets) < least * n_clients:
            raise PartitionError(
                f"{len(targets)} samples cannot give {n_clients} clients {least} each. "
                f"Use between 1 and {len(targets) // least} clients."
            )
        table = self.table(totals, n_clients, rng)
        sizes = table.sum(axis=1)
        if (poor := np.flatnonzero(sizes < least)).size:
            raise PartitionError(
                f"client {poor[0]} would own {sizes[poor[0]]} samples and needs {least} ({poor.size} of {n_clients} "
                f"clients have too few of the {len(targets)} samples). "
                "Use fewer clients (cohort.clients) or another partition."
            )
        return deal(targets, table, rng)

    def splits(self, scene: Scene, n_clients: int, rng: np.random.Generator) -> list[ClientSplit]:
        """Divides the samples and gives each client its own test set, by ``test``."""
        known(self.test, tuple(RULES))
        parts = self(scene.targets, n_clients, scene.n_classes, rng)
        return own_tests(self.test, parts, scene, holdout=self.holdout, rng=rng)


def split(
    partition: Splits,
    targets_train: IntArray,
    targets_test: IntArray,
    n_clients: int,
    n_classes: int,
    rng: np.random.Generator,
    *,
    owners: IntArray | None = None,
    owners_test: IntArray | None = None,
) -> list[ClientSplit]:
    """Divides the samples over the clients; ``owners`` are for partitions that follow who made a sample.

    Raises:
        PartitionError: If they cannot be divided, or the partition does not do what a run relies on.
    """
    splits = partition.splits(Scene(targets_train, targets_test, n_classes, owners, owners_test), n_clients, rng)
    if len(splits) != n_clients:
        raise PartitionError(f"splits() returned {len(splits)} clients, and there are {n_clients} (cohort.clients).")
    trained_on = np.zeros(len(targets_train), dtype=bool)
    for client, own in enumerate(splits):
        tests = len(targets_train if own.test_from == "train" else targets_test)
        if not (len(own.train) and _indices(own.train, len(targets_train)) and _indices(own.test, tests)):
            raise PartitionError(
                f"client {client} must own indices of samples: one or more below {len(targets_train):,} to train on, "
                f"and any below {tests:,} to be tested on."
            )
        trained_on[own.train] = True
        if own.test_from == "train" and trained_on[own.test].any():
            raise PartitionError(f"client {client} would be tested on samples that it is trained on.")
        trained_on[own.train] = False
    return splits


def _indices(values: IntArray, count: int) -> bool:
    """Whether these are indices of so many samples."""
    return np.issubdtype(values.dtype, np.integer) and (not values.size or 0 <= values.min() <= values.max() < count)


def own_tests(
    rule: str, parts: list[IntArray], scene: Scene, *, holdout: float, rng: np.random.Generator
) -> list[ClientSplit]:
    """Gives each client its own test set.

    ``holdout``: a random share of the client's own samples, not stratified (MAP, section 5.2.1). ``mirror``: samples
    of the official test set, each class divided in proportion to its owners' training samples (FedGELA). ``none``: no
    samples.
    """
    return RULES[rule](_Cut(parts, holdout, scene, rng))


def known(rule: str, rules: Sequence[str]) -> None:
    """Refuses a ``partition.test`` that is none of ``rules``."""
    if rule not in rules:
        raise PartitionError(f"partition.test={rule!r} is none of {', '.join(rules)}.")


def digest(splits: Sequence[ClientSplit]) -> str:
    """Returns a sha256 of who owns what, equal on every platform."""
    sha = hashlib.sha256(f"{len(splits)}".encode())
    for own in splits:
        sha.update(f"|{len(own.train)},{len(own.test)},{own.test_from}|".encode())
        sha.update(own.train.astype("<i8").tobytes())
        sha.update(own.test.astype("<i8").tobytes())
    return sha.hexdigest()


def _totals(targets: IntArray, n_classes: int) -> IntArray:
    if len(targets) and not 0 <= targets.min() <= targets.max() < n_classes:
        raise PartitionError(
            f"the labels go from {targets.min()} to {targets.max()}, but the data set says it has {n_classes} classes."
        )
    return np.bincount(targets, minlength=n_classes).astype(np.int64)


@dataclass(frozen=True)
class _Cut:
    """What the rules for the clients' own test sets may look at."""

    parts: list[IntArray]
    holdout: float
    scene: Scene
    rng: np.random.Generator


def _holdout(cut: _Cut) -> list[ClientSplit]:
    if not 0 < cut.holdout < 1:
        raise PartitionError(
            f"partition.holdout={cut.holdout} has to lie between 0 and 1. "
            "For clients without a test set of their own use partition.test=none."
        )
    dealt = np.concatenate(cut.parts)
    if twice := dealt.size - np.unique(dealt).size:
        raise PartitionError(
            f"{twice} of {dealt.size} dealt samples were dealt before, so a held-out one could be trained on as well. "
            "Use partition.test=mirror or partition.test=none, or a partition in which no sample has two owners."
        )
    splits = []
    for part in cut.parts:
        shuffled = cut.rng.permutation(part)
        n_test = max(1, int(cut.holdout * len(part) + 1e-9))  # 0.29 * 100 is 28.999… in floats
        splits.append(ClientSplit(np.sort(shuffled[n_test:]), np.sort(shuffled[:n_test]), "train"))
    return splits


def _mirror(cut: _Cut) -> list[ClientSplit]:
    owned = tally(cut.parts, cut.scene.targets, cut.scene.n_classes)
    totals = _totals(cut.scene.targets_test, cut.scene.n_classes)
    table = np.zeros_like(owned)
    for c in np.flatnonzero(owned.any(axis=0)):
        table[:, c] = apportion(int(totals[c]), owned[:, c].astype(np.float64))
    if (poor := np.flatnonzero(table.sum(axis=1) == 0)).size:
        raise PartitionError(
            f"client {poor[0]} owns {len(cut.parts[poor[0]])} training samples, whose share of the {totals.sum()} "
            f"official test samples rounds to none ({poor.size} of {len(cut.parts)} clients). "
            "Use fewer clients (cohort.clients), larger ones, or partition.test=holdout."
        )
    tests = deal(cut.scene.targets_test, table, cut.rng)
    return [ClientSplit(train, test, "test") for train, test in zip(cut.parts, tests, strict=True)]


def _none(cut: _Cut) -> list[ClientSplit]:
    return [ClientSplit(part, np.empty(0, dtype=np.int64), "train") for part in cut.parts]


RULES: Mapping[str, Callable[[_Cut], list[ClientSplit]]] = {"holdout": _holdout, "mirror": _mirror, "none": _none}
