"""What a data set is to the rest: two sets of samples that fit in memory, their shape, and an augmentation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedexp.core.devices import send
from fedexp.core.state import fingerprints
from fedexp.errors import DataError

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
        index = send(index, self.y.device)
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
        digest: Identifies the tensors as they were read; empty until ``identified``.
    """

    spec: DataSpec
    train: Samples
    test: Samples
    augment: Augment | None
    owners: Tensor | None = None
    test_owners: Tensor | None = None
    digest: str = ""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        named = {
            "train_x": self.train.x, "train_y": self.train.y, "test_x": self.test.x, "test_y": self.test.y,
            "owners": self.owners, "test_owners": self.test_owners,
        }  # fmt: skip
        return {name: tensor for name, tensor in named.items() if tensor is not None}


class Source(Protocol):
    """Anything that can load a data set; a yaml of ``conf/data`` names one by its ``_target_``."""

    def load(self) -> Loaded:
        """Reads the whole data set, or raises ``DataError``."""
        ...


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The type, shape and crc32 of each tensor. They find damage, not manipulation, and take little time."""
    crcs = fingerprints(tensors)
    return {name: f"{t.dtype} {list(t.shape)} {crcs[name]}" for name, t in tensors.items()}


def digest(sums: Mapping[str, str]) -> str:
    """One digest of many checksums."""
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def identified(loaded: Loaded) -> Loaded:
    """The same with its digest.

    Raises:
        DataError: If it is not what the rest of a run relies on.
    """
    if not isinstance(loaded, Loaded):
        raise DataError(f"data: load() must return a fedexp.data.source.Loaded, not {type(loaded).__name__}.")
    if problem := next(_problems(loaded), None):
        raise DataError(f"data: {problem}")
    return loaded if loaded.digest else replace(loaded, digest=digest(checksums(loaded.tensors)))


def _problems(loaded: Loaded) -> Iterator[str]:
    spec = loaded.spec
    for name, samples, owners in (
        ("train", loaded.train, loaded.owners),
        ("test", loaded.test, loaded.test_owners),
    ):
        x, y = samples.x, samples.y
        if x.dtype not in (torch.float32, torch.int64) or y.dtype != torch.int64:
            yield f"{name}.x must be float32 (or int64), and {name}.y int64, not {x.dtype} and {y.dtype}."
        elif tuple(x.shape[1:]) != tuple(spec.shape) or y.shape != x.shape[:1]:
            yield (
                f"{name}.x must have the shape [samples, *{spec.shape}] that DataSpec says, and {name}.y one label for "
                f"each, not {list(x.shape)} and {list(y.shape)}."
            )
        elif len(y) and not 0 <= int(y.min()) <= int(y.max()) < spec.n_classes:
            yield f"{name}.y must have labels from 0 to {spec.n_classes - 1}, not from {y.min()} to {y.max()}."
        elif owners is not None and (owners.dtype != torch.int64 or owners.shape != y.shape):
            yield f"the owners of {name} must be int64, one for each sample, not {owners.dtype} {list(owners.shape)}."
    if not len(loaded.train):
        yield "there is no training sample."
