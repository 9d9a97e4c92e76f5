from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedexp.core.ranges import Count
from fedexp.models.init import kaiming_convs
from fedexp.models.split import SplitModel, flat_size, image_channels


def tfcnn(
    shape: tuple[int, ...], n_classes: int, *, widths: Sequence[Count] = (32, 64, 64), bias: bool = False
) -> SplitModel:
    """The three convolutions of FedRS, KDD 2021, table 4, and MAP, section 5.2.1 ("TFCNN", from a TensorFlow tutorial).

    3×3 convolutions with padding, ReLU and max-pooling after each; the classifier sits on the flattened result. On
    3×32×32 the features have 56,320 parameters and 1,024 dimensions.

    Deviations: The tutorial has no padding and no third pooling, which gives the same counts; the geometry here is
        that of the public FedRepo code, without the hidden layer that table 4 does not count.

    Args:
        shape: Channels, height and width.
        n_classes: The number of logits.
        widths: Channels of the convolutions.
        bias: Whether the classifier has one.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise([image_channels(shape, name="tfcnn"), *widths]):
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    features = nn.Sequential(*layers, nn.Flatten())
    kaiming_convs(features)
    feature_dim = flat_size(features, shape, name="tfcnn")
    return SplitModel(features, nn.Linear(feature_dim, n_classes, bias=bias), feature_dim)
