from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedexp.core.ranges import Count
from fedexp.models.init import kaiming_convs
from fedexp.models.split import SplitModel, flat_size, image_channels


def fecnn(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    widths: Sequence[Count] = (32, 64),
    hidden: Count = 2048,
    bias: bool = False,
) -> SplitModel:
    """The network of LEAF (Caldas et al., 2018) for FEMNIST: FedRS, KDD 2021, table 4 ("FeCNN"), and MAP, section 5.3.

    5×5 convolutions with padding, ReLU and max-pooling after each; one hidden layer. On 1×28×28 the features have
    6,476,672 parameters and 2,048 dimensions (FedRS, table 4).

    Deviations: MAP speaks of two convolutions and one dense layer; read as this network, whose classifier is counted
        apart.

    Args:
        shape: Channels, height and width.
        n_classes: The number of logits.
        widths: Channels of the convolutions.
        hidden: Width of the hidden layer, the feature dimension.
        bias: Whether the classifier has one.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise([image_channels(shape, name="fecnn"), *widths]):
        layers += [nn.Conv2d(before, after, kernel_size=5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    convs = nn.Sequential(*layers, nn.Flatten())
    kaiming_convs(convs)
    features = nn.Sequential(*convs, nn.Linear(flat_size(convs, shape, name="fecnn"), hidden), nn.ReLU())
    return SplitModel(features, nn.Linear(hidden, n_classes, bias=bias), hidden)
