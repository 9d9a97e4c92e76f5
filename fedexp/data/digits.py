"""The handwritten digits that come with scikit-learn: a real data set that needs no download."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedexp.core.ranges import Pixels
from fedexp.data.normalise import normalised
from fedexp.data.source import DataSpec, Loaded, Samples
from fedexp.errors import DataError

SIDE, CLASSES = 8, 10
WHITE = 16.0  # the pixels are counts from 0 to 16
MEAN, STD = (0.305,), (0.376,)  # of the training images, on the scale [0, 1]
TEST_SHARE = 0.2
SPLIT_SEED = 0  # a constant, not the run's seed: the test set belongs to the data


@dataclass(frozen=True, kw_only=True)
class Digits:
    """1,797 grey 8×8 images of the digits 0 to 9 by 13 writers.

    The test part of Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998. It has no official split;
    here a fifth of each class, drawn once with a constant seed, is the test set: 1,438 training and 359 test images.

    Args:
        size: Height and width after bilinear resizing; 8 is native, 28 and 32 let the networks of the papers in.
    """

    size: Pixels = 8

    def load(self) -> Loaded:
        """Reads the images from scikit-learn's own file, without importing scikit-learn, which takes longer."""
        table = _table()
        pixels = torch.from_numpy(table[:, :-1].reshape(-1, 1, SIDE, SIDE))
        x = normalised(pixels, white=WHITE, size=self.size, mean=MEAN, std=STD)
        y = torch.from_numpy(table[:, -1].astype(np.int64))
        train, test = (torch.from_numpy(index) for index in _stratified(y.numpy()))
        samples = Samples(x, y)
        spec = DataSpec(shape=tuple(x.shape[1:]), n_classes=CLASSES)
        return Loaded(spec, samples.select(train), samples.select(test), augment=None)


def _table() -> NDArray[np.float64]:
    """One row per image: its pixels, then its label."""
    package = find_spec("sklearn")
    path = Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if package else None
    if path is None or not path.exists():
        raise DataError(f"data=digits: the file that comes with scikit-learn is not there ({path}). {_REMEDY}")
    return np.loadtxt(gzip.decompress(path.read_bytes()).decode().splitlines(), delimiter=",")


_REMEDY = "pip install --force-reinstall scikit-learn brings it back."


def _stratified(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns training and test indices, both in the stored order."""
    rng = np.random.default_rng(SPLIT_SEED)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        own = rng.permutation(np.flatnonzero(labels == label))
        is_test[own[: round(TEST_SHARE * len(own))]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
