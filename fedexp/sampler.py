"""Cohorts: which clients take part in a round. The same for every algorithm under the same seed."""

from __future__ import annotations

from dataclasses import dataclass

from fedexp.seeding import numpy_rng


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
