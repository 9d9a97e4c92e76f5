from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedexp.core.ranges import CountOr0, ShareInside
from fedexp.errors import PartitionError
from fedexp.partition.base import RULES, ClientSplit, Scene, known, own_tests
from fedexp.partition.table import IntArray


@dataclass(frozen=True, kw_only=True)
class Natural:
    """A client is who made the samples: a writer, a role, a centre.

    Caldas et al., LEAF, arXiv 1812.01097 (FEMNIST by writer, Shakespeare by role); Ogier du Terrail et al., FLamby,
    NeurIPS 2022 (ISIC 2019 by centre). Clients are in the order of their owners' numbers. The samples of owners that
    are not chosen belong to nobody.

    Args:
        choose: Which owners become clients if there are more of them than clients.
        min_samples: Owners with fewer training samples are left out.
        holdout: The share of a client's samples that ``test="holdout"`` takes away for its own test.
        test: Where a client's own test set comes from. ``own``: the official test samples of the same owner; owners
            without any are left out. The others as in ``own_tests``.
        seed: Fixes the partition whatever the run's seed is; None follows the run.
    """

    choose: Literal["largest", "random"] = "largest"
    min_samples: CountOr0 = 2
    holdout: ShareInside = 0.2
    test: Literal["own", "holdout", "mirror", "none"] = "own"
    seed: int | None = None

    def splits(self, scene: Scene, n_clients: int, rng: np.random.Generator) -> list[ClientSplit]:
        """Chooses owners and gives each client its owner's samples."""
        known(self.test, ("own", *RULES))
        train = _by_owner(scene.owners, len(scene.targets), "training")
        test = _by_owner(scene.owners_test, len(scene.targets_test), "test") if self.test == "own" else None
        chosen = self._chosen(train, test, n_clients, rng)
        parts = [train[owner] for owner in chosen]
        if test is None:
            return own_tests(self.test, parts, scene, holdout=self.holdout, rng=rng)
        return [ClientSplit(part, test[owner], "test") for owner, part in zip(chosen, parts, strict=True)]

    def _chosen(
        self,
        train: dict[int, IntArray],
        test: dict[int, IntArray] | None,
        n_clients: int,
        rng: np.random.Generator,
    ) -> list[int]:
        if self.choose not in ("largest", "random"):
            raise PartitionError(f"partition.choose={self.choose!r} is none of largest, random.")
        least = max(self.min_samples, 2 if self.test == "holdout" else 1)
        able = [owner for owner, own in train.items() if len(own) >= least and (test is None or owner in test)]
        if not 1 <= n_clients <= len(able):
            also = "" if test is None else " and a test sample"
            raise PartitionError(
                f"cohort.clients={n_clients}, but of {len(train)} owners {len(able)} have at least {least} training "
                f"samples (partition.min_samples={self.min_samples}){also}; the largest has "
                f"{max(map(len, train.values()))}. Use cohort.clients between 1 and {len(able)}"
                + (", or a smaller partition.min_samples." if len(able) < len(train) else ".")
            )
        if self.choose == "random":
            return sorted(rng.choice(able, n_clients, replace=False).tolist())
        return sorted(sorted(able, key=lambda owner: (-len(train[owner]), owner))[:n_clients])


def _by_owner(owners: IntArray | None, n_samples: int, what: str) -> dict[int, IntArray]:
    """Returns the samples of each owner, in ascending order of owners."""
    if owners is None:
        raise PartitionError(
            f"partition=natural needs to know who made each {what} sample, which this data set does not say. Use "
            + ("a data set that does, or another partition." if what == "training" else "partition.test=holdout.")
        )
    if len(owners) != n_samples:
        raise PartitionError(
            f"the data set names the owners of {len(owners)} {what} samples, but there are {n_samples}. "
            "With pool=all it would have to name those of the pooled test samples too; use pool=train."
        )
    names, first = np.unique(np.sort(owners), return_index=True)
    own = np.split(np.argsort(owners, kind="stable").astype(np.int64), first[1:])
    return dict(zip(names.tolist(), own, strict=True))
