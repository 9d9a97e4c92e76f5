"""What a partition looks like, for people: sizes, owners, and what may surprise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedexp.partition.base import ClientSplit
from fedexp.partition.table import IntArray, tally

MAX_CLIENTS_NAMED = 5  # a warning names at most this many clients


@dataclass(frozen=True)
class Summary:
    """The facts of one partition.

    Attributes:
        counts: Training samples of each client and class, [clients, classes].
        n_test: Own test samples of each client.
        groups: The clients with the same set of classes, by that set.
        unseen: The classes a client is tested on without having trained on them, for the clients that have some. Known
            only where the test samples were taken from the client's own; a mirrored test set has none.
        n_samples: The samples there were to divide.
        left_out: How many of them belong to nobody, neither to train nor to test on.
        shared: How many of them more than one client trains on.
        copies: How many training samples a client holds again after holding them once, over all clients.
    """

    counts: IntArray
    n_test: IntArray
    groups: dict[tuple[int, ...], tuple[int, ...]]
    unseen: dict[int, tuple[int, ...]]
    n_samples: int
    left_out: int
    shared: int
    copies: int

    @property
    def sizes(self) -> IntArray:
        """Training samples of each client."""
        sizes: IntArray = self.counts.sum(axis=1)
        return sizes

    @property
    def owners(self) -> IntArray:
        """The number of clients that train on each class."""
        owners: IntArray = (self.counts > 0).sum(axis=0)
        return owners

    @property
    def single_class(self) -> tuple[int, ...]:
        """The clients that train on one class only."""
        return tuple(np.flatnonzero((self.counts > 0).sum(axis=1) == 1).tolist())

    def as_dict(self) -> dict[str, object]:
        """Returns everything as numbers, lists and strings, for JSON."""
        return {
            "counts": self.counts.tolist(),
            "train": _spread(self.sizes),
            "test": _spread(self.n_test),
            "classes_per_client": _spread((self.counts > 0).sum(axis=1)),
            "owners": self.owners.tolist(),
            "groups": [{"classes": list(own), "clients": list(who)} for own, who in self.groups.items()],
            "single_class": list(self.single_class),
            "samples": {
                "all": self.n_samples,
                "left_out": self.left_out,
                "shared": self.shared,
                "copies": self.copies,
            },
            "unseen": {str(client): list(classes) for client, classes in self.unseen.items()},
        }


def summarise(splits: Sequence[ClientSplit], targets: IntArray, n_classes: int) -> Summary:
    """Returns the facts of ``splits``; ``targets`` are the labels that the training indices point into."""
    counts = tally([own.train for own in splits], targets, n_classes)
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    unseen = {}
    for client, (own, row) in enumerate(zip(splits, counts, strict=True)):
        groups[tuple(np.flatnonzero(row).tolist())].append(client)
        tested = targets[own.test] if own.test_from == "train" else targets[:0]
        if (only_tested := np.setdiff1d(tested, np.flatnonzero(row))).size:
            unseen[client] = tuple(only_tested.tolist())
    n_test = np.array([len(own.test) for own in splits], dtype=np.int64)
    once = [np.unique(own.train) for own in splits]
    owners = np.bincount(np.concatenate(once), minlength=len(targets))
    held = np.concatenate([own.test for own in splits if own.test_from == "train"] or [targets[:0]])
    return Summary(
        counts=counts,
        n_test=n_test,
        groups={own: tuple(who) for own, who in sorted(groups.items())},
        unseen=unseen,
        n_samples=len(targets),
        left_out=len(targets) - len(np.union1d(np.flatnonzero(owners), held)),
        shared=int((owners > 1).sum()),
        copies=int(counts.sum()) - sum(map(len, once)),
    )


def warnings(summary: Summary) -> list[str]:
    """Returns a sentence for each thing that is allowed but often not meant."""
    n_clients, n_classes = summary.counts.shape
    found = []
    if (orphans := np.flatnonzero(summary.owners == 0)).size:
        found.append(
            f"{orphans.size} of {n_classes} classes have no owner and cannot be learned: {_some(orphans.tolist())}."
        )
    if single := summary.single_class:
        found.append(
            f"{len(single)} of {n_clients} clients own one class only, so a constant answer is right for them: "
            f"client {_some(single)}."
        )
    if summary.unseen:
        found.append(
            f"{len(summary.unseen)} of {n_clients} clients are tested on classes that they have no training sample of: "
            f"client {_some(tuple(summary.unseen))}."
        )
    if summary.shared or summary.copies:
        found.append(
            f"{summary.shared} of {summary.n_samples} samples have several owners, and clients hold {summary.copies} "
            "second copies: no client's data is its own alone."
        )
    return found


def _some(items: Sequence[int]) -> str:
    shown = ", ".join(map(str, items[:MAX_CLIENTS_NAMED]))
    return f"{shown} and {len(items) - MAX_CLIENTS_NAMED} more" if len(items) > MAX_CLIENTS_NAMED else shown


def _spread(values: IntArray) -> dict[str, float]:
    return {"min": int(values.min()), "mean": float(values.mean()), "max": int(values.max())}
