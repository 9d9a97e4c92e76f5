from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedexp.core.ranges import Count
from fedexp.errors import ConfigError
from fedexp.models.init import kaiming_convs
from fedexp.models.split import SplitModel, flat_size, same_length


def sacnn_standin(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    widths: Sequence[Count] = (8, 16, 32, 32, 32, 64),
    kernels: Sequence[Count] = (7, 7, 5, 3, 3, 3),
    length: Count = 4,
    bias: bool = False,
) -> SplitModel:
    """A stand-in for the network of FedRS, KDD 2021, that tells apps by their byte streams ("SACNN").

    Convolutions along the bytes with padding, ReLU and max-pooling after each; the last pooling leaves ``length``
    positions of however many there are. It has what table 4 of FedRS prints of SACNN and no more: 15,984 parameters,
    256 features, seven layers with the classifier.

    Deviations: SACNN is described nowhere, and its data are private. Other widths and kernels give the same numbers.

    Args:
        shape: Channels (1) and number of bytes; at least 32 bytes for six convolutions.
        n_classes: The number of logits.
        widths: Channels of the convolutions.
        kernels: Their widths; odd numbers.
        length: Positions that the last pooling leaves.
        bias: Whether the classifier has one.
    """
    same_length(widths=widths, kernels=kernels)
    if len(shape) != 2:
        raise ConfigError(
            f"model=sacnn_standin reads byte streams (channels, length), but a sample has the shape {shape}. "
            "Use a network for images (model=lenet) or for anything (model=mlpnet)."
        )
    layers: list[nn.Module] = []
    before = shape[0]
    for width, kernel in zip(widths, kernels, strict=True):
        layers += [nn.Conv1d(before, width, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool1d(2)]
        before = width
    layers[-1] = nn.AdaptiveMaxPool1d(length)
    features = nn.Sequential(*layers, nn.Flatten())
    kaiming_convs(features)
    feature_dim = flat_size(features, shape, name="sacnn_standin")
    return SplitModel(features, nn.Linear(feature_dim, n_classes, bias=bias), feature_dim)
