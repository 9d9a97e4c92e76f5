"""Augmentations of image batches: each image is changed on its own, all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp.data.naming import lookup
from fedexp.data.pixels import check_moments
from fedexp.data.source import Augment

PADDING = 4

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

    The same as zero padding by four, then a random crop of the old size, both before normalisation (the CIFAR pipeline
    of the public FedRepo code of MAP's authors; neither MAP nor FedRS mentions it).
    """
    n, _, height, width = x.shape
    padded = x.new_tensor(black).view(1, -1, 1, 1).repeat(n, 1, height + 2 * PADDING, width + 2 * PADDING)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = x
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [n, channels, top, left, height, width], a view
    top, left = torch.randint(0, 2 * PADDING + 1, (2, n), generator=generator, device=generator.device).to(x.device)
    return windows[torch.arange(n, device=x.device), :, top, left]


def flip(x: Tensor, black: Black, generator: torch.Generator) -> Tensor:  # noqa: ARG001 - a step's signature
    """Mirrors each image left to right with probability one half (source: as ``crop``)."""
    mirrored = torch.rand(len(x), generator=generator, device=generator.device).to(x.device) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)


STEPS: Mapping[str, Callable[[Tensor, Black, torch.Generator], Tensor]] = {"crop": crop, "flip": flip}
