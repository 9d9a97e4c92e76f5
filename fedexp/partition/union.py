"""One client in place of all: what training would give if nobody kept samples to themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedexp.errors import PartitionError
from fedexp.partition.base import ClientSplit
from fedexp.partition.table import IntArray


def union(splits: Sequence[ClientSplit]) -> ClientSplit:
    """The training samples of all clients, and their test samples, each sample once.

    Raises:
        PartitionError: If that client would be tested on what it trains on, or on samples of two sets.
    """
    train = _together([s.train for s in splits])
    tested = [s for s in splits if len(s.test)]
    if len({s.test_from for s in tested}) > 1:
        raise PartitionError(
            "centralized=true puts all test sets together, but some clients are tested on training samples and some "
            "on official test samples. Use partition.test=holdout or partition.test=mirror."
        )
    test = _together([s.test for s in tested])
    source = tested[0].test_from if tested else "train"
    if source == "train" and (both := np.intersect1d(train, test)).size:
        raise PartitionError(
            f"centralized=true would train on {both.size} samples that it is tested on, because they have two owners. "
            "Use partition.test=mirror or partition.test=none."
        )
    return ClientSplit(train, test, source)


def _together(parts: Sequence[IntArray]) -> IntArray:
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
