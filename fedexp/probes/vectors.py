"""Class vectors and class means: which they are, their norms, distances and angles."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.state import Tree
from fedexp.core.views import Facts

NO_VECTORS = (
    "looks at the rows of the classifier's last layer, one for each class, and this network's classifier has no such "
    "layer. Leave the probe out, or use another model."
)


def vector_name(facts: Facts) -> str | None:
    """The weights whose rows are the class vectors: those of the classifier's last layer."""
    own = facts.layout.parts["classifier"]
    rows = (n for n in facts.layout.parameters if n in own and facts.initial[n].ndim == 2)
    return next((n for n in reversed([*rows]) if len(facts.initial[n]) == facts.n_classes), None)


def class_vectors(facts: Facts, tree: Tree) -> Tensor:
    """The class vectors of a model, [classes, features of the last layer]."""
    name = vector_name(facts)
    if name is None:
        raise LookupError("the classifier has no class vectors")
    return tree.get(name, facts.initial[name]).detach().double()


def without_vectors(facts: Facts) -> Iterator[str]:
    """Why a probe of class vectors cannot observe a run."""
    if vector_name(facts) is None:
        yield NO_VECTORS


def class_means(h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean feature of each class that there are samples of, and these classes."""
    h, classes = h.double(), torch.unique(y)
    return torch.stack([h[y == c].mean(0) for c in classes]), classes


def mean_norm(vectors: Tensor) -> Tensor:
    """The mean of the norms; NaN of none."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1)
    return norms.mean()


def mean_distance(a: Tensor, b: Tensor) -> Tensor:
    """MAP, figure 6: Σ ‖a_i − b_j‖ / (|a| |b|). Of vectors among themselves, pairs with itself count too."""
    return mean_norm((a[:, None] - b[None]).flatten(0, 1))


def mean_angle(a: Tensor, b: Tensor | None = None) -> Tensor:
    """The mean angle in degrees: over unordered pairs of different vectors of ``a``, or over all pairs with ``b``.

    Vectors of length zero have no direction, and take no part.
    """
    a = F.normalize(a[a.norm(dim=1) > 0], dim=1)
    if b is None:
        cosines = (a @ a.T)[tuple(torch.triu_indices(len(a), len(a), offset=1))]
    else:
        cosines = a @ F.normalize(b[b.norm(dim=1) > 0], dim=1).T
    return cosines.clamp(-1, 1).arccos().rad2deg().mean()


def etf_angle(classes: int) -> float | None:
    """The angle between any two of as many vectors that are as far apart as can be: arccos(−1 / (C − 1))."""
    return math.degrees(math.acos(-1 / (classes - 1))) if classes > 1 else None
