"""Who owns what: the class × client counts of a partition as a picture and as a few numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_WIDTH = 1600  # pixels; beyond that a browser only scales the picture down again
LARGEST_CELL = 24
MISSING = (244, 244, 246)
PALE = (198, 219, 239)
DARK = (8, 48, 107)
GAP = (255, 255, 255)


def heatmap(partition: Sequence[Sequence[int]]) -> NDArray[np.uint8]:
    """Draws one row per class, one column per client; grey is a class the client does not own, dark is much data."""
    counts = np.asarray(partition, dtype=np.float64).T  # [C, clients]
    # The square root keeps a handful of samples distinguishable from none beside a client with thousands.
    depth = np.sqrt(counts / max(counts.max(initial=0.0), 1.0))[..., None]
    colours = np.where(depth > 0, (1 - depth) * PALE + depth * np.asarray(DARK), MISSING).astype(np.uint8)
    cell = int(np.clip(MAX_WIDTH // max(counts.shape[1], 1), 1, LARGEST_CELL))
    picture = colours.repeat(cell, axis=0).repeat(cell, axis=1)
    if cell > 3:
        picture[cell - 1 :: cell] = GAP
        picture[:, cell - 1 :: cell] = GAP
    return picture


def ownership(partition: Sequence[Sequence[int]]) -> dict[str, float]:
    """Counts clients, classes and samples, and says how incomplete the clients' classes are."""
    counts = np.asarray(partition)  # [clients, C]
    owned = (counts > 0).sum(axis=1)
    owners = (counts > 0).sum(axis=0)
    sizes = counts.sum(axis=1)
    return {
        "clients": int(counts.shape[0]),
        "classes": int(counts.shape[1]),
        "samples": int(counts.sum()),
        "classes_per_client": float(owned.mean()),
        "fewest_classes": int(owned.min()),
        "most_classes": int(owned.max()),
        "fewest_owners": int(owners.min()),
        "smallest_client": int(sizes.min()),
        "largest_client": int(sizes.max()),
    }
