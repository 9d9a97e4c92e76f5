from __future__ import annotations

from torch import nn
from torchvision import models

from fedexp.core.ranges import Count, ShareBelow1
from fedexp.models.init import kaiming_convs
from fedexp.models.split import SplitModel, image_channels


def efficientnet_b0(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    hidden: Count | None = 640,
    dropout: ShareBelow1 = 0.2,
    stochastic_depth: ShareBelow1 = 0.2,
    bias: bool = True,
) -> SplitModel:
    """EfficientNet-B0 with a layer of 640 in front of the classifier: FedMR, TMLR 2023, on ISIC2019.

    Tan and Le, ICML 2019, in torchvision's form and initialisation, never with downloaded weights. With 8 classes and
    the buffers it has 4,874,581 numbers, FedMR's 4.875 M (table 3).

    Deviations: The layer of 640 is written nowhere; no other width gives that total. Whether an activation follows it
        is not known; here none does, as in FedGELA's public code for the same data. FedMR may have started from
        ImageNet's weights, as the FLamby benchmark does; here training starts from nothing.

    Args:
        shape: Channels, height and width. Up to 32×32 the last stages see single pixels, and batch normalisation blows
            up for clients with a single sample.
        n_classes: The number of logits.
        hidden: Width of a linear layer behind the pooling; null: none, and 1,280 features.
        dropout: Share of the pooled values dropped.
        stochastic_depth: Chance of the last block being skipped in training; falls linearly to 0 at the first.
        bias: Whether the classifier has one.
    """
    channels = image_channels(shape, name="efficientnet_b0")
    body = models.efficientnet_b0(weights=None, stochastic_depth_prob=stochastic_depth, num_classes=1).features
    if channels != 3:
        body[0][0] = nn.Conv2d(channels, body[0][0].out_channels, kernel_size=3, stride=2, padding=1, bias=False)
        kaiming_convs(body[0])
    features = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
    feature_dim: int = body[-1].out_channels
    if hidden is not None:
        features.append(nn.Linear(feature_dim, hidden))
        feature_dim = hidden
    return SplitModel(features, nn.Linear(feature_dim, n_classes, bias=bias), feature_dim)
