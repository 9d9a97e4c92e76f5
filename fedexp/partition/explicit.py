from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedexp.errors import PartitionError
from fedexp.partition.base import Partition
from fedexp.partition.table import IntArray, equal


@dataclass(frozen=True, kw_only=True)
class Explicit(Partition):
    """Client i owns exactly the classes listed for it; a class with several owners is divided equally.

    For demonstrations such as the two clients of Li et al., MAP, arXiv 2404.09232, section 5.1.3, and of FedRS, KDD
    2021, table 2: digits 0 to 4 and digits 5 to 9. A class that nobody lists belongs to nobody.

    Args:
        classes: For each client, its classes.
    """

    classes: Sequence[Sequence[int]]

    @property
    def conserved(self) -> bool:
        """A class that nobody lists belongs to nobody."""
        return False

    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:  # noqa: ARG002 - no chance here
        """Divides each class over those who list it."""
        if len(self.classes) != n_clients:
            raise PartitionError(
                f"partition.classes lists {len(self.classes)} clients, but the run has {n_clients}. Make them equal."
            )
        owns = np.zeros((n_clients, totals.size), dtype=np.int64)
        for client, own in enumerate(self.classes):
            if not own or len(set(own)) < len(own) or not 0 <= min(own) <= max(own) < totals.size:
                raise PartitionError(
                    f"partition.classes gives client {client} {list(own)}; "
                    f"a client needs different classes from 0 to {totals.size - 1}."
                )
            owns[client, list(own)] = 1
        return equal(owns, totals)
