"""Restricted softmax, and the two small add-ons of the FedRS paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedexp.core.component import Component, Paper
from fedexp.core.ranges import Count, NotNegative, Positive, Share, ShareAbove0
from fedexp.core.state import Out, Tree, Upload, axpy, global_norm, per_class, sub
from fedexp.core.views import Facts, LocalRound, ServerRound, Step
from fedexp.data.federated import Info


@dataclass(frozen=True, kw_only=True)
class RestrictedSoftmax(Component):
    """Damps the logits of classes that a client has not observed, in its training loss only.

    Li and Zhan, FedRS, KDD 2021, sect. 4.2: p_c ∝ exp(a_c · w_c·h) with a_c = 1 for observed classes and ``alpha`` for
    missing ones. The test uses plain logits. Modes:

    ``indicator``: the rule above.
    ``count_max``: a_c = alpha + (1 - alpha) · n_c / max n, the form of the authors' public code.
    ``count_sum``: a_c = n_c / Σ n, the rule for complete classes as MAP (sect. 5.4) prints it. It shrinks all logits
    by about the number of classes.

    Deviations: the authors' public code uses ``count_max`` everywhere, and before July 2022 it applied the rule again
    at every step, so that the factors drifted to 1; here the factors are made once per phase. A class counts as
    observed from ``min_count`` training samples on (FedRS: 20 on Shakespeare, 2 on FEMNIST); samples of a class below
    that stay in the training set.
    """

    alpha: Share = 0.5
    mode: Literal["indicator", "count_max", "count_sum"] = "indicator"
    min_count: Count = 1

    paper: ClassVar[Paper | None] = Paper("FedRS", weighting="uniform", evaluate="map")

    def logits(self, z: Tensor, step: Step) -> Tensor:
        """Scales the logits; the gradient of a missing class's row is scaled with them."""
        info = step.info
        return z if info is None else z * step.once("factors", lambda: self._factors(info))

    def _factors(self, info: Info) -> Tensor:
        """The factor a_c of each class."""
        counts = torch.where(info.counts >= self.min_count, info.counts, 0)
        if self.mode == "count_sum":
            return counts / counts.sum()
        if self.mode == "count_max":
            return self.alpha + (1 - self.alpha) * counts / counts.max()
        return torch.where(counts > 0, 1.0, self.alpha)

    def neutral(self) -> RestrictedSoftmax:
        """With alpha = 1 the restricted softmax is the softmax."""
        return replace(self, alpha=1.0, mode="indicator")


@dataclass(frozen=True, kw_only=True)
class ClassWeightedAggregation(Component):
    """Averages each row of the classifier by who owns the class.

    FedRS, sect. 4.4: w_c ← Σ_k p_kc w_kc with p_kc = (n_kc + smoothing) / Σ_j (n_jc + smoothing), Laplace smoothing.
    At 0 only owners count, and a row that nobody in the cohort owns stays as it is; a large value gives the uniform
    mean. The class counts go up with the model.
    """

    smoothing: NotNegative = 1.0

    keeps: ClassVar[tuple[str, ...]] = ("model",)

    def problems(self, facts: Facts) -> Iterable[str]:
        """Rows must be classes."""
        rows = [facts.initial[n].shape for n in facts.layout.trainable("classifier")]
        if any(shape[0] != facts.n_classes for shape in rows):
            yield f"smoothing needs a classifier of one linear layer with {facts.n_classes} rows, not {rows}"
        if not facts.layout.trainable("classifier") & set(facts.layout.shared):
            yield "smoothing is for averaging the classifier, which another component keeps from travelling"

    def uploads(self) -> Sequence[Upload]:
        """The client's class counts."""
        return (Upload("counts", per_class(), "keep"),)

    def finish(self, local: LocalRound) -> Out:
        """Sends the counts."""
        return Out(uploads={"counts": {"value": local.info.counts}})

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """Replaces the classifier's step by the one of the class-wise mean."""
        mass = {c: t["value"] + self.smoothing for c, t in server.kept["counts"].items()}
        total = torch.stack(list(mass.values())).sum(0)
        known = total > 0
        new = dict(delta)
        for name in delta.keys() & server.facts.layout.parts["classifier"]:
            old = server.model[name]
            shape = (-1, *[1] * (old.dim() - 1))
            mean = sum(
                (mass[c].view(shape) * tree[name] for c, tree in server.kept["model"].items()), old.new_zeros(())
            )
            rows = torch.where(known.view(shape), mean / total.clamp(min=1e-12).view(shape), old)
            new[name] = rows - old
        return new


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Component):
    """Clips the client's update and adds Gaussian noise to what it sends.

    FedRS, appendix B: Δ ← Δ · min(1, clip/‖Δ‖₂) over all parameters together, then N(0, sigma²) on every entry. With
    the paper's accounting (sensitivity 2 clip/min_samples) one release is (ε, δ)-private with
    ε = sqrt(2 ln(1.25/δ)) · sensitivity / sigma.

    Deviations: the paper rounds its ε = 3.1075 to 3. That sensitivity presumes clipping per sample; clipping the
    finished update, as described there and done here, guarantees 2 clip only. Neither counts repeated participation.
    """

    clip: Positive = 20.0
    sigma: Positive = 0.1
    min_samples: Count = 400
    delta: ShareAbove0 = 0.01

    @property
    def epsilon(self) -> float:
        """The paper's ε of one release."""
        return math.sqrt(2 * math.log(1.25 / self.delta)) * (2 * self.clip / self.min_samples) / self.sigma

    def note(self) -> str:
        """The privacy statement, as the paper accounts for it."""
        return (
            f"(epsilon, delta) = ({self.epsilon:.4f}, {self.delta:g}) for one release by the accounting of FedRS, "
            f"appendix B (sensitivity 2·{self.clip:g}/{self.min_samples}); participation in many rounds is not composed"
        )

    def uplink(self, weights: Tree, local: LocalRound) -> Tree:
        """Clip first, then noise; buffers are not touched."""
        moved = sub(weights, local.received)
        factor = min(1.0, self.clip / max(float(global_norm(moved)), 1e-12))
        clipped = axpy(factor, moved, local.received)
        rng = local.generator("noise")
        return {
            n: v + self.sigma * torch.randn(v.shape, generator=rng, device=v.device, dtype=v.dtype)
            for n, v in clipped.items()
        }
