"""Small generated images, for trials without any files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from fedexp.core.ranges import Count, NotNegative, Pixels
from fedexp.core.seeding import numpy_rng
from fedexp.data.augment import pipeline
from fedexp.data.source import DataSpec, Loaded, Samples
from fedexp.system.memory import afford

COARSE = 4  # a class's picture is this many random numbers wide, drawn large
SHIFT = 2  # pixels by which it may move


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Smooth random pictures, one per class, moved a little and covered with noise; of mean 0 and variance 1.

    Args:
        classes: Number of classes.
        samples: Training images per class.
        test: Test images per class.
        channels: Colours of an image.
        size: Height and width.
        noise: Standard deviation of the noise, where the picture's is 1.
        augment: Names of steps for training batches, in order.
        seed: Of the data, not of the run.
    """

    classes: Count
    samples: Count
    test: Count
    channels: Count
    size: Pixels
    noise: NotNegative
    augment: tuple[str, ...]
    seed: int

    def load(self) -> Loaded:
        """Draws the images."""
        count = self.classes * (self.samples + self.test)
        afford(12 * count * self.channels * self.size**2, f"data.classes × samples × size²: {count} images")
        rng = numpy_rng(self.seed, "synthetic")
        coarse = torch.from_numpy(rng.normal(size=(self.classes, self.channels, COARSE, COARSE)).astype(np.float32))
        side = self.size + 2 * SHIFT
        pictures = F.interpolate(coarse, (side, side), mode="bicubic", align_corners=True).numpy()
        pictures = (pictures - pictures.mean()) / pictures.std()
        train, test = (self._samples(pictures, n, rng) for n in (self.samples, self.test))
        augment = pipeline(self.augment, (0.0,) * self.channels, (1.0,) * self.channels)
        return Loaded(DataSpec(tuple(train.x.shape[1:]), self.classes), train, test, augment)

    def _samples(
        self, pictures: np.ndarray[tuple[int, ...], np.dtype[np.float32]], n: int, rng: np.random.Generator
    ) -> Samples:
        labels = np.repeat(np.arange(self.classes), n)
        windows = np.lib.stride_tricks.sliding_window_view(pictures, (self.size, self.size), axis=(2, 3))
        top, left = rng.integers(0, 2 * SHIFT + 1, (2, len(labels)))
        x = windows[labels, :, top, left] + self.noise * rng.normal(
            size=(len(labels), self.channels, self.size, self.size)
        )
        x /= np.sqrt(1 + self.noise**2)
        return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels))
