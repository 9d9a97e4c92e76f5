"""FedPAC: the server mixes each client the classifier that its statistics say is best for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedexp.algos.mixed_heads import MixedHeads, mixed
from fedexp.algos.prototypes import class_sums
from fedexp.core.ranges import ShareBelow1
from fedexp.core.state import Init, Out, Tree, Upload
from fedexp.core.views import LocalRound, ServerRound

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class ClassifierCollaboration(MixedHeads):
    """Averages features over all clients, and classifiers with weights of each client's own.

    Xu, Tong and Huang, FedPAC, ICLR 2023. With the features it receives, a client finds H_k, its class means times
    class shares, [C, d], and V_k = (mean ‖h‖² - ‖H_k‖²) / n_k, the variance of a mean over its n_k samples. Its
    classifier becomes Σ_j a_j φ_j, where a minimises Σ_j a_j² V_j + ‖H_k - Σ_j a_j H_j‖², variance plus squared bias,
    over a ≥ 0, Σ a = 1. Weights below ``threshold`` are dropped, and the rest is scaled to a sum of one.

    The rest of FedPAC is in ``Alternate`` (the classifier is trained for an epoch, then the features), ``ClassMeans``
    and ``Align`` (features are pulled towards global class means).

    The classifier is personal, and the server's model lacks it. Sent up beside the features: the classifier, H_k and
    V_k; sent down: the client's classifier. A client that was not in the cohort keeps the one last made for it; a new
    one gets the initial classifier. ``own`` in a round's record is the weight of each client's own classifier, by id.

    Deviations: the quadratic form is written with inner products, which is the trace of the public code's d × d
    matrices, and is never indefinite, so there are no eigenvalues to mend and no classifier that stays as it is. For a
    class without prototype ``Align`` has no pull; the public code takes the client's own class mean from before.
    """

    threshold: ShareBelow1 = 1e-3

    def uploads(self) -> Sequence[Upload]:
        """The trained classifier, and what its weights for others follow from."""
        return (*super().uploads(), Upload("statistics", _no_statistics, "keep"))

    def finish(self, local: LocalRound) -> Out:
        """Statistics of the features as received, and the classifier as trained."""
        found = statistics(local.embed(local.received), local.facts.n_classes)
        return Out(uploads={"head": self._trained_head(local), "statistics": found})

    def serve(self, server: ServerRound) -> dict[str, Tree | dict[int, Tree]]:
        """Mixes a classifier for each client of the cohort."""
        heads = dict(sorted(server.kept["head"].items()))
        found = [server.kept["statistics"][client] for client in heads]
        means = torch.stack([s["means"].flatten() for s in found]).double().numpy()
        variances = torch.stack([s["variance"] for s in found]).double().numpy()
        weights = torch.from_numpy(collaboration(means, variances, self.threshold))
        server.record("own", weights.diagonal())
        return {"head": dict(mixed(heads, weights))}


def statistics(embedded: Iterable[tuple[Tensor, Tensor]], n_classes: int) -> Tree:
    """Class means times class shares, and the variance of a mean feature."""
    chunks = [(class_sums([(h, y)], n_classes), h.square().sum()) for h, y in embedded]
    n = torch.stack([sums["weight"].sum() for sums, _ in chunks]).sum()
    means = torch.stack([sums["value"] for sums, _ in chunks]).sum(0) / n
    square = torch.stack([squares for _, squares in chunks]).sum() / n
    return {"means": means, "variance": ((square - means.square().sum()) / n).clamp(min=0)}


def collaboration(means: Array, variances: Array, threshold: float) -> Array:
    """For each client the weights of all classifiers, [m, m], from means [m, C · d] and variances [m]."""
    inner = means @ means.T
    variance = np.diag(variances)
    rows = []
    for i, own in enumerate(inner):
        bias = own[i] - own[:, None] - own + inner  # <H_i - H_j, H_i - H_k> in row j, column k
        rows.append(smallest_on_simplex(bias + variance))
    weights = np.stack(rows)
    weights[weights < np.minimum(threshold, weights.max(1, keepdims=True))] = 0  # the largest stays in any case
    normal: Array = weights / weights.sum(1, keepdims=True)
    return normal


def smallest_on_simplex(form: Array) -> Array:
    """The a ≥ 0 with sum 1 for which aᵀ form a is smallest; ``form`` is positive semidefinite.

    For x = s a, xᵀ form x + (Σ x - 1)² is least at q / (1 + q) with q = aᵀ form a, which grows with q: the x ≥ 0 of
    least squares has the direction of a.
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped, unused-ignore]

    values, vectors = np.linalg.eigh(form / max(np.trace(form) / len(form), 1e-300))
    root = np.sqrt(values.clip(min=0))[:, None] * vectors.T
    x, _ = nnls(np.vstack([root, np.ones(len(form))]), np.append(np.zeros(len(form)), 1.0))
    share: Array = x / x.sum()
    return share


def _no_statistics(init: Init) -> Tree:
    return {"means": torch.zeros(init.n_classes, init.feature_dim), "variance": torch.zeros(())}
