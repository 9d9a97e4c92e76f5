"""Tables of counts: row k, column c says how many samples of class c client k gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedexp.errors import PartitionError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def deal(targets: IntArray, table: IntArray, rng: np.random.Generator) -> list[IntArray]:
    """Returns for each client the sorted indices of its samples, drawn at random within each class."""
    totals = np.bincount(targets, minlength=table.shape[1])
    if (short := np.flatnonzero(table.sum(axis=0) > totals)).size:
        c = int(short[0])
        raise PartitionError(f"{table[:, c].sum()} samples of class {c} were given away, but there are {totals[c]}.")
    by_class = np.split(np.argsort(targets, kind="stable"), np.cumsum(totals)[:-1])
    pieces = [
        np.split(rng.permutation(own), np.cumsum(column))[:-1] for own, column in zip(by_class, table.T, strict=True)
    ]
    return [np.sort(np.concatenate(rows)).astype(np.int64) for rows in zip(*pieces, strict=True)]


def equal(shares: IntArray, totals: IntArray) -> IntArray:
    """Returns the table in which each class is cut into equal shares and all of it is given away.

    Sizes differ by at most one and the earlier shares are the larger ones, as in ``numpy.array_split``.

    Args:
        shares: How many shares of each class each client gets, [clients, classes].
        totals: The number of samples of each class.
    """
    pieces = enough(shares, totals)
    size, larger = np.divmod(totals, np.maximum(pieces, 1))
    before = np.cumsum(shares, axis=0) - shares
    table: IntArray = shares * size + np.clip(larger - before, 0, shares)
    return table


def enough(shares: IntArray, totals: IntArray) -> IntArray:
    """Returns the number of shares each class is cut into, or refuses if a share would be empty."""
    pieces: IntArray = shares.sum(axis=0)
    if (short := np.flatnonzero(pieces > totals)).size:
        c = int(short[0])
        raise PartitionError(
            f"class {c} has {totals[c]} samples for {pieces[c]} owners, so some would own none of it "
            f"({short.size} of {totals.size} classes are too small). "
            "Use fewer clients (cohort.clients) or fewer classes per client."
        )
    return pieces


def tally(parts: Sequence[IntArray], targets: IntArray, n_classes: int) -> IntArray:
    """Returns the table of what was dealt: the inverse of ``deal``, up to which samples they were."""
    return np.stack([np.bincount(targets[part], minlength=n_classes) for part in parts]).astype(np.int64)


def apportion(total: int, weights: FloatArray) -> IntArray:
    """Returns ``total`` divided in proportion to ``weights`` with nothing lost: largest remainders round up."""
    quota = total * weights / weights.sum()
    counts: IntArray = np.floor(quota).astype(np.int64)
    counts[np.argsort(counts - quota, kind="stable")[: total - counts.sum()]] += 1
    return counts
