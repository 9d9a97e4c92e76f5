"""Client optimizers: settings that make a new optimizer for every phase, so that no momentum survives a round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor


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

    lr: float = 0.03
    momentum: float = 0.9
    weight_decay: float = 1e-5
    nesterov: bool = False
    fused: bool = True  # one kernel for all parameters

    def settings(self, **overrides: float) -> Sgd:
        """The same optimizer with other settings."""
        return replace(self, **overrides)  # type: ignore[arg-type]

    def __call__(self, parameters: Iterable[Tensor], **overrides: float) -> Optimizer:
        """A new optimizer with empty buffers."""
        s = self.settings(**overrides)
        if s.fused:
            return FusedSgd(parameters, s)
        return torch.optim.SGD(
            parameters, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay, nesterov=s.nesterov
        )


class FusedSgd:
    """``torch.optim.SGD(fused=True)`` bit for bit, without its bookkeeping, which tiny clients would feel."""

    def __init__(self, parameters: Iterable[Tensor], settings: Sgd) -> None:
        self._parameters: list[Tensor] = list(parameters)
        self.param_groups: list[dict[str, Any]] = [{"params": self._parameters, "lr": settings.lr}]
        self.defaults: dict[str, Any] = {}
        self.state: dict[Tensor, Tensor] = {}  # momentum
        self._settings = settings

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, closure: None = None) -> None:  # noqa: ARG002 - as Lightning's protocol has it
        """Moves all parameters that have a gradient."""
        grads = {p: g for p in self._parameters if (g := p.grad) is not None}
        if not self._settings.momentum:
            self._move(grads, [], first=False)
            return
        new = {p: g for p, g in grads.items() if p not in self.state}
        self.state.update(new)  # the first gradient becomes the momentum, in its place
        for moving, first in ((new, True), ({p: g for p, g in grads.items() if p not in new}, False)):
            if moving:
                self._move(moving, [self.state[p] for p in moving], first=first)

    def _move(self, grads: dict[Tensor, Tensor], momentum: list[Tensor], *, first: bool) -> None:
        s = self._settings
        with torch.no_grad():
            torch._fused_sgd_(
                list(grads), list(grads.values()), momentum, weight_decay=s.weight_decay, momentum=s.momentum, lr=s.lr,
                dampening=0.0, nesterov=s.nesterov, maximize=False, is_first_step=first,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Nothing: no optimizer outlives a client's round."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Has nothing to load."""
