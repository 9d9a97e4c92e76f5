"""Client optimizers: settings that make a new optimizer for every phase, so that no momentum survives a round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import nn


class OptimizerFactory(Protocol):
    """Makes an optimizer; ``overrides`` are a phase's own settings."""

    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    def __call__(self, parameters: Iterable[nn.Parameter], **overrides: float) -> torch.optim.Optimizer: ...
    def settings(self, **overrides: float) -> OptimizerFactory: ...


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent in torch's form: v ← momentum·v + g + weight_decay·w;  w ← w − lr·v."""

    lr: float = 0.03
    momentum: float = 0.9
    weight_decay: float = 1e-5
    nesterov: bool = False
    fused: bool = True

    def settings(self, **overrides: float) -> Sgd:
        """The same optimizer with other settings."""
        return replace(self, **overrides)  # type: ignore[arg-type]

    def __call__(self, parameters: Iterable[nn.Parameter], **overrides: float) -> torch.optim.SGD:
        """A new optimizer with empty buffers."""
        s = self.settings(**overrides)
        return torch.optim.SGD(
            parameters, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay, nesterov=s.nesterov, fused=s.fused
        )
