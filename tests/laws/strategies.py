"""Trees and uploads for the laws."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

NAMES = ("features.0.weight", "features.0.bias", "classifier.weight", "scale")
SHAPES = {"features.0.weight": (2, 3), "features.0.bias": (2,), "classifier.weight": (3, 2), "scale": ()}

small = st.floats(-10, 10, allow_nan=False, width=32)
share = st.floats(0, 1, allow_nan=False)


@st.composite
def trees(draw, names=None) -> dict[str, torch.Tensor]:
    """A tree in double precision, so that laws hold to rounding."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)) if names is None else names
    tree = {}
    for name in names:
        size = torch.Size(SHAPES[name]).numel()
        values = draw(st.lists(small, min_size=size, max_size=size))
        tree[name] = torch.tensor(values, dtype=torch.float64).view(SHAPES[name])
    return tree


@st.composite
def pairs(draw) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Two trees of the same names."""
    first = draw(trees())
    return first, draw(trees(names=list(first)))


@st.composite
def uploads(draw, most: int = 6) -> dict[int, dict[str, torch.Tensor]]:
    """Trees of the same names by client id, in cohort order, each with a counter."""
    clients = draw(st.lists(st.integers(0, 99), min_size=1, max_size=most, unique=True))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    return {c: {**draw(trees(names=names)), "n": torch.tensor(draw(st.integers(0, 1000)))} for c in sorted(clients)}
