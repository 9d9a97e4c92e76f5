"""Image data sets in files, as tensors in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedexp.core.ranges import Pixels, Positive
from fedexp.data.augment import pipeline
from fedexp.data.cache import cached
from fedexp.data.catalog import CATALOG
from fedexp.data.fetch import obtain
from fedexp.data.formats import Bytes, Labels, read_cifar, read_folders, read_idx, read_svhn
from fedexp.data.naming import lookup
from fedexp.data.normalise import normalised
from fedexp.data.source import DataSpec, Loaded, Samples
from fedexp.data.verify import remedy, verify
from fedexp.errors import DataError

Files = Sequence[Path]
Part = tuple[Bytes, Labels]  # [N, C, H, W], [N]


@dataclass(frozen=True, kw_only=True)
class Images:
    """A data set of images with its official training and test set; ``python -m fedexp.data list`` says which.

    Args:
        dataset: Its name in the catalogue.
        root: A folder that holds it as torchvision does (CINIC-10: as its archive does).
        cache: A folder for converted data sets; None converts at every start.
        download: Whether what is not there may be downloaded.
        verify: Whether the files have to be the published ones.
        size: Height and width after resizing; None keeps the stored ones.
        mean: Per channel, on the scale [0, 1].
        std: Per channel, on the scale [0, 1].
        augment: Names of steps for training batches, in order.
    """

    dataset: str
    root: str
    cache: str | None
    download: bool
    verify: bool
    size: Pixels | None
    mean: Sequence[float]
    std: Sequence[Positive]
    augment: Sequence[str]

    def load(self) -> Loaded:
        """Reads both sets; downloads nothing if the files are there."""
        lookup(READERS, self.dataset, key="data.dataset")
        augment = pipeline(self.augment, self.mean, self.std)
        files = obtain(self.dataset, Path(self.root).expanduser(), download=self.download)
        settings = {"size": self.size, "mean": self.mean, "std": self.std, "verify": self.verify}
        convert = partial(self._convert, files)
        loaded = cached(convert, folder=self.cache, name=self.dataset, files=files, settings=settings)
        return replace(loaded, augment=augment)

    def _convert(self, files: Files) -> Loaded:
        if self.verify:
            verify(self.dataset, files)
        try:
            train, test = map(self._samples, READERS[self.dataset](files), ("training", "test"))
        except DataError as error:
            raise DataError(f"{error} {remedy(self.dataset)}") from error
        return Loaded(DataSpec(tuple(train.x.shape[1:]), CATALOG[self.dataset].classes), train, test, None)

    def _samples(self, part: Part, what: str) -> Samples:
        pixels, labels = part
        entry = CATALOG[self.dataset]
        expected = entry.samples[what == "test"]
        if len(pixels) != len(labels) or not 0 <= labels.min() <= labels.max() < entry.classes:
            raise DataError(
                f"{self.dataset} in {self.root} has {len(pixels)} {what} images and {len(labels)} labels from "
                f"{labels.min()} to {labels.max()}; {entry.classes} classes were expected."
            )
        if self.verify and len(labels) != expected:
            raise DataError(f"{self.dataset} in {self.root} has {len(labels)} {what} images instead of {expected}.")
        x = normalised(torch.from_numpy(pixels), white=255.0, size=self.size, mean=self.mean, std=self.std)
        return Samples(x, torch.from_numpy(labels))


# ---------------------------------------------------------------- from files to training and test part
def _mnist(files: Files) -> tuple[Part, Part]:
    arrays = [read_idx(path) for path in files]
    images = [np.array(a)[:, None] for a in arrays[::2]]
    labels = [a.astype(np.int64) for a in arrays[1::2]]
    return (images[0], labels[0]), (images[1], labels[1])


def _emnist(files: Files) -> tuple[Part, Part]:
    """EMNIST keeps its images transposed."""
    (train, train_y), (test, test_y) = _mnist(files)
    return (train.swapaxes(2, 3).copy(), train_y), (test.swapaxes(2, 3).copy(), test_y)


def _cifar(files: Files) -> tuple[Part, Part]:
    *train, test = [read_cifar(path) for path in files]
    return (np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])), test


def _svhn(files: Files) -> tuple[Part, Part]:
    train, test = files
    return read_svhn(train), read_svhn(test)


def _cinic10(files: Files) -> tuple[Part, Part]:
    folders = [path for path in files if path.is_dir()]
    train, test = ([f for f in folders if f.parent.name == part] for part in ("train", "test"))
    return read_folders(train), read_folders(test)


READERS: Mapping[str, Callable[[Files], tuple[Part, Part]]] = {
    "mnist": _mnist,
    "fmnist": _mnist,
    "emnist": _emnist,
    "cifar10": _cifar,
    "cifar100": _cifar,
    "svhn": _svhn,
    "cinic10": _cinic10,
}
