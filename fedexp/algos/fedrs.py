"""Restricted softmax, and the two small add-ons of the FedRS paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedexp.core.component import Component, Paper
from fedexp.core.ranges import Count, NotNegative, Positive, Share, ShareAbove0
from fedexp.core.state import Out, Slot, Tree, Upload, axpy, global_norm, per_class, sub
from fedexp.core.views import Facts, LocalRound, ServerRound, Step


@dataclass(frozen=True, kw_only=True)
class RestrictedSoftmax(Component):
    """Damps the logits of classes that a client has not observed, in its training loss only.

    Li and Zhan, FedRS, KDD 2021, sect. 4.3, eq. 8: p_c ∝ exp(a_c · w_c·h) with a_c = 1 for observed classes and
    ``alpha`` for missing ones. The test uses plain logits. The plan shows the factors of each client. Modes:

    ``indicator``: the rule above.
    ``count_max``: a_c = alpha + (1 - alpha) · n_c / max n, the form of the authors' public code.
    ``count_sum``: a_c = n_c / Σ n, the rule for complete classes as MAP (sect. 5.4) prints it. It shrinks all logits
    by about the number of classes.

    A classifier's bias is not in eq. 8. ``bias: kept``: it is added unscaled, a_c w_c·h + b_c. ``scaled``: a_c times
    the whole logit (fluke). ``dropped``: a_c w_c·h, no bias while training (the authors' public code). It is that of
    the classifier's last layer; where another component replaces or rescales the classifier, logits are scaled whole.

    Beside a method that leaves missing classes out of the training softmax (FedLC, FedROD, FedGELA with ``softmax:
    owned``) it changes nothing.

    Others of this name: fluke counts classes with at most two samples as missing (``min_count: 3``, ``bias: scaled``);
    the authors' public code, and its copies for long-tailed data, have ``mode: count_max`` with ``bias: dropped``.

    Deviations: the authors' public code uses ``count_max`` everywhere, and before July 2022 it applied the rule again
    at every step, so that the factors drifted to 1; here the factors are made once. A class counts as observed from
    ``min_count`` training samples on (FedRS: 20 on Shakespeare, 2 on FEMNIST); samples of a class below that stay in
    the training set.
    """

    alpha: Share = 0.5
    mode: Literal["indicator", "count_max", "count_sum"] = "indicator"
    min_count: Count = 1
    bias: Literal["kept", "scaled", "dropped"] = "kept"

    paper: ClassVar[Paper | None] = Paper("FedRS", weighting="uniform", evaluate="map")
    padded: ClassVar[bool] = True

    def slots(self) -> Sequence[Slot]:
        """The factors [clients, classes]."""
        return (Slot("factors", "constant", lambda init: {"value": self._factors(init.counts)}),)

    def logits(self, z: Tensor, step: Step) -> Tensor:
        """Scales the logits; the gradient of a missing class's row is scaled with them."""
        info = step.info
        if info is None:
            return z
        factors = step.once("factors", lambda: step.mine["factors"]["value"][info.client])
        if self.bias == "scaled" or not step.once("biased", lambda: self._biased(step)):
            return z * factors
        *_, bias = step.frame.net.classifier.parameters()
        return z * factors + bias * ((1 - factors) if self.bias == "kept" else -factors)

    def _factors(self, counts: Tensor) -> Tensor:
        """The factor a_c of each class, for each client."""
        counts = torch.where(counts >= self.min_count, counts, 0)
        if self.mode == "count_sum":
            return counts / counts.sum(1, keepdim=True).clamp(min=1)
        if self.mode == "count_max":
            return self.alpha + (1 - self.alpha) * counts / counts.amax(1, keepdim=True).clamp(min=1)
        return torch.where(counts > 0, 1.0, self.alpha)

    def _biased(self, step: Step) -> bool:
        """Whether the logits are those of the network's classifier, and its last layer has a bias."""
        classifier, h = step.frame.net.classifier, step.h.detach()
        names = [n for n, _ in classifier.named_parameters()]
        if not names or not names[-1].endswith("bias"):
            return False
        with torch.no_grad():
            return "*" in self.during or torch.equal(step.classify(h), classifier(h))

    def neutral(self) -> RestrictedSoftmax:
        """With alpha = 1 the restricted softmax is the softmax."""
        return replace(self, alpha=1.0, mode="indicator", bias="kept")


@dataclass(frozen=True, kw_only=True)
class ClassWeightedAggregation(Component):
    """Averages each row of the classifier by who owns the class.

    FedRS, sect. 4.4: w_c ← Σ_k p_kc w_kc with p_kc = (n_kc + smoothing) / Σ_j (n_jc + smoothing), Laplace smoothing.
    At 0 only owners count, and a row that nobody in the cohort owns stays as it is; a large value gives the uniform
    mean. The class counts go up with the model.

    Deviations: FedRS discusses it and reports no result; its public code does not have it.
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
    ε = sqrt(2 ln(1.25/δ)) · sensitivity / sigma. The plan also says the ε of all ``rounds`` together, for a client that
    takes part in each of them: Gaussian releases compose to one with √rounds times the sensitivity, whose ε is exact
    (Dong, Roth and Su, JRSS-B 2022, cor. 2.13 and 3.3; Balle and Wang, ICML 2018, theorem 8).

    Only parameters of the model are covered. A component that sends anything else is refused. Running statistics of
    normalisation layers are sent as they are; then, or if a client has fewer than ``min_samples``, the plan says that
    the statement does not hold.

    Deviations: the paper rounds its ε = 3.1075 to 3, and counts one release only. That sensitivity presumes clipping
    per sample; clipping the finished update, as described there and done here, guarantees 2 clip only. No credit is
    taken for the drawing of clients.
    """

    clip: Positive = 20.0
    sigma: Positive = 0.1
    min_samples: Count = 400
    delta: ShareAbove0 = 0.01
    rounds: Count = 1

    @property
    def _sensitivity(self) -> float:
        """That of the paper."""
        return 2 * self.clip / self.min_samples

    @property
    def epsilon(self) -> float:
        """The paper's ε of one release."""
        return math.sqrt(2 * math.log(1.25 / self.delta)) * self._sensitivity / self.sigma

    def clashes(self, before: Mapping[str, Component], after: Mapping[str, Component]) -> Iterable[str]:
        """Nothing else may be sent."""
        if sent := [f"{k}.{u.name}" for k, c in {**before, **after}.items() for u in c.uploads()]:
            yield (
                f"puts noise on the model only, and {', '.join(sent)} would be sent without: nothing is private then. "
                "Use it without the components that send them."
            )

    def note(self, facts: Facts) -> str:
        """The privacy statement, as the paper accounts for it, what the paper leaves out, and why it may not hold."""
        total = composed_epsilon(math.sqrt(self.rounds) * self._sensitivity / self.sigma, self.delta)
        said = (
            f"(epsilon, delta) = ({self.epsilon:.4f}, {self.delta:g}) for one release by the accounting of FedRS, "
            f"appendix B (sensitivity 2·{self.clip:g}/{self.min_samples}, which presumes clipping per sample); "
            f"({total:.4g}, {self.delta:g}) for a client that takes part in {self.rounds} rounds"
        )
        if reasons := [*self._broken(facts)]:
            said += f". Neither holds in this run: {', and '.join(reasons)}"
        return said

    def _broken(self, facts: Facts) -> Iterable[str]:
        """What the statement presumes, and the run does not have."""
        smallest = int(facts.counts.sum(1).min())
        if smallest < self.min_samples:
            yield f"a client has {smallest} training samples, fewer than min_samples={self.min_samples}"
        if facts.layout.statistics:
            yield "the running statistics of normalisation layers are sent without noise"

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


def composed_epsilon(mu: float, delta: float) -> float:
    """The smallest ε such that Gaussian noise with sensitivity/sigma = ``mu`` is (ε, δ)-private."""

    def log_cdf(x: float) -> float:
        return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))

    def too_small(epsilon: float) -> bool:
        """Whether Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) is more than δ."""
        first, second = log_cdf(mu / 2 - epsilon / mu), epsilon + log_cdf(-mu / 2 - epsilon / mu)
        return second < first and first + math.log(-math.expm1(second - first)) > math.log(delta)

    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # that of concentrated privacy: never less
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return high
