"""Testing: weights × samples -> a Score, and scores -> metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.algorithm import Algorithm
from fedexp.answer import Answer
from fedexp.contexts import Frame, Step, Views
from fedexp.data.federated import Info
from fedexp.data.source import Samples
from fedexp.models.split import SplitModel
from fedexp.network import load
from fedexp.state import Tree

BATCH = 1000  # samples, of small images
BATCH_NUMBERS = BATCH * 3 * 32 * 32  # of larger ones so many that a batch has as many numbers


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
        self._answer = Answer(algorithm, "eval", net.classifier)

    def score(self, weights: Tree, samples: Samples, views: Views, info: Info | None) -> Score:
        """Tests weights on samples, for a client or (``info`` None) for the server."""
        classes = self._algorithm.facts.n_classes
        y = samples.y
        correct, total = y.new_zeros(classes), torch.bincount(y, minlength=classes)
        owned = torch.ones(classes, dtype=torch.bool, device=y.device) if info is None else info.owned
        hits, loss = y.new_zeros(()), torch.zeros((), device=y.device, dtype=torch.float64)
        for z, target in self._predict(weights, samples, views, info):
            correct += torch.bincount(target[z.argmax(1) == target], minlength=classes)
            hits += (z.masked_fill(~owned, -torch.inf).argmax(1) == target).sum()
            loss += F.cross_entropy(z, target, reduction="sum").double()
        return Score(tuple(correct.tolist()), tuple(total.tolist()), int(hits), int(total[owned].sum()), float(loss))

    def embed(self, weights: Tree, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and labels under given weights, in evaluation mode."""
        load(self._net, weights)
        self._net.eval()
        with torch.no_grad():
            size = max(min(BATCH, BATCH_NUMBERS // max(samples.x[:1].numel(), 1)), 1)
            for x, y in zip(torch.split(samples.x, size), torch.split(samples.y, size), strict=True):
                yield self._net.features(x), y

    def _predict(
        self, weights: Tree, samples: Samples, views: Views, info: Info | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        frame = Frame(views, info, self._algorithm.facts, weights, weights, "eval", (), _no_other_weights)
        for h, y in self.embed(weights, samples):
            yield self._answer(Step(frame, h, y, h, h, h)), y


def _no_other_weights(_: Tree) -> Any:
    raise RuntimeError("a test runs one set of weights")


# ---------------------------------------------------------------- metrics
def aggregation(score: Score) -> dict[str, Any]:
    """Metrics of the server's model on the global test set."""
    return {"accuracy": score.accuracy, "loss": score.loss / score.n, "per_class": per_class([score])}


def personalization(after: Mapping[int, Score], before: Mapping[int, Score]) -> dict[str, Any]:
    """Metrics of personal models on their owners' held-out samples, averaged over clients."""
    accuracy = np.array([s.accuracy for s in after.values()])
    owned = [a for s in after.values() if (a := s.owned_accuracy) is not None]
    return {
        "accuracy": float(accuracy.mean()),
        "before": float(np.mean([s.accuracy for s in before.values()])),
        **({"owned": float(np.mean(owned))} if owned else {}),
        "std": float(accuracy.std()),
        "worst_decile": worst_decile(accuracy),
        "per_class": per_class(list(after.values())),
        "clients": accuracy.tolist(),
    }


def worst_decile(accuracy: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """Mean accuracy of the worst tenth of the clients, at least one."""
    return float(np.sort(np.asarray(accuracy))[: max(len(accuracy) // 10, 1)].mean())


def per_class(scores: Sequence[Score]) -> list[float | None]:
    """Accuracy per class over all scores pooled; None for a class without samples."""
    correct = np.sum([s.correct for s in scores], axis=0)
    total = np.sum([s.total for s in scores], axis=0)
    return [float(c / t) if t else None for c, t in zip(correct, total, strict=True)]
