from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedexp.core.ranges import Count
from fedexp.models.split import SplitModel, flat_size, image_channels


def alexnet(
    shape: tuple[int, ...], n_classes: int, *, hidden: Sequence[Count] = (1024, 512), bias: bool = True
) -> SplitModel:
    """The small AlexNet of Liang et al., FedReMa, ECAI 2024, for CIFAR-10.

    Five 3×3 convolutions without dropout or normalisation. As FedReMa counts, the classifier is all three fully
    connected layers: on 3×32×32 the features have 978,496 of 3,868,746 parameters and 2,304 dimensions. As in its
    public code there is no activation between the last three convolutions nor inside the classifier, which is
    therefore a product of linear maps; torch's default initialisation.

    Args:
        shape: Channels, height and width.
        n_classes: The number of logits.
        hidden: Widths inside the classifier.
        bias: Whether the classifier's layers have one.
    """
    features = nn.Sequential(
        nn.Conv2d(image_channels(shape, name="alexnet"), 32, kernel_size=3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(64, 128, kernel_size=3, padding=1),
        nn.Conv2d(128, 256, kernel_size=3, padding=1),
        nn.Conv2d(256, 256, kernel_size=3, padding=1),
        nn.MaxPool2d(kernel_size=3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
    )
    feature_dim = flat_size(features, shape, name="alexnet")
    widths = [feature_dim, *hidden, n_classes]
    layers = [nn.Linear(before, after, bias=bias) for before, after in pairwise(widths)]
    return SplitModel(features, nn.Sequential(*layers), feature_dim)
