"""How many forward and backward passes a round takes: most of its time, and what a method's formulas ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn

from fedexp.models.split import SplitModel

BACKWARD = 2  # forward passes that a backward pass takes as long as: it makes two products for each of the forward's
MARK = "fedexp_bench_counts_this"


@dataclass
class Passes:
    """Calls of the network's features, with any weights and in any mode, and of autograd."""

    forward: int = 0
    backward: int = 0

    @property
    def work(self) -> int:
        """In forward passes."""
        return self.forward + BACKWARD * self.backward


def mark(net: SplitModel) -> None:
    """Makes the passes of a network countable, of those beside it, and of the copies that are made from now on."""
    for part in net.modules():
        if isinstance(part, SplitModel):
            setattr(part.features, MARK, True)


@contextmanager
def counting() -> Iterator[Passes]:
    """Counts the passes of marked networks, in this process."""
    passes = Passes()

    def forward(module: nn.Module, _: Any, __: Any) -> None:
        passes.forward += getattr(module, MARK, False)

    def backward(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            passes.backward += 1
            return real(*args, **kwargs)

        return call

    with ExitStack() as stack:
        stack.callback(nn.modules.module.register_module_forward_hook(forward).remove)
        for name in ("backward", "grad"):  # Tensor.backward calls the first
            stack.enter_context(mock.patch.object(torch.autograd, name, backward(getattr(torch.autograd, name))))
        yield passes
