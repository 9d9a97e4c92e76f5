"""What a data set is to the rest: two sets of samples that fit in memory, their shape, and an augmentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Takes a batch of normalised images and returns the batch changed image by image, on the same device."""


@dataclass(frozen=True)
class DataSpec:
    """The facts about a data set that a network is built from."""

    shape: tuple[int, ...]
    n_classes: int


@dataclass(frozen=True)
class Samples:
    """Inputs and labels, resident in memory or mapped from a file into it."""

    x: Tensor  # float32: images [N, C, H, W], bytes [N, 1, L], points [N, D]; int64: characters [N, L]
    y: Tensor  # int64, [N]

    def __len__(self) -> int:
        return len(self.y)

    def select(self, index: Tensor) -> Samples:
        """Returns the samples at ``index``, copied."""
        index = index.to(self.y.device)
        return Samples(self.x.index_select(0, index), self.y.index_select(0, index))


@dataclass(frozen=True)
class Loaded:
    """A data set, read and ready.

    Attributes:
        spec: What a network is built from.
        train: The training samples.
        test: The test samples.
        augment: Changes training batches; None if nothing does.
        owners: Who made each training sample (a writer, a role, a centre) where that is known; int64 [N_train], from 0
            on, every number in use.
        test_owners: Who made each test sample, in the same numbers; those who made no training sample come after them.
    """

    spec: DataSpec
    train: Samples
    test: Samples
    augment: Augment | None
    owners: Tensor | None = None
    test_owners: Tensor | None = None


class Source(Protocol):
    """Anything that can load a data set; a yaml of ``conf/data`` names one by its ``_target_``."""

    def load(self) -> Loaded:
        """Reads the whole data set, or raises ``DataError``."""
        ...
