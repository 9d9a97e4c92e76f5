from __future__ import annotations

from torch import nn

from fedexp.core.ranges import Count
from fedexp.models.init import kaiming_convs
from fedexp.models.split import SplitModel, flat_size, image_channels


def lenet(
    shape: tuple[int, ...], n_classes: int, *, feature_dim: Count = 84, final_relu: bool = True, bias: bool = False
) -> SplitModel:
    """LeNet-5 with ReLU and max-pooling: LeCun et al., Proc. IEEE 1998; MAP, section 5.2.1; FedRS, table 4.

    Two unpadded 5×5 convolutions with 6 and 16 channels, each pooled, then layers of 120 and ``feature_dim``. Features
    have 43,576 parameters on 1×28×28, 60,856 on 1×32×32, and 33,654 with two features on 1×28×28 (FedRS, table 4). With
    two features and no last ReLU it is the network whose features MAP and FedRS draw.

    Deviations: The public FedRepo code has 16 channels twice and no hidden layer; the papers are followed.

    Args:
        shape: Channels, height and width.
        n_classes: The number of logits.
        feature_dim: Width of the last hidden layer.
        final_relu: Whether a ReLU follows it.
        bias: Whether the classifier has one.
    """
    convs = nn.Sequential(
        nn.Conv2d(image_channels(shape, name="lenet"), 6, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    kaiming_convs(convs)
    features = nn.Sequential(
        *convs,
        nn.Linear(flat_size(convs, shape, name="lenet"), 120),
        nn.ReLU(),
        nn.Linear(120, feature_dim),
        *([nn.ReLU()] if final_relu else []),
    )
    return SplitModel(features, nn.Linear(feature_dim, n_classes, bias=bias), feature_dim)
