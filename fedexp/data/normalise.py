"""From stored pixels to what a network reads, done once for a whole data set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.errors import ConfigError
from fedexp.system.memory import afford

CHUNK = 4096  # images converted at a time: bounds the extra memory to a few dozen megabytes


def normalised(
    pixels: Tensor, *, white: float, size: int | None, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """Returns ``pixels`` [N, C, H, W] as float32: scaled to [0, 1], resized, then (x - mean) / std per channel.

    Args:
        pixels: Images of any number type.
        white: The stored value of a white pixel, 255 for bytes.
        size: Height and width of the result; None keeps the stored ones.
        mean: Per channel, on the scale [0, 1].
        std: Per channel, on the scale [0, 1].

    Deviations: Images are resized as floats, bilinear with anti-aliasing; a pipeline of single 8-bit images would round
        every resized pixel to 1/255.
    """
    count, channels, height, width = pixels.shape
    check_moments(mean, std)
    _check(channels, size, mean)
    target = (height, width) if size is None else (size, size)
    centre, spread = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)
    afford(4 * count * channels * target[0] * target[1], f"data.size={target[0]}: {count} images of that size")
    result = torch.empty(count, channels, *target)
    for start in range(0, count, CHUNK):
        part = pixels[start : start + CHUNK]
        if target != (height, width):
            part = F.interpolate(part.to(torch.float32), target, mode="bilinear", antialias=True)
        result[start : start + CHUNK].copy_(part).div_(white).sub_(centre).div_(spread)
    return result


def check_moments(mean: Sequence[float], std: Sequence[float]) -> None:
    """Refuses a mean and a standard deviation that cannot normalise anything."""
    if len(mean) != len(std):
        raise ConfigError(f"data.mean has {len(mean)} and data.std has {len(std)} values. Give one each per channel.")
    if min(std) <= 0:
        raise ConfigError(f"data.std={list(std)} divides by {min(std)}. Every value has to be above 0.")


def _check(channels: int, size: int | None, mean: Sequence[float]) -> None:
    if len(mean) != channels:
        raise ConfigError(
            f"data.mean and data.std have {len(mean)} value(s), but the images have {channels} channel(s). "
            "Give one value per channel."
        )
    if size is not None and size < 1:
        raise ConfigError(f"data.size={size} leaves no pixel. Give a height in pixels, for example data.size=28.")
