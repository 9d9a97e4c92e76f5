from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedexp.core.ranges import Count
from fedexp.errors import PartitionError
from fedexp.partition.base import Partition
from fedexp.partition.table import IntArray, equal

MAX_DRAWS = 1000  # with the papers' numbers the first draw almost always covers all classes


@dataclass(frozen=True, kw_only=True)
class Incomplete(Partition):
    """Each client owns a random number of random classes; a class is divided equally over its owners.

    Li et al., MAP, arXiv 2404.09232, section 5.2.1: the number is uniform on {2, …, C}, so its mean is (C + 2) / 2. The
    draw is repeated until every class has an owner; then nothing is dropped.

    Deviations: The paper does not say how a class is divided among its owners. The public FedRepo code gives equal
        shares and drops the remainder of the division, and may deal one client the same class twice; here neither
        happens.

    Args:
        min_classes: The least number of classes of a client.
        max_classes: The largest; None is all of them.
    """

    min_classes: Count = 2
    max_classes: Count | None = None

    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:
        """Draws owners until every class has one."""
        n_classes = totals.size
        most = n_classes if self.max_classes is None else self.max_classes
        self._check(most, n_clients, n_classes)
        deck = np.tile(np.arange(n_classes), (n_clients, 1))
        for _ in range(MAX_DRAWS):
            numbers = rng.integers(self.min_classes, most + 1, size=n_clients)
            owns = rng.permuted(deck, axis=1) < numbers[:, None]
            if owns.any(axis=0).all():
                return equal(owns.astype(np.int64), totals)
        raise PartitionError(
            f"in {MAX_DRAWS} draws of {self.min_classes} to {most} classes for {n_clients} clients some of the "
            f"{n_classes} classes always stayed without an owner. Use more clients (cohort.clients), raise "
            "partition.min_classes, or use partition=classes, which deals every class at least once."
        )

    def _check(self, most: int, n_clients: int, n_classes: int) -> None:
        if not 1 <= self.min_classes <= most <= n_classes:
            raise PartitionError(
                f"partition.min_classes={self.min_classes} and partition.max_classes={most} have to be in order and "
                f"between 1 and {n_classes}, the number of classes."
            )
        if most * n_clients < n_classes:
            raise PartitionError(
                f"{n_clients} clients with at most {most} classes own at most {most * n_clients} of {n_classes}. "
                "Use more clients (cohort.clients) or raise partition.max_classes."
            )
