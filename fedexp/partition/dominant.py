from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedexp.core.ranges import Count, Share
from fedexp.errors import PartitionError
from fedexp.partition.base import Partition
from fedexp.partition.table import IntArray

FIVE_GROUPS = ((0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0))


@dataclass(frozen=True, kw_only=True)
class Dominant(Partition):
    """A share of each client's samples is iid; the rest is of the dominant classes of its group.

    Liang et al., FedReMa, ECAI 2024, experiments ("s%"), after Xu et al., FedPAC, ICLR 2023. Clients are laid over
    the groups in contiguous blocks. With 600 samples, 20 % iid and three dominant classes of ten a client gets 172
    samples of each dominant class and 12 of each other one. Samples beyond that belong to nobody.

    Deviations: What is left over when a part is divided over its classes goes to the last classes one by one; the
        public code gives all of it to the last class. The public code wraps around and hands samples out twice when a
        class is used up; here that is an error. It also says the opposite of what it does about ``s``: a larger share
        is more iid.

    Args:
        iid: The share of a client's samples that is spread over all classes (the papers' s).
        samples_per_client: Each client's number of samples; None is the largest that fits.
        groups: The dominant classes of each group.
    """

    iid: Share
    samples_per_client: Count | None = None
    groups: Sequence[Sequence[int]] = FIVE_GROUPS

    @property
    def conserved(self) -> bool:
        """Samples beyond what the clients take belong to nobody."""
        return False

    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:  # noqa: ARG002 - no chance here
        """Counts what each client gets, then checks that there is enough."""
        self._check(totals.size)
        most = self._largest(totals, n_clients)
        size = most if self.samples_per_client is None else self.samples_per_client
        table = self._counts(size, n_clients, totals.size)
        if (short := np.flatnonzero(table.sum(axis=0) > totals)).size:
            c = int(short[0])
            raise PartitionError(
                f"{n_clients} clients with {size} samples, {self.iid:.0%} of them iid, need {table[:, c].sum()} "
                f"samples of class {c}, which has {totals[c]}. partition.samples_per_client={most} fits; or use "
                "fewer clients, or pool the official test samples too, as the paper does (pool=all)."
            )
        return table

    def _counts(self, size: int, n_clients: int, n_classes: int) -> IntArray:
        n_iid = int(self.iid * size + 1e-9)  # 0.29 * 100 is 28.999… in floats
        table = np.tile(_spread(n_iid, n_classes), (n_clients, 1))
        for client, row in enumerate(table):
            group = self.groups[client * len(self.groups) // n_clients]
            row[list(group)] += _spread(size - n_iid, len(group))
        return table

    def _largest(self, totals: IntArray, n_clients: int) -> int:
        """Returns the largest number of samples per client for which no class runs out."""

        def lacking(size: int) -> int:
            return int((self._counts(size, n_clients, totals.size).sum(axis=0) > totals).any())

        return bisect_right(range(int(totals.sum()) // n_clients + 1), 0, key=lacking) - 1

    def _check(self, n_classes: int) -> None:
        if not 0 <= self.iid <= 1:
            raise PartitionError(f"partition.iid={self.iid} is a share and has to lie between 0 and 1.")
        if not self.groups or not all(self.groups):
            raise PartitionError(f"partition.groups={self.groups} needs at least one group and a class in each group.")
        for group in self.groups:
            if len(set(group)) < len(group) or not 0 <= min(group) <= max(group) < n_classes:
                raise PartitionError(
                    f"partition.groups has {list(group)}; a group names different classes from 0 to {n_classes - 1}."
                )


def _spread(total: int, n: int) -> IntArray:
    """Returns ``total`` divided over n places, the last ones taking one more where it does not divide."""
    return (total + np.arange(n)) // n
