from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedexp.errors import PartitionError
from fedexp.partition.base import Partition
from fedexp.partition.table import IntArray, equal


@dataclass(frozen=True, kw_only=True)
class Classes(Partition):
    """Each client owns the same number of classes: the papers' PϱCς, ϱ clients with ς classes.

    Fan et al., FedMR, TMLR 2023, section 4.1; also Fan et al., FedGELA, NeurIPS 2023. The classes are dealt once in
    order; after that each client fills up with random classes it does not hold yet. A class is divided equally over
    its owners, so sizes differ where numbers of owners do. P5C2 of 10 classes and P10C10 of 100 have no class in
    common. With all classes (ς = C) the partition is iid, each class divided equally over all clients. Nothing is
    dropped.

    Deviations: The public code of FedMR runs its dealing loop twice, so that samples are duplicated and shared; here
        each sample has one owner. The papers make the iid case with a Dirichlet(100000) draw, equal up to a few
        samples.

    Args:
        classes: The number of classes of each client.
    """

    classes: int

    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:
        """Deals the classes, then divides each over its owners."""
        n_classes = totals.size
        if not 1 <= self.classes <= n_classes:
            raise PartitionError(f"partition.classes={self.classes} has to lie between 1 and {n_classes} classes.")
        if self.classes * n_clients < n_classes:
            raise PartitionError(
                f"{n_clients} clients with {self.classes} classes own at most {self.classes * n_clients} of "
                f"{n_classes} classes. Use more clients (cohort.clients) or raise partition.classes."
            )
        owns = np.zeros((n_clients, n_classes), dtype=np.int64)
        undealt = iter(range(n_classes))
        for own in owns:
            for _ in range(self.classes):
                c = next(undealt, None)
                own[rng.choice(np.flatnonzero(own == 0)) if c is None else c] = 1
        return equal(owns, totals)
