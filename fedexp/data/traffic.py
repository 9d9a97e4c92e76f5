"""Byte streams of network traffic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedexp.data.cache import cached
from fedexp.data.catalog import CATALOG
from fedexp.data.fetch import obtain
from fedexp.data.source import DataSpec, Loaded, Samples
from fedexp.errors import DataError

TEST_SHARE = 0.2
SPLIT_SEED = 0  # a constant, not the run's seed: the test set belongs to the data
STREAM = 784

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class UstcTfc2016:
    """The first 784 bytes of network sessions of 20 applications, half of them malware; a public stand-in for SA.

    Wang et al., Malware traffic classification using convolutional neural network, ICOIN 2017. Bytes are scaled to
    [0, 1]. A fifth of the different byte strings of each class, drawn once, is the test set: copies of one string
    are all in training or all in testing.

    Args:
        root: A folder with ustc_tfc2016_sessions.npz: arrays x (uint8, N × 784) and y (N).
        cache: A folder for converted data sets; None converts at every start.
    """

    root: str
    cache: str | None

    def load(self) -> Loaded:
        """Reads the sessions."""
        files = obtain("ustc_tfc2016", Path(self.root).expanduser(), download=False)
        return cached(partial(_sessions, files[0]), folder=self.cache, name="ustc_tfc2016", files=files, settings={})


def _sessions(path: Path) -> Loaded:
    n_classes = CATALOG["ustc_tfc2016"].classes
    try:
        with np.load(path, allow_pickle=False) as archive:
            x, y = archive["x"], archive["y"].astype(np.int64)
    except Exception as error:  # a damaged archive can break numpy's reader in any way
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}. {_expected()}") from error
    if x.dtype != np.uint8 or x.shape != (len(y), STREAM) or not 0 <= y.min() <= y.max() < n_classes:
        raise DataError(f"{path} holds x {x.dtype} {x.shape} and y {y.shape} up to {y.max()}. {_expected()}")
    is_test = _held_out(x, y)
    train, test = (byte_samples(x[rows], y[rows]) for rows in (~is_test, is_test))
    return Loaded(DataSpec((1, STREAM), n_classes), train, test, None)


def _expected() -> str:
    return f"Expected are x (uint8, N × {STREAM}) and y (N, 0 to 19): {CATALOG['ustc_tfc2016'].how}."


def _held_out(x: Bytes, y: Labels) -> NDArray[np.bool_]:
    """Marks the test samples: whole groups of equal byte strings, a share of each class."""
    _, first, group = np.unique(x, axis=0, return_index=True, return_inverse=True)
    label = y[first]  # of a string with two labels, the first: it only decides where the string goes
    rng = np.random.default_rng(SPLIT_SEED)
    chosen = np.zeros(len(first), dtype=bool)
    for c in np.unique(label):
        own = rng.permutation(np.flatnonzero(label == c))
        chosen[own[: round(TEST_SHARE * len(own))]] = True
    return chosen[group.ravel()]


def byte_samples(x: Bytes, y: Labels) -> Samples:
    """Streams [N, L] as a network reads them: one channel, scaled to [0, 1]."""
    scaled = torch.from_numpy(x).unsqueeze(1).to(torch.float32).div_(255)
    return Samples(scaled, torch.from_numpy(y))
