"""Testing: weights × samples -> a Score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import add
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.client.logits import LogitPipeline
from fedexp.client.network import load
from fedexp.core.algorithm import Algorithm
from fedexp.core.state import Tree
from fedexp.core.views import Frame, Step, Views
from fedexp.data.federated import Info
from fedexp.data.source import Samples
from fedexp.models.split import SplitModel

BATCH = 1000  # samples, of small images
BATCH_NUMBERS = BATCH * 3 * 32 * 32  # of larger ones so many that a batch has as many numbers


def batch_size(numbers: int) -> int:
    """Samples in a batch, where one has so many numbers."""
    return max(min(BATCH, BATCH_NUMBERS // max(numbers, 1)), 1)


@dataclass(frozen=True)
class BatchSpans:
    """How a test set falls into stretches of whole batches."""

    samples: int
    batch: int

    def __call__(self, parts: int) -> list[tuple[int, int]]:
        """As many stretches as asked for, as equal as can be; fewer if there are not so many batches."""
        edges = [*range(0, self.samples, self.batch), self.samples]
        parts = min(parts, len(edges) - 1)
        cuts = [(len(edges) - 1) * i // parts for i in range(parts + 1)]
        return [(edges[a], edges[b]) for a, b in pairwise(cuts)]


@dataclass(frozen=True)
class Score:
    """Counts of one test: plain numbers, so that scores can be added and sent."""

    correct: tuple[int, ...]  # per class
    total: tuple[int, ...]
    owned: int  # correct when only the client's own classes are allowed as answers, over samples of these classes
    of_owned: int
    loss: float  # summed cross-entropy

    @property
    def n(self) -> int:
        """Number of samples."""
        return sum(self.total)

    @property
    def accuracy(self) -> float:
        """Correct over all, with all classes as possible answers."""
        return sum(self.correct) / self.n

    @property
    def owned_accuracy(self) -> float | None:
        """Accuracy among the client's own classes; None if the test set has none of them."""
        return self.owned / self.of_owned if self.of_owned else None


class Tester:
    """Runs the network over samples in large batches, without gradient."""

    def __init__(self, net: SplitModel, algorithm: Algorithm) -> None:
        self._net, self._algorithm = net, algorithm
        self._answer = LogitPipeline(algorithm, "eval", net.classifier)

    def score(
        self, weights: Tree, samples: Samples, views: Views, info: Info | None, round_: int | None = None
    ) -> Score:
        """Tests weights on samples, for a client in a round or (``info`` and ``round_`` None) for the server."""
        return pooled(self.scores(weights, samples, views, info, round_))

    def scores(
        self, weights: Tree, samples: Samples, views: Views, info: Info | None, round_: int | None = None
    ) -> Iterator[Score]:
        """The same batch by batch."""
        classes = self._algorithm.facts.n_classes
        owned = torch.ones(classes, dtype=torch.bool, device=samples.y.device) if info is None else info.owned
        for z, y in self._predict(weights, samples, views, info, round_):
            best = z.argmax(1)
            among = best if info is None else z.masked_fill(~owned, -torch.inf).argmax(1)
            total = torch.bincount(y, minlength=classes)
            yield Score(
                correct=tuple(torch.bincount(y[best == y], minlength=classes).tolist()),
                total=tuple(total.tolist()),
                owned=int((among == y).sum()),
                of_owned=int(total[owned].sum()),
                loss=float(F.cross_entropy(z, y, reduction="sum")),
            )

    def _predict(
        self, weights: Tree, samples: Samples, views: Views, info: Info | None, round_: int | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        load(self._net, weights)
        self._net.eval()
        frame = Frame(
            views=views, info=info, facts=self._algorithm.facts, round=round_, received=weights, weights=weights,
            phase="eval", rng_path=(), net=self._net, frozen=_no_other_weights,
        )  # fmt: skip
        frame.classify = self._answer.of_network
        for x, y, h in features(self._net, samples):
            with torch.no_grad():
                z = self._answer(Step(frame, x, y, h, h, h))
            yield z, y


def features(net: SplitModel, samples: Samples) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Samples, labels and features in large batches, without gradient. The network is in evaluation mode."""
    size = batch_size(samples.x[0].numel())
    for x, y in zip(torch.split(samples.x, size), torch.split(samples.y, size), strict=True):
        with torch.no_grad():
            h = net.features(x)
        yield x, y, h


def _no_other_weights(_: Tree) -> Any:
    raise RuntimeError("a test runs one set of weights")


def pooled(scores: Iterable[Score]) -> Score:
    """The score of all samples together. Losses are added in the order given."""
    first, *others = scores
    for score in others:
        first = Score(
            tuple(map(add, first.correct, score.correct)), tuple(map(add, first.total, score.total)),
            first.owned + score.owned, first.of_owned + score.of_owned, first.loss + score.loss,
        )  # fmt: skip
    return first
