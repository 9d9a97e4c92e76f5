"""Features and class vectors in the plane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedexp.core.ranges import CountOr0
from fedexp.core.views import Facts
from fedexp.probes.base import ClientView, Log, Probe, ServerView
from fedexp.probes.vectors import class_means, class_vectors, mean_norm, vector_name, without_vectors


@dataclass(frozen=True, kw_only=True)
class ProxiesProbe(Probe):
    """Two-dimensional test features and class vectors of the downloaded, trained and aggregated model.

    Li and Zhan, FedRS, figures 3, 4 and 12; Li et al., MAP, figures 5 and 8. Models are ``received``, ``trained`` (what
    is sent), ``personal`` and, at the server, ``aggregated``. Each has arrays ``<model>/features`` [samples, 2],
    ``<model>/labels`` and ``<model>/vectors`` [classes, 2], and a row with the mean norm of the vectors of observed and
    of missing classes (at the server of all: ``norm``), the direction of each vector in degrees from the first axis,
    and ``spread``: the mean distance of features from the mean of their class, over that of class means from theirs.

    Args:
        samples: Of the global test set; 0 for all.
        project: ``none`` refuses networks with other than two features; ``pca`` draws features and vectors in the plane
            of the two largest principal components of that model's features, a plane of its own for each model;
            ``sphere`` writes longitude and latitude in degrees, of networks with three features.
    """

    samples: CountOr0 = 1000
    project: Literal["none", "pca", "sphere"] = "none"

    def problems(self, facts: Facts) -> Iterator[str]:
        """Two features, unless they are projected; and vectors in the same space."""
        yield from super().problems(facts)
        yield from without_vectors(facts)
        if facts.feature_dim != 3 and self.project == "sphere":
            yield f"draws features on a sphere, and this network has {facts.feature_dim} of them, not three."
        if facts.feature_dim != 2 and self.project == "none":
            yield (
                f"draws features in the plane, and this network has {facts.feature_dim} of them. Use a network with "
                "two (model=lenet2d), or project=pca."
            )
        name = vector_name(facts)
        if name is not None and facts.initial[name].shape[1] != facts.feature_dim:
            yield "draws features and class vectors in one plane, and this classifier has more than one layer."

    def client(self, view: ClientView, log: Log) -> None:
        """The model as it came, as it is sent, and as it is used."""
        observed = view.info.owned
        trees = {"received": view.received, "trained": view.uploaded, "personal": view.personal}
        for name, tree in trees.items():
            h, y = view.test(tree, self.samples)
            vectors = class_vectors(view.facts, tree)
            norms = {"norm_observed": mean_norm(vectors[observed]), "norm_missing": mean_norm(vectors[~observed])}
            self._draw(name, h, y, vectors, norms, log)

    def server(self, view: ServerView, log: Log) -> None:
        """The aggregated model."""
        if view.after is not None:
            h, y = view.test(view.after, self.samples)
            vectors = class_vectors(view.facts, view.after)
            self._draw("aggregated", h, y, vectors, {"norm": mean_norm(vectors)}, log)

    def _draw(self, name: str, h: Tensor, y: Tensor, vectors: Tensor, norms: dict[str, Tensor], log: Log) -> None:
        spread = relative_spread(h, y)
        if self.project == "pca":
            axes = principal_axes(h)
            h, vectors = (h.double() - h.double().mean(0)) @ axes, vectors @ axes
        elif self.project == "sphere":
            h, vectors = on_sphere(h.double()), on_sphere(vectors)
        for key, value in {"features": h.float(), "vectors": vectors.float(), "labels": y}.items():
            log.array(f"{name}/{key}", value)
        seen = {} if self.project == "sphere" else {"directions": directions(vectors)}  # which are angles in a plane
        log.row(name, {**norms, "spread": spread, **seen})


def directions(vectors: Tensor) -> Tensor:
    """Angles from the first axis in degrees, in (−180, 180]; NaN of a vector of length zero."""
    angle = torch.atan2(vectors[:, 1], vectors[:, 0]).rad2deg()
    return angle.where(vectors.norm(dim=1) > 0, torch.nan)


def on_sphere(points: Tensor) -> Tensor:
    """Longitude in (−180, 180] and latitude in [−90, 90], in degrees, of the directions of points in space."""
    x, y, z = points.T
    return torch.stack([torch.atan2(y, x), torch.atan2(z, torch.hypot(x, y))], dim=1).rad2deg()


def relative_spread(h: Tensor, y: Tensor) -> Tensor:
    """How wide classes are, against how far they are apart: small is compact."""
    means, classes = class_means(h, y)
    own = means[torch.searchsorted(classes, y)]
    return mean_norm(h.double() - own) / mean_norm(means - means.mean(0))


def principal_axes(h: Tensor) -> Tensor:
    """The two directions of largest variance, [features, 2]; the largest entry of each is positive."""
    h = h.double()
    if not h.isfinite().all():
        return h.new_full((h.shape[1], 2), torch.nan)
    axes: Tensor = torch.linalg.svd(h - h.mean(0), full_matrices=False).Vh[:2].T
    signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return axes * signs
