from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedexp.partition.base import Partition
from fedexp.partition.table import IntArray


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Equal shares at random: every client's classes look like everybody's, up to chance.

    McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017, section 3. Sizes differ by at most
    one and nothing is dropped.
    """

    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:
        """Shuffles the labels and cuts them into equal rows."""
        labels = rng.permutation(np.repeat(np.arange(totals.size), totals))
        return np.stack([np.bincount(row, minlength=totals.size) for row in np.array_split(labels, n_clients)])
