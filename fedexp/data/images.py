"""Image data sets in torchvision's format, as tensors in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedexp.data.augment import pipeline
from fedexp.data.fetch import obtain
from fedexp.data.layout import LAYOUTS, Layout
from fedexp.data.naming import lookup
from fedexp.data.pixels import normalised
from fedexp.data.source import DataSpec, Loaded, Samples
from fedexp.errors import DataError


@dataclass(frozen=True, kw_only=True)
class TorchvisionImages:
    """CIFAR-10, MNIST or Fashion-MNIST with its official training and test set.

    Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; LeCun et al., Proc. IEEE 1998; Xiao et al.,
    arXiv 1708.07747.

    Args:
        dataset: torchvision's class name.
        root: A folder in torchvision's layout.
        download: Whether torchvision may fetch what is not there.
        size: Height and width after resizing; None keeps the stored ones.
        mean: Per channel, on the scale [0, 1].
        std: Per channel, on the scale [0, 1].
        augment: Names of steps for training batches, in order.
    """

    dataset: str
    root: str
    download: bool
    size: int | None
    mean: Sequence[float]
    std: Sequence[float]
    augment: Sequence[str]

    def load(self) -> Loaded:
        """Reads both sets; downloads nothing if the files are there."""
        import torchvision

        describe = lookup(LAYOUTS, self.dataset, key="data.dataset")
        augment = pipeline(self.augment, self.mean, self.std)
        kind = getattr(torchvision.datasets, self.dataset)
        root = Path(self.root).expanduser()
        layout = describe(kind, root)
        obtain(self.dataset, root, layout, download=partial(kind, root, download=True) if self.download else None)
        stored = _read(kind, root, layout, train=True)
        train, test = self._samples(stored), self._samples(_read(kind, root, layout, train=False))
        return Loaded(DataSpec(tuple(train.x.shape[1:]), len(stored.classes)), train, test, augment)

    def _samples(self, stored: Any) -> Samples:
        """Returns what torchvision read, [N, H, W] or [N, H, W, C], as samples."""
        pixels, y = torch.as_tensor(stored.data), torch.as_tensor(stored.targets, dtype=torch.int64)
        if len(pixels) != len(y) or not 0 <= int(y.min()) <= int(y.max()) < len(stored.classes):
            raise DataError(
                f"{self.dataset} in {self.root} has {len(pixels)} images and {len(y)} labels from {int(y.min())} to "
                f"{int(y.max())}; {len(stored.classes)} classes were expected. Fetch its files again."
            )
        pixels = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
        return Samples(normalised(pixels, white=255.0, size=self.size, mean=self.mean, std=self.std), y)


def _read(kind: Any, root: Path, layout: Layout, *, train: bool) -> Any:
    """Lets torchvision read one of the two sets; only if it cannot, looks for the file that is to blame."""
    try:
        return kind(root, train=train)
    except Exception as error:  # a damaged file can break a reader in any way
        faults = "; ".join(layout.faults()) or f"{type(error).__name__}: {error}"
        raise DataError(
            f"{kind.__name__} in {root} cannot be read: {faults}. "
            "Delete what is named here and fetch it again (data.download=true), or name another folder (data.root)."
        ) from error
