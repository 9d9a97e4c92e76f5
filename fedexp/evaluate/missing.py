"""How a client's model does on classes that the client does not own.

Measured on a sample of the global test set, which is the same for all clients and rounds of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from fedexp.core.algorithm import Algorithm
from fedexp.core.seeding import numpy_rng
from fedexp.core.state import Tree
from fedexp.data.source import Samples
from fedexp.evaluate.tester import Score

MEASURES = ("accuracy", "owned", "owned_restricted", "absent", "rare", "forgotten", "predicted_owned")
RARE = 0.5  # of the mean over classes


def measures(before: Score | None, after: Score, owned: Sequence[bool], rare: Sequence[bool]) -> dict[str, float]:
    """The measures of one client; what has no sample to be measured on is absent.

    Args:
        before: The downloaded model; None if it was not tested.
        after: The personal model, after local training.
        owned: By class, whether the client has training samples of it.
        rare: By class, whether few clients have.
    """
    absent = [not own for own in owned]
    known, left = before.accuracy_on(absent) if before else None, after.accuracy_on(absent)
    found = {
        "accuracy": after.accuracy,
        "owned": after.accuracy_on(owned),
        "owned_restricted": after.owned_accuracy,
        "absent": left,
        "rare": after.accuracy_on(rare),
        "forgotten": None if known is None or left is None else known - left,
        "predicted_owned": after.predicted_owned / after.n,
    }
    return {name: value for name, value in found.items() if value is not None}


def rare_classes(counts: Tensor) -> list[bool]:
    """The classes with at most half of the mean class's owners, or at most half of its training samples.

    Args:
        counts: Training samples by client and class.
    """
    tables = ((counts > 0).double().sum(0), counts.double().sum(0))
    few = [table <= RARE * table.mean() for table in tables]
    rare: list[bool] = (few[0] | few[1]).tolist()
    return rare


def sample(test: Samples, count: int, seed: int) -> Samples:
    """So many samples of a test set, of which each class has its share, give or take one.

    All samples are mixed by the seed and then ordered by class; those at equal distances are taken.
    """
    there = len(test)
    if count >= there:
        return test
    mixed = numpy_rng(seed, "missing classes").permutation(there)
    by_class = mixed[np.argsort(test.y.cpu().numpy()[mixed], kind="stable")]
    taken = by_class[(2 * np.arange(count) + 1) * there // (2 * count)]
    return test.select(torch.from_numpy(np.sort(taken)))


class DownloadScores:
    """The scores of downloaded models. Where all clients of a round start from the same, it is tested once.

    A model is the same if the round and the tensors are: a worker's memory for them is used again in other rounds.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        own_weights = algorithm.using("start") or algorithm.kept_modules
        own_answers = [c for seam in ("head", "logits") for c in algorithm.active("eval", seam)]
        self._alike = not (own_weights or own_answers)
        self._last: tuple[tuple[int, ...], list[ref[Tensor]], Score] | None = None

    def score(self, key: tuple[int, ...], model: Tree, test: Callable[[], Score]) -> Score:
        """The score of a model as it was sent; ``key`` has the round, and what else it depends on."""
        if not self._alike:
            return test()
        if self._last is None or self._last[0] != key or not _same(self._last[1], model):
            self._last = key, [ref(tensor) for tensor in model.values()], test()
        return self._last[2]


def _same(known: Sequence[ref[Tensor]], model: Tree) -> bool:
    return len(known) == len(model) and all(a() is b for a, b in zip(known, model.values(), strict=True))
