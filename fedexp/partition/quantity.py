from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedexp.core.ranges import CountOr0, NotNegative, Positive
from fedexp.errors import PartitionError
from fedexp.partition.base import Partition
from fedexp.partition.table import FloatArray, IntArray, apportion


@dataclass(frozen=True, kw_only=True)
class Quantity(Partition):
    """Unequal sizes, same labels: every client's classes look like everybody's, up to chance, but some have much more.

    ``law="dirichlet"``: shares of the samples from a Dirichlet(beta) draw over the clients (Li et al., NIID-Bench, ICDE
    2022, "quantity skew"). ``law="power"``: the i-th largest client's share is in proportion to i^-exponent, and chance
    says which client that is. Nothing is dropped.

    Deviations: NIID-Bench draws again until the smallest client has 10 samples; here every client gets ``min_size``
        first and the shares divide the rest, so one draw is enough however unequal.

    Args:
        law: Where the sizes come from.
        beta: The concentration of the Dirichlet distribution.
        exponent: How fast sizes fall under the power law.
        min_size: The least number of samples of a client.
    """

    law: Literal["dirichlet", "power"] = "dirichlet"
    beta: Positive = 0.5
    exponent: NotNegative = 1.0
    min_size: CountOr0 = 10

    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:
        """Draws the sizes, shuffles the labels and cuts them there."""
        n_samples = int(totals.sum())
        self._check(n_samples, n_clients)
        rest = n_samples - self.min_size * n_clients
        sizes = self.min_size + apportion(rest, self._shares(n_clients, rng))
        labels = rng.permutation(np.repeat(np.arange(totals.size), totals))
        rows = np.split(labels, np.cumsum(sizes)[:-1])
        return np.stack([np.bincount(row, minlength=totals.size) for row in rows])

    def _shares(self, n_clients: int, rng: np.random.Generator) -> FloatArray:
        if self.law == "dirichlet":
            return rng.dirichlet(np.full(n_clients, self.beta))
        ranks = 1 + rng.permutation(n_clients).astype(np.float64)
        return ranks**-self.exponent

    def _check(self, n_samples: int, n_clients: int) -> None:
        if self.law not in ("dirichlet", "power"):
            raise PartitionError(f"partition.law={self.law!r} is none of dirichlet, power.")
        if self.beta <= 0:
            raise PartitionError(f"partition.beta={self.beta} has to be above 0; large values are nearly equal sizes.")
        if self.exponent < 0:
            raise PartitionError(f"partition.exponent={self.exponent} has to be 0 (equal sizes) or more.")
        if not 0 <= self.min_size * n_clients <= n_samples:
            raise PartitionError(
                f"{n_clients} clients with at least {self.min_size} samples (partition.min_size) need "
                f"{self.min_size * n_clients}, but there are {n_samples}. Use fewer clients (cohort.clients) or "
                f"partition.min_size between 0 and {n_samples // n_clients}."
            )
