from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedexp.core.ranges import Count
from fedexp.errors import PartitionError
from fedexp.partition.base import Partition
from fedexp.partition.dialects import DIALECTS
from fedexp.partition.table import IntArray, deal, tally


@dataclass(frozen=True, kw_only=True)
class Classes(Partition):
    """Each client owns the same number of classes: the papers' PϱCς, ϱ clients with ς classes.

    Seven public codes mean seven things by it, and numbers compare within one of them only; ``dialect`` says which.

    - ``fedgela`` (default; Fan et al., FedGELA, NeurIPS 2023): the classes are dealt once in order; after that each
      client fills up with random classes it does not hold yet. A class is divided equally over its owners, so sizes
      differ where numbers of owners do. P5C2 of 10 classes and P10C10 of 100 have no class in common. With all classes
      (ς = C) the partition is iid, each class divided equally over all clients. Nothing is dropped.
    - ``fedmr`` (Fan et al., FedMR, TMLR 2023, section 4.1): the same owners, but the public code runs its dealing loop
      twice, so every sample is dealt twice: clients hold twice the data, some of it in two copies, and share samples.
      Not with all classes, which it divides by another function. Not disjoint, so it refuses ``test="holdout"``.
    - ``fedrs`` (FedRepo, the public code of FedRS, KDD 2021): shuffled lists of all classes laid end to end, cut into
      blocks. A block across a border may hold one class twice: that client owns ς - 1 classes and a double share. What
      does not divide evenly is dropped.
    - ``niid`` (Li et al., NIID-Bench, ICDE 2022): client i owns class i mod C and random others; equal shares.
    - ``flower`` (Flower's ``PathologicalPartitioner``, its default): random classes, equal shares. A class may have no
      owner, and its samples vanish.
    - ``flbench`` (FL-bench): the same draw; shares are rounded down and the last owner takes the remainder.
    - ``pfllib`` (PFLlib's ``pat``): class after class goes to the first clients that lack one, so that groups of
      clients own identical classes: 20 clients with 2 of 10 classes are 5 groups of 4, and personalisation looks easy.
      Sizes are random, the last owner of a class holds most of it. The last clients may own fewer than ς classes.

    Deviations: All dialects shuffle a class before it is cut; Flower and PFLlib cut it in the data set's order. A draw
        that leaves a class without an owner is an error where the public code crashes (niid, pfllib, fedrs) or would
        (fedgela, fedmr). FedRepo drops clients with fewer than 5 samples; here nobody is dropped. FedMR and FedGELA
        make the iid case with a Dirichlet(100000) draw, equal up to a few samples. Test sets follow ``test``, not the
        dialect.

    Args:
        classes: The number of classes of each client.
        dialect: Whose reading.
    """

    classes: Count
    dialect: Literal["fedgela", "fedmr", "fedrs", "niid", "flower", "flbench", "pfllib"] = "fedgela"

    @property
    def disjoint(self) -> bool:
        """Not under ``fedmr``."""
        return DIALECTS[self.dialect].disjoint

    @property
    def conserved(self) -> bool:
        """Not under ``fedrs``, ``flower`` and ``flbench``."""
        return DIALECTS[self.dialect].conserved

    def __call__(self, targets: IntArray, n_clients: int, n_classes: int, rng: np.random.Generator) -> list[IntArray]:
        """Divides the samples; under ``fedmr`` twice, by the same table."""
        parts = super().__call__(targets, n_clients, n_classes, rng)
        if self.disjoint or self.classes == n_classes:
            return parts
        again = deal(targets, tally(parts, targets, n_classes), rng)
        return [np.sort(np.concatenate(both)) for both in zip(parts, again, strict=True)]

    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:
        """Deals the classes, then divides each over its owners."""
        n_classes = totals.size
        if self.dialect not in DIALECTS:
            raise PartitionError(f"partition.dialect={self.dialect!r} is none of {', '.join(DIALECTS)}.")
        if not 1 <= self.classes <= n_classes:
            raise PartitionError(f"partition.classes={self.classes} has to lie between 1 and {n_classes} classes.")
        dialect = DIALECTS[self.dialect]
        if dialect.covers and self.classes * n_clients < n_classes:
            raise PartitionError(
                f"{n_clients} clients with {self.classes} classes own at most {self.classes * n_clients} of "
                f"{n_classes} classes. Use more clients (cohort.clients) or raise partition.classes."
            )
        shares = dialect.assign(n_clients, n_classes, self.classes, rng)
        orphans = np.flatnonzero(~shares.any(axis=0))
        if dialect.covers and orphans.size:
            raise PartitionError(
                f"partition.dialect={self.dialect} leaves {orphans.size} of {n_classes} classes without an owner "
                f"(class {orphans[0]} first) with {n_clients} clients and {self.classes} classes each. "
                "Use more clients (cohort.clients), or partition.dialect=fedgela, which deals every class."
            )
        return dialect.cut(shares, totals, rng)
