"""A client's local training, written out without fedexp."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from fedexp.client.network import tensors
from fedexp.models.split import SplitModel
from tests.helpers import array

Loss = Callable[[Tensor, Tensor], Tensor]


def train(net: SplitModel, batches: Iterable[tuple[Tensor, Tensor]], loss: Loss) -> None:
    """A trial's SGD on a loss of samples and labels."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    net.train()
    for x, y in batches:
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()


def assert_same(uploaded: dict[str, Tensor], net: SplitModel) -> None:
    """What a client has sent is what the network has learnt."""
    assert uploaded.keys() == tensors(net).keys()
    for name, value in tensors(net).items():
        np.testing.assert_allclose(array(uploaded[name]), array(value), rtol=1e-4, atol=1e-5, err_msg=name)
