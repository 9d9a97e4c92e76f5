"""MNIST with the writers of its digits, who make it a natural federation."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedexp.data.by_user import numbered
from fedexp.data.formats import read_idx
from fedexp.data.images import Images
from fedexp.data.source import Loaded
from fedexp.errors import DataError

QMNIST = {"train": "qmnist-train-labels-idx2-int", "test": "qmnist-test-labels-idx2-int"}
CLASS, WRITER = 0, 2  # columns


@dataclass(frozen=True, kw_only=True)
class Mnist(Images):
    """MNIST, LeCun et al. 1998, and the writer of each image, Yadav and Bottou, QMNIST, NeurIPS 2019.

    539 people wrote the training images and 297 others the test images: with ``partition=natural`` a client is a
    writer, and its own test set is held out (``partition.test=holdout``).

    Args:
        writers: QMNIST's labels: the folder that holds qmnist-{train,test}-labels-idx2-int[.gz], or an .npz file with
            their rows as arrays ``train`` and ``test``. None: the writers are not asked for.
    """

    writers: str | None

    def load(self) -> Loaded:
        """Reads the images, and the writers if asked for."""
        loaded = super().load()
        if self.writers is None:
            return loaded
        path = Path(self.writers).expanduser()
        rows = _rows(path)
        for samples, part in ((loaded.train, "train"), (loaded.test, "test")):
            _check(rows[part], samples.y, path, part)
        owners, test_owners = numbered(rows["train"][:, WRITER], rows["test"][:, WRITER])
        return replace(loaded, owners=owners, test_owners=test_owners, digest="")  # that of the cache is without owners


def _rows(path: Path) -> dict[str, NDArray[np.int64]]:
    """Returns QMNIST's rows for MNIST's images; QMNIST's own test set is longer and begins with MNIST's."""
    try:
        if path.is_dir():
            files = {part: next(path.glob(f"{name}*")) for part, name in QMNIST.items()}
            stored = {part: read_idx(file) for part, file in files.items()}
        else:
            with np.load(path, allow_pickle=False) as archive:
                stored = {part: archive[part] for part in QMNIST}
    except (OSError, EOFError, KeyError, ValueError, StopIteration, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"data.writers={path} holds neither {' and '.join(QMNIST.values())} (or .gz) nor arrays train and test "
            f"({type(error).__name__}: {error}). The files come with torchvision's QMNIST, or from the repository "
            "facebookresearch/qmnist. Without writers: data.writers=null."
        ) from error
    return {part: rows[: 10_000 if part == "test" else None].astype(np.int64) for part, rows in stored.items()}


def _check(rows: NDArray[np.int64], labels: Tensor, path: Path, part: str) -> None:
    if rows.ndim != 2 or len(rows) != len(labels) or (rows[:, CLASS] != labels.numpy()).any():
        raise DataError(
            f"data.writers={path} does not fit MNIST: its {part} rows {rows.shape} should be ({len(labels)}, 8) and "
            "begin with the labels of MNIST's images, in order."
        )
