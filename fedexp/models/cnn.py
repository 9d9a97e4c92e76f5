from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedexp.core.ranges import Count
from fedexp.models.split import SplitModel, flat_size, image_channels


def cnn(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    widths: Sequence[Count] = (32, 64),
    hidden: Count = 512,
    bias: bool = True,
) -> SplitModel:
    """The two-convolution network of McMahan et al., AISTATS 2017, and of Liang et al., FedReMa, ECAI 2024.

    Unpadded 5×5 convolutions, ReLU and max-pooling; then one hidden layer. As FedReMa counts, the classifier is both
    fully connected layers: on 1×28×28 it has 529,930 of 582,026 parameters, and the features have 1,024 dimensions.
    torch's default initialisation, as in FedReMa's public code.

    Args:
        shape: Channels, height and width.
        n_classes: The number of logits.
        widths: Channels of the convolutions.
        hidden: Width of the classifier's hidden layer.
        bias: Whether the classifier's layers have one.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise([image_channels(shape, name="cnn"), *widths]):
        layers += [nn.Conv2d(before, after, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)]
    features = nn.Sequential(*layers, nn.Flatten())
    feature_dim = flat_size(features, shape, name="cnn")
    classifier = nn.Sequential(
        nn.Linear(feature_dim, hidden, bias=bias), nn.ReLU(), nn.Linear(hidden, n_classes, bias=bias)
    )
    return SplitModel(features, classifier, feature_dim)
