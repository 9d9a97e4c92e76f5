"""Testing: weights × samples -> a Score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from operator import add
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.client.logits import LogitPipeline
from fedexp.client.network import load
from fedexp.core.algorithm import Algorithm
from fedexp.core.devices import send
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
        if not self.samples:
            return []
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
    predicted_owned: int  # answers that are one of the client's own classes, over all samples

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

    def accuracy_on(self, classes: Sequence[bool]) -> float | None:
        """Accuracy on samples of some classes, with all classes as possible answers; None if there are no samples."""
        total = sum(compress(self.total, classes))
        return sum(compress(self.correct, classes)) / total if total else None


class Tester:
    """Runs the network over samples in large batches, without gradient."""

    def __init__(self, net: SplitModel, algorithm: Algorithm) -> None:
        self.net, self.algorithm = net, algorithm
        self.answer = LogitPipeline(algorithm, "eval", net.classifier)

    def score(
        self, weights: Tree, samples: Samples, views: Views, info: Info | None, round_: int | None = None
    ) -> Score:
        """Tests weights on samples, for a client in a round or (``info`` and ``round_`` None) for the server."""
        return pooled(self.scores(weights, samples, views, info, round_))

    def scores(
        self, weights: Tree, samples: Samples, views: Views, info: Info | None, round_: int | None = None
    ) -> list[Score]:
        """The same batch by batch. Counts and losses of all batches are read at the end, so that no batch waits."""
        counts: list[Tensor] = []
        losses: list[Tensor] = []
        for z, y in self._predict(weights, samples, views, info, round_):
            counts.append(_counts(z, y, None if info is None else info.owned))
            losses.append(F.cross_entropy(z, y, reduction="sum"))
        rows: list[list[int]] = torch.stack(counts).tolist()
        return [score_of(row, loss) for row, loss in zip(rows, torch.stack(losses).tolist(), strict=True)]

    def _predict(
        self, weights: Tree, samples: Samples, views: Views, info: Info | None, round_: int | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        load(self.net, weights)
        self.net.eval()
        frame = self.frame(weights, views, info, round_)
        for x, y, h in features(self.net, samples):
            with torch.no_grad():
                z = self.answer(Step(frame, x, y, h, h, h))
            yield z, y

    def frame(self, weights: Tree, views: Views, info: Info | None, round_: int | None) -> Frame:
        """A test as components see it."""
        frame = Frame(
            views=views, info=info, facts=self.algorithm.facts, round=round_, received=weights, weights=weights,
            phase="eval", rng_path=(), net=self.net, frozen=_no_other_weights,
        )  # fmt: skip
        frame.classify = self.answer.of_network
        return frame


def _counts(z: Tensor, y: Tensor, owned: Tensor | None) -> Tensor:
    """The whole numbers of a score in one tensor: of each class the correct and all samples, then the other three."""
    best = z.argmax(1)
    correct = best == y
    none = torch.zeros(z.shape[1], dtype=torch.int64, device=z.device)
    total = none.scatter_add(0, y, torch.ones_like(y))
    if owned is None:
        others = [correct.sum(), total.sum(), total.sum()]
    else:
        among = z.masked_fill(~owned, -torch.inf).argmax(1)
        others = [(among == y).sum(), (total * owned).sum(), owned.take(best).sum()]
    return torch.cat([none.scatter_add(0, y, correct.long()), total, torch.stack(others)])


def score_of(counts: Sequence[int], loss: float) -> Score:
    """The score that was put into one tensor: correct by class, all by class, owned, of_owned, predicted_owned."""
    *by_class, owned, of_owned, predicted_owned = counts
    classes = len(by_class) // 2
    return Score(tuple(by_class[:classes]), tuple(by_class[classes:]), owned, of_owned, loss, predicted_owned)


def features(net: SplitModel, samples: Samples) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Samples, labels and features in large batches, without gradient. The network is in evaluation mode."""
    size = batch_size(samples.x[0].numel())
    device = next((p.device for p in net.parameters()), samples.y.device)
    for rows in zip(torch.split(samples.x, size), torch.split(samples.y, size), strict=True):
        x, y = (send(tensor, device) for tensor in rows)
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
            first.predicted_owned + score.predicted_owned,
        )  # fmt: skip
    return first
