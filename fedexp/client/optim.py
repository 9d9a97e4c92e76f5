"""Client optimizers: settings that make a new optimizer for every phase, so that no momentum survives a round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedexp.core.ranges import NotNegative, Positive, ShareBelow1


class Optimizer(Protocol):
    """What a step needs, and what Lightning takes for an optimizer."""

    param_groups: list[dict[str, Any]]

    def zero_grad(self) -> None: ...
    def step(self, closure: None = None) -> None: ...


class OptimizerFactory(Protocol):
    """Makes an optimizer; ``overrides`` are a phase's own settings."""

    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    def __call__(self, parameters: Iterable[Tensor], **overrides: float) -> Optimizer: ...
    def settings(self, **overrides: float) -> OptimizerFactory: ...


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent in torch's form: v ← momentum·v + g + weight_decay·w;  w ← w − lr·v."""

    lr: Positive = 0.03
    momentum: ShareBelow1 = 0.9
    weight_decay: NotNegative = 1e-5
    nesterov: bool = False
    fused: bool = True  # one kernel for all parameters

    def settings(self, **overrides: float) -> Sgd:
        """The same optimizer with other settings."""
        return replace(self, **overrides) if overrides else self  # type: ignore[arg-type]

    def __call__(self, parameters: Iterable[Tensor], **overrides: float) -> Optimizer:
        """A new optimizer with empty buffers."""
        s = self.settings(**overrides)
        if s.fused:
            return FusedSgd(parameters, s)
        nesterov = s.nesterov and s.momentum > 0
        return torch.optim.SGD(parameters, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay, nesterov=nesterov)


class FusedSgd:
    """``torch.optim.SGD(fused=True)`` bit for bit, without its bookkeeping, which tiny clients would feel."""

    def __init__(self, parameters: Iterable[Tensor], settings: Sgd) -> None:
        self._parameters: list[Tensor] = list(parameters)
        self.param_groups: list[dict[str, Any]] = [{"params": self._parameters, "lr": settings.lr}]
        self.defaults: dict[str, Any] = {}
        self.state: dict[int, Tensor] = {}  # momentum, by the parameter's number
        self._settings = settings

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002 - as Lightning's protocol has it
        """Moves all parameters that have a gradient. The first gradient becomes the momentum, in its place."""
        grads = {n: g for n, p in enumerate(self._parameters) if (g := p.grad) is not None}
        new = {n: g for n, g in grads.items() if n not in self.state} if self._settings.momentum else {}
        self.state.update(new)
        self._move(new, first=True)
        self._move({n: g for n, g in grads.items() if n not in new} if new else grads, first=False)

    def _move(self, grads: dict[int, Tensor], *, first: bool) -> None:
        if not grads:
            return
        s = self._settings
        torch._fused_sgd_(
            [self._parameters[n] for n in grads], list(grads.values()),
            [self.state[n] for n in grads] if s.momentum else [], weight_decay=s.weight_decay, momentum=s.momentum,
            lr=s.lr, dampening=0.0, nesterov=s.nesterov, maximize=False, is_first_step=first,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Nothing: no optimizer outlives a client's round."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Has nothing to load."""
