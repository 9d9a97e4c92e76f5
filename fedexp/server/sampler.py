"""Cohorts: which clients take part in a round, and what befalls them. The same for every algorithm under one seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedexp.config.settings import MishapSettings
from fedexp.core.seeding import numpy_rng


@dataclass(frozen=True)
class UniformSampler:
    """max(int(Q K), 1) clients without replacement, in ascending order (MAP and FedRS, Alg. 1)."""

    seed: int
    clients: int
    fraction: float

    @property
    def size(self) -> int:
        """Clients per round."""
        return cohort_size(self.clients, self.fraction)

    def __call__(self, round_: int) -> list[int]:
        """The cohort of a round."""
        rng = numpy_rng(self.seed, "cohort", round_)
        drawn: list[int] = rng.choice(self.clients, self.size, replace=False).tolist()
        return sorted(drawn)


def cohort_size(clients: int, fraction: float) -> int:
    """Clients per round; the small number keeps 0.29 · 100 from becoming 28."""
    return max(int(fraction * clients + 1e-9), 1)


def largest_first(cohort: Sequence[int], counts: Tensor) -> list[int]:
    """The order in which a cohort is handed out and summed: a worker that ends late then has little left."""
    samples = dict(zip(cohort, counts[list(cohort)].sum(1).tolist(), strict=True))
    return sorted(cohort, key=lambda c: (-samples[c], c))


@dataclass(frozen=True)
class ClientDropouts(MishapSettings):
    """Clients that drop out of a round, or do a share of their steps only; drawn anew for each client and round."""

    seed: int

    def dropped(self, round_: int, cohort: Sequence[int]) -> set[int]:
        """The clients of a cohort that drop out."""
        return {c for c in cohort if self._occurs(self.dropout, "dropout", round_, c)}

    def share(self, round_: int, client: int) -> float:
        """The share of its steps that a client does."""
        return self.slow if self._occurs(self.stragglers, "straggler", round_, client) else 1.0

    def _occurs(self, probability: float, what: str, round_: int, client: int) -> bool:
        return probability > 0 and bool(numpy_rng(self.seed, what, round_, client).random() < probability)


NO_DROPOUTS = ClientDropouts(0)
