"""Three discs in the plane, with which FedMR shows what a missing class does to directions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedexp.core.ranges import Count
from fedexp.core.seeding import numpy_rng
from fedexp.data.source import DataSpec, Loaded, Samples
from fedexp.system.memory import afford

CENTRES = ((1.0, 0.0), (0.0, math.sqrt(3)), (0.0, -math.sqrt(3)))
RADIUS = 0.5
OPTIMAL = ((1.0, 0.0), (-math.sqrt(3) / 2, 0.5), (-math.sqrt(3) / 2, -0.5))
"""The weights w* that the paper gives for clients with all three classes."""


@dataclass(frozen=True, kw_only=True)
class Circles:
    """Points drawn uniformly from three discs. Fan et al., FedMR, TMLR 2023, section 3.2.

    If each of three clients has two of the classes and separates them along the line between their centres, the mean of
    their weights points 45° away from the paper's ``OPTIMAL`` for the second and the third class.

    Deviations: The paper does not say how it comes to ``OPTIMAL``, and it does not follow from the centres: a
        linear classifier without bias that is trained on all three discs points to 120° for the second class, where
        the paper has 150° and the mean of its three clients 105°. So does, within some degrees, the mean of three
        clients that are trained on two discs each: the printed rows of clients need a bias, and no zeros appear.

    Args:
        samples: Training samples per class.
        test: Test samples per class.
        seed: Of the data, not of the run.
    """

    samples: Count
    test: Count
    seed: int

    def load(self) -> Loaded:
        """Draws the points."""
        afford(64 * len(CENTRES) * (self.samples + self.test), f"data.samples={self.samples}, data.test={self.test}")
        rng = numpy_rng(self.seed, "circles")
        return Loaded(DataSpec((2,), len(CENTRES)), _points(self.samples, rng), _points(self.test, rng), None)


def _points(per_class: int, rng: np.random.Generator) -> Samples:
    labels = np.repeat(np.arange(len(CENTRES)), per_class)
    radius, angle = RADIUS * np.sqrt(rng.random(len(labels))), 2 * np.pi * rng.random(len(labels))
    points = np.asarray(CENTRES)[labels] + np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return Samples(torch.from_numpy(points.astype(np.float32)), torch.from_numpy(labels))
