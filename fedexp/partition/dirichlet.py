from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedexp.core.ranges import Count, CountOr0, Positive
from fedexp.errors import PartitionError
from fedexp.partition.base import Partition
from fedexp.partition.table import IntArray, apportion


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label shares drawn from a Dirichlet distribution; the smaller beta, the fewer classes a client really has.

    ``by="client"``: each client draws its shares of the classes, then each class is divided in proportion to them (Li
    et al., MAP, arXiv 2404.09232, section 5.4, as in the public FedRepo code). ``by="class"``: each class draws its
    shares over the clients, where a client that already holds the mean size gets nothing more (Yurochkin et al., ICML
    2019; FedMR and FedGELA). The two are different distributions: client sizes are flatter under the first. Both are
    drawn again until every client holds ``min_size`` samples. Nothing is dropped.

    Deviations: FedRepo rounds each count on its own, losing or inventing samples, and drops clients below 5; here the
        largest remainders round up and nobody is dropped. FedGELA's code has the minimum size commented out.

    Args:
        beta: The concentration.
        by: Whose shares are drawn.
        min_size: The least number of samples of a client.
        retries: How many draws to try.
    """

    beta: Positive
    by: Literal["client", "class"] = "client"
    min_size: CountOr0 = 10
    retries: Count = 1000

    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:
        """Draws until the smallest client is large enough."""
        self._check(int(totals.sum()), n_clients)
        largest = 0
        for _ in range(self.retries):
            table = DRAWS[self.by](self.beta, totals, n_clients, rng)
            smallest = -1 if table is None else int(table.sum(axis=1).min())
            if table is not None and smallest >= self.min_size:
                return table
            largest = max(largest, smallest)
        raise PartitionError(
            f"in {self.retries} draws with beta={self.beta} the smallest of {n_clients} clients never held more than "
            f"{largest} of {totals.sum()} samples; partition.min_size asks for {self.min_size}. "
            "Use fewer clients (cohort.clients), a larger partition.beta or a smaller partition.min_size."
        )

    def _check(self, n_samples: int, n_clients: int) -> None:
        if self.by not in DRAWS:
            raise PartitionError(f"partition.by={self.by!r} is none of {', '.join(DRAWS)}.")
        if self.beta <= 0:
            raise PartitionError(f"partition.beta={self.beta} has to be above 0; large values are nearly iid.")
        if self.min_size * n_clients > n_samples:
            raise PartitionError(
                f"{n_clients} clients with at least {self.min_size} samples (partition.min_size) need "
                f"{self.min_size * n_clients}, but there are {n_samples}. "
                "Use fewer clients (cohort.clients) or a smaller minimum."
            )


def _per_client(beta: float, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray | None:
    weights = rng.dirichlet(np.full(totals.size, beta), size=n_clients)
    if not weights.any(axis=0).all():  # a tiny beta underflows: a class has no weight at any client
        return None
    return np.stack([apportion(int(n), column) for n, column in zip(totals, weights.T, strict=True)], axis=1)


def _per_class(beta: float, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray | None:
    table = np.zeros((n_clients, totals.size), dtype=np.int64)
    for c, n in enumerate(totals):
        weights = rng.dirichlet(np.full(n_clients, beta))
        weights[table.sum(axis=1) >= totals.sum() / n_clients] = 0.0
        if not weights.any():
            return None
        edges = np.rint(np.cumsum(weights / weights.sum()) * n).astype(np.int64)
        table[:, c] = np.diff(edges, prepend=0)
    return table


DRAWS = {"client": _per_client, "class": _per_class}
