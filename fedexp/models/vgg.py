from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torchvision.models.vgg import make_layers

from fedexp.core.ranges import Count, Depth
from fedexp.models.init import kaiming_convs
from fedexp.models.split import SplitModel, flat_size, image_channels, same_length


def vgg(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    convs: Sequence[Depth] = (1, 1, 2, 2, 2),
    widths: Sequence[Count] = (64, 128, 256, 512, 512),
    batch_norm: bool = False,
    bias: bool = False,
) -> SplitModel:
    """The convolutions of VGG with one linear classifier: FedRS, KDD 2021, table 4; MAP, section 5.

    Simonyan and Zisserman, ICLR 2015: 3×3 convolutions, max-pooling after each stage. On 3×32×32 the features have 512
    dimensions and 9,220,480 parameters (VGG11, FedRS table 4), 3,910,784 (VGG8); with batch normalisation 3,913,728
    (VGG8), 9,225,984 (VGG11), 14,723,136 (VGG16).

    Deviations: VGG has three fully connected layers, and so has the public FedRepo code, with dropout; FedRS counts
        one, and MAP does not say. The names count three: VGG8 has five convolutions.

    Args:
        shape: Channels, height and width; at least 32×32 for five stages.
        n_classes: The number of logits.
        convs: Convolutions in each stage.
        widths: Channels of each stage.
        batch_norm: Whether batch normalisation follows each convolution, which keeps its bias.
        bias: Whether the classifier has one.
    """
    same_length(convs=convs, widths=widths)
    name = f"vgg{sum(convs) + 3}{'_bn' if batch_norm else ''}"
    channels = image_channels(shape, name=name)
    layers = [layer for n, width in zip(convs, widths, strict=True) for layer in (*[width] * n, "M")]
    features = nn.Sequential(*make_layers(layers, batch_norm), nn.Flatten())
    features[0] = nn.Conv2d(channels, widths[0], kernel_size=3, padding=1)  # torchvision's has three channels
    kaiming_convs(features)
    feature_dim = flat_size(features, shape, name=name)
    return SplitModel(features, nn.Linear(feature_dim, n_classes, bias=bias), feature_dim)
