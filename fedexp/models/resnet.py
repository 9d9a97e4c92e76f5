from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, conv1x1, conv3x3

from fedexp.core.ranges import Count, Depth
from fedexp.models.init import kaiming_convs
from fedexp.models.split import SplitModel, image_channels, same_length

Shortcut = Literal["conv", "pad"]


class PaddedShortcut(nn.Module):
    """A shortcut without parameters: every second pixel, and zeros for the new channels (He et al., option A)."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra = extra
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Returns the smaller, deeper image."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


def resnet(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    blocks: Sequence[Depth] = (3, 3, 3),
    widths: Sequence[Count] = (16, 32, 64),
    shortcut: Literal["conv", "pad"] = "conv",
    hidden: Count | None = None,
    bias: bool = False,
) -> SplitModel:
    """The residual networks for small images: He et al., CVPR 2016.

    A 3×3 convolution without pooling, stages of basic blocks of which all but the first halve the image, global average
    pooling. On 3×32×32 the features have 271,824 parameters (ResNet20) and 855,120 (ResNet56; both MAP, section 5.2.1),
    2,752 fewer with padded shortcuts, and 11,168,832 (ResNet18). FedMR, TMLR 2023, puts a classifier with bias on that:
    11,183,582 numbers with the buffers, as its table 3 counts. FedGELA, NeurIPS 2023, adds a layer of 512: 11,431,488.

    Deviations: FedGELA's public code has two such layers, with a ReLU between them; its text has one. Neither puts an
        activation behind the last, so that features can point in every direction.

    Args:
        shape: Channels, height and width.
        n_classes: The number of logits.
        blocks: Basic blocks in each stage.
        widths: Channels of each stage.
        shortcut: Where channels change: 1×1 convolution with batch normalisation (public FedRepo code), or padding.
        hidden: Width of a linear layer behind the pooling; null: none.
        bias: Whether the classifier has one.
    """
    same_length(blocks=blocks, widths=widths)
    features = nn.Sequential(
        conv3x3(image_channels(shape, name="resnet"), widths[0]),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(inplace=True),
        *_stages(blocks, widths, shortcut),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *([] if hidden is None else [nn.Linear(widths[-1], hidden)]),
    )
    kaiming_convs(features)
    feature_dim = widths[-1] if hidden is None else hidden
    return SplitModel(features, nn.Linear(feature_dim, n_classes, bias=bias), feature_dim)


def _stages(blocks: Sequence[int], widths: Sequence[int], shortcut: Shortcut) -> Iterator[nn.Module]:
    before = widths[0]
    for stage, (n, width) in enumerate(zip(blocks, widths, strict=True)):
        for block in range(n):
            stride = 2 if stage and not block else 1
            changes = stride != 1 or before != width
            yield BasicBlock(before, width, stride, _shortcut(before, width, stride, shortcut) if changes else None)
            before = width


def _shortcut(before: int, width: int, stride: int, kind: Shortcut) -> nn.Module:
    if kind == "pad":
        return PaddedShortcut(width - before, stride)
    return nn.Sequential(conv1x1(before, width, stride), nn.BatchNorm2d(width))
