from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedexp.core.ranges import Count
from fedexp.models.split import SplitModel


def mlpnet(
    shape: tuple[int, ...],
    n_classes: int,
    *,
    hidden: Sequence[Count] = (512, 512),
    final_relu: bool = True,
    bias: bool = False,
) -> SplitModel:
    """The perceptron of Li et al., MAP, arXiv 2404.09232, section 5.2.1: two hidden layers of 512, ReLU after each.

    Features have 664,576 parameters on 1×28×28 and 787,456 on 1×32×32. torch's default initialisation.

    Deviations: The public FedRepo code has 1024-1024-128; the paper's text is followed. The classifier has no bias,
        as in the papers' formulas.

    Args:
        shape: The shape of a sample; flattened, so any will do.
        n_classes: The number of logits.
        hidden: Widths of the hidden layers; the last is the feature dimension.
        final_relu: Whether a ReLU follows the last; a fixed frame as classifier (FedGELA) wants none.
        bias: Whether the classifier has one.
    """
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    if hidden and not final_relu:
        layers.pop()
    return SplitModel(nn.Sequential(*layers), nn.Linear(widths[-1], n_classes, bias=bias), widths[-1])
