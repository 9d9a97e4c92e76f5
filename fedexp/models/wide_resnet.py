from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.core.ranges import Count, Depth, Share, ShareBelow1
from fedexp.errors import ConfigError
from fedexp.models.split import SplitModel, image_channels


class WideBlock(nn.Module):
    """Normalisation and ReLU before each of two biased convolutions, dropout between them; the second may stride."""

    def __init__(self, before: int, width: int, *, dropout: float, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, width, kernel_size=3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1)
        changes = stride != 1 or before != width
        self.shortcut = nn.Conv2d(before, width, kernel_size=1, stride=stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Returns the input's shortcut plus what the convolutions make of it."""
        out = self.dropout(self.conv1(F.relu(self.bn1(x))))
        result: Tensor = self.conv2(F.relu(self.bn2(out))) + self.shortcut(x)
        return result


def wide_resnet(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    depth: Depth = 28,
    widen: Count = 10,
    dropout: ShareBelow1 = 0.3,
    final_momentum: Share = 0.9,
    bias: bool = True,
) -> SplitModel:
    """The wide residual network of FedMR, TMLR 2023, for CIFAR-100: Zagoruyko and Komodakis, BMVC 2016.

    WRN-28-10 with 640 features. On 3×32×32 and 100 classes it has 36,546,980 parameters and 17,977 numbers in buffers:
    together the 36.565 M of FedMR's table 3, which only biased convolutions give. As in FedMR's public code the last
    batch normalisation keeps 0.9 of the newest batch in its running statistics, and torch's default initialisation
    is left as it is.

    Deviations: Zagoruyko and Komodakis have no biases, and stride in the first convolution of a block. Pooling is over
        the whole image, which is the public code's 8×8 on 32×32.

    Args:
        shape: Channels, height and width.
        n_classes: The number of logits.
        depth: Layers; 6n + 4 for n blocks in each of three stages.
        widen: Stages have 16, 32 and 64 channels times this.
        dropout: Share of channels' values dropped inside a block.
        final_momentum: Weight of the newest batch in the running statistics of the last normalisation.
        bias: Whether the classifier has one.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise ConfigError(f"model.depth={depth} is not 6n + 4: use 10, 16, 22, 28, 34 or 40.")
    layers: list[nn.Module] = [nn.Conv2d(image_channels(shape, name="wide_resnet"), 16, kernel_size=3, padding=1)]
    before = 16
    for width, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
        for block in range(blocks):
            layers.append(WideBlock(before, width, dropout=dropout, stride=1 if block else stride))
            before = width
    features = nn.Sequential(
        *layers, nn.BatchNorm2d(before, momentum=final_momentum), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return SplitModel(features, nn.Linear(before, n_classes, bias=bias), before)
