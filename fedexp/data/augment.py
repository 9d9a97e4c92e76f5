"""Augmentations of image batches: each image is changed on its own, all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.data.naming import lookup
from fedexp.data.normalise import check_moments
from fedexp.data.source import Augment

PADDING = 4
DEGREES = 15.0

Black = tuple[float, ...]
"""The normalised value of a black pixel, per channel: (0 - mean) / std."""


@dataclass(frozen=True)
class Pipeline:
    """Applies named steps in order; a plain value, so that it travels to other processes."""

    names: tuple[str, ...]
    black: Black

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the augmented batch; ``x`` itself stays as it was."""
        for name in self.names:
            x = STEPS[name](x, self.black, generator)
        return x


def pipeline(names: Sequence[str], mean: Sequence[float], std: Sequence[float]) -> Augment | None:
    """Returns the steps ``names`` as one augmentation for images normalised with ``mean`` and ``std``.

    The result is None when there is nothing to do, which lets the caller skip the copy.
    """
    for name in names:
        lookup(STEPS, name, key="data.augment")
    check_moments(mean, std)
    black = tuple(-m / s for m, s in zip(mean, std, strict=True))
    return Pipeline(tuple(names), black) if names else None


def crop(x: Tensor, black: Black, generator: torch.Generator) -> Tensor:
    """Shifts each image by up to four pixels either way and fills the border with black.

    The same as zero padding by four, then a random crop of the old size, both before normalisation (CIFAR in the public
    FedRepo code of MAP's authors, which neither MAP nor FedRS mentions; CIFAR-100 in that of FedMR and FedGELA).
    """
    height, width = x.shape[2:]
    padded = x.new_tensor(black).view(1, -1, 1, 1).repeat(len(x), 1, height + 2 * PADDING, width + 2 * PADDING)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = x
    return _cut(padded, x, generator)


def reflect_crop(x: Tensor, black: Black, generator: torch.Generator) -> Tensor:  # noqa: ARG001 - a step's signature
    """As ``crop``, but the border is the image mirrored at its edge (CIFAR-10 in the public code of FedMR)."""
    return _cut(F.pad(x, (PADDING,) * 4, mode="reflect"), x, generator)


def flip(x: Tensor, black: Black, generator: torch.Generator) -> Tensor:  # noqa: ARG001 - a step's signature
    """Mirrors each image left to right with probability one half (CIFAR in all public code that augments)."""
    mirrored = torch.rand(len(x), generator=generator, device=generator.device).to(x.device) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)


def rotate(x: Tensor, black: Black, generator: torch.Generator) -> Tensor:
    """Turns each image by up to 15° either way; corners become black (CIFAR-100 in the code of FedMR and FedGELA).

    As torchvision's RandomRotation(15): about the centre, nearest pixel.
    """
    drawn = torch.rand(len(x), generator=generator, device=generator.device).to(x.device)
    return turned(x, black, (2 * drawn - 1) * DEGREES)


def turned(x: Tensor, black: Black, degrees: Tensor) -> Tensor:
    """Turns each image counter-clockwise by its angle."""
    height, width = x.shape[2:]
    sine, cosine = torch.sin(degrees.deg2rad()), torch.cos(degrees.deg2rad())
    none = torch.zeros_like(sine)
    # From a pixel of the result to the one it comes from; coordinates go from -1 to 1 in both directions.
    rows = [[cosine, -sine * height / width, none], [sine * width / height, cosine, none]]
    inverse = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1).to(x.dtype)
    grid = F.affine_grid(inverse, list(x.shape), align_corners=False)
    dark = x.new_tensor(black).view(1, -1, 1, 1)
    return F.grid_sample(x - dark, grid, mode="nearest", padding_mode="zeros", align_corners=False) + dark


def _cut(padded: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
    """Cuts a window of each image's old size out of the padded one."""
    n, _, height, width = x.shape
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [n, channels, top, left, height, width], a view
    top, left = torch.randint(0, 2 * PADDING + 1, (2, n), generator=generator, device=generator.device).to(x.device)
    return windows[torch.arange(n, device=x.device), :, top, left]


STEPS: Mapping[str, Callable[[Tensor, Black, torch.Generator], Tensor]] = {
    "crop": crop,
    "reflect_crop": reflect_crop,
    "flip": flip,
    "rotate": rotate,
}
