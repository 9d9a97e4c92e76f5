"""Manifold reshaping: spread each class over all feature dimensions, and keep it on its own side of the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.component import Component, Paper
from fedexp.core.ranges import Count, NotNegative, Positive
from fedexp.core.views import Facts, Step

GRAM = 256  # up to so many samples one n × n product takes less time than a d × d product for each class


@dataclass(frozen=True, kw_only=True)
class ManifoldReshape(Component):
    """Adds intra · (decorrelation within classes) + inter · (margin between prototypes) to the loss.

    Fan et al., FedMR, TMLR 2023, eq. 3 to 5. Within a class, features standardised by dimension have the covariance M,
    and ‖M‖²_F falls as its spectrum flattens (lemma 1). Between classes, a feature pays for being closer to another
    class's prototype than to its own: max(‖z - g_y‖ - ‖z - g_j‖, 0), averaged over the batch's samples of a class, then
    over pairs of classes. Classes without prototype are left out; before the first prototypes there is no margin.

    ``form: paper``: eq. 3, the mean over classes of ‖M‖²_F. ``form: code``: the public code's intra loss, the squared
    off-diagonal entries of the unscaled XᵀX, averaged over d(d - 1), summed over classes, divided by the samples. A
    class term of it is (n - 1)²/(d(d - 1)) · (‖M‖²_F - d), so ``intra`` does not carry over: for batches of 128 the
    same pull needs one that is 4,000 (two classes, d = 512) to 38,000 times larger (ten classes, d = 640).

    ``eps`` is added to the variances. The public code has 1e-8: a dimension that is nearly constant within a class, as
    many are behind a ReLU, is then magnified by up to 10,000, and so is its gradient, until rounding errors decide the
    training. 0.01 bounds both by 10.

    ``intra`` acts with about d². Aggregation in % on Fashion-MNIST, mean of rounds 15, 20 and 25, seeds 0 and 1, of
    ``data=fmnist_fedmr model=mlpnet model.hidden=[256,84] partition=classes partition.classes=3 cohort.clients=40
    cohort.fraction=0.25 rounds=25 local.epochs=1 local.batch_size=128 weighting=samples every.evaluate=5``: FedAvg 52.0
    and 51.2; intra 1e-5: 51.9, 51.2; 1e-4: 53.1, 51.8; 1e-3: 54.4, 55.8; 3e-3: 50.0, 54.0; 1e-2: 47.1, 43.9. With 512
    features (the digits, ``rounds=30 weighting=samples``, last round) FedAvg has 94.2 and 93.9, 1e-5 94.7 and 93.9,
    1e-4 94.2 and 93.9, 1e-3 92.8 and 91.1. So the default is 1e-4, and networks of fewer than 100 features are better
    off with 1e-3. ``inter`` 0.1 instead of 0.01 gave 53.8 and 54.4 at 1e-3 above; LeNet with two classes a client
    collapsed to 10 % with it (one seed).

    ``negatives: all``: j is any class that has a prototype. ``negatives: observed``: j is a class of the client, as
    eq. 4 is printed; that leaves out the missing classes, which the prototypes are to stand for.

    ``lite``: this many random samples of the batch, drawn anew at each step, enter the margin (FedMR Lite).

    Deviations: statistics are those of the batch, as in the public code, not of the client's whole class; classes with
    fewer than two samples in it have no intra loss. ``eps`` is in no equation of the paper. Neither ``intra`` nor
    ``inter`` is printed there; the public code has intra = 0.01 and no margin at all. The paper does not say what Lite
    draws from. At ‖z - g‖ = 0 the gradient of the norm is zero.
    """

    intra: NotNegative = 1e-4
    inter: NotNegative = 0.01
    form: Literal["paper", "code"] = "paper"
    negatives: Literal["all", "observed"] = "all"
    lite: Count | None = None
    eps: Positive = 1e-2

    paper: ClassVar[Paper | None] = Paper("FedMR", weighting="samples", evaluate="map")
    terms: ClassVar[tuple[str, ...]] = ("intra", "inter")

    @property
    def needs(self) -> tuple[str, ...]:
        """Prototypes are for the margin only."""
        return ("means",) if self.inter else ()

    @property
    def unbatched(self) -> str | None:
        """Lite draws samples."""
        return None if self.lite is None else "draws random samples at every step (lite)"

    def note(self, facts: Facts) -> str | None:
        """What an ablation could save."""
        return None if self.inter else "inter is 0, so no prototype is read; ~algo.means saves making and sending them"

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Both terms, as far as they are wanted and possible."""
        terms: dict[str, Tensor] = {}
        if self.intra:
            by_class = step.shares is None  # in loop=batched each client has classes of other sizes
            terms["intra"] = self.intra * correlation(
                step.h, step.y, step.n_classes, form=self.form, eps=self.eps, by_class=by_class
            )
        if self.inter and step.once("known", lambda: bool(self._prototypes(step)[1].any())):
            terms["inter"] = self.inter * self._margin(step)
        return terms

    def neutral(self) -> ManifoldReshape:
        """Without weights there is no reshaping."""
        return replace(self, intra=0.0, inter=0.0)

    def _margin(self, step: Step) -> Tensor:
        z, y = step.h, step.y
        if self.lite is not None and self.lite < len(y):
            drawn = torch.randperm(len(y), generator=step.generator("lite"), device=y.device)[: self.lite]
            z, y = z[drawn], y[drawn]
        prototypes, known = self._prototypes(step)
        rivals = known
        if self.negatives == "observed" and step.info is not None:
            rivals = known & step.info.owned
        return margin(z, y, prototypes, known=known, rivals=rivals)

    def _prototypes(self, step: Step) -> tuple[Tensor, Tensor]:
        means = step.of("means")["means"]
        return means["value"], means["known"] > 0


def correlation(
    z: Tensor, y: Tensor, n_classes: int, *, form: Literal["code", "paper"], eps: float, by_class: bool = True
) -> Tensor:
    """How far the dimensions of each class's features are correlated; zero if no class has two samples.

    ‖XᵀX‖ = ‖XXᵀ‖, so the cheaper of the two products is made. The first is made class by class, if ``by_class`` allows.
    """
    member = F.one_hot(y, n_classes).to(z)  # [n, C]
    n = member.sum(0)
    enough = n > 1
    freedom = (n - 1).clamp(min=1)
    divisor = (freedom if form == "code" else n.clamp(min=1))[:, None]
    centred = z - (member.T @ z / n.clamp(min=1)[:, None]).index_select(0, y)
    variance = member.T @ centred.square() / divisor  # [C, d]
    scale = (variance + eps).rsqrt()
    x = centred * scale.index_select(0, y)
    gram = not by_class or len(z) <= max(z.shape[1], GRAM)
    squares = _gram_squares(x, y, member) if gram else _covariance_squares(x, y, n_classes)
    if form == "paper":
        return (squares / freedom.square() * enough).sum() / enough.sum().clamp(min=1)
    d = z.shape[1]
    diagonal = (variance * divisor * scale.square()).square().sum(1)  # of XᵀX: Σ x² by dimension
    return ((squares - diagonal) * enough).sum() / max(d * (d - 1), 1) / (n * enough).sum().clamp(min=1)


def _gram_squares(x: Tensor, y: Tensor, member: Tensor) -> Tensor:
    """‖XXᵀ‖²_F of each class, from one n × n product."""
    same = y[:, None] == y[None, :]
    return member.T @ ((x @ x.T).square() * same).sum(1)


def _covariance_squares(x: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """‖XᵀX‖²_F of each class, from one d × d product each."""
    sizes = torch.bincount(y, minlength=n_classes).tolist()
    return torch.stack([(part.T @ part).square().sum() for part in torch.split(x[y.argsort()], sizes)])


def margin(z: Tensor, y: Tensor, prototypes: Tensor, *, known: Tensor, rivals: Tensor) -> Tensor:
    """How much closer features are to the prototypes of rival classes than to their own; zero without a pair."""
    distances = torch.cdist(z, prototypes)  # [n, C]
    closer = F.relu(distances.gather(1, y[:, None]) - distances)
    member = F.one_hot(y, len(prototypes)).to(z)
    n = member.sum(0)
    pairs = ((n > 0) & known)[:, None] & rivals[None, :]
    pairs = pairs & ~torch.eye(len(n), dtype=torch.bool, device=z.device)
    means = member.T @ closer / n.clamp(min=1)[:, None]  # [own class, rival]
    return (means * pairs).sum() / pairs.sum().clamp(min=1)
