"""Client optimizers: settings that make a new optimizer for every phase, so that no momentum survives a round.

A configuration names ``Sgd``, a class of ``torch.optim``, or the user's own subclass of ``torch.optim.Optimizer``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedexp.config.schema import problems_of
from fedexp.core.algorithm import Algorithm
from fedexp.core.ranges import NotNegative, Positive, ShareBelow1
from fedexp.errors import ConfigError


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
    def sgd_momentum(self) -> float | None: ...  # of v ← momentum·v + g;  w ← w − lr·v; None for any other rule
    def __call__(self, parameters: Iterable[Tensor]) -> Optimizer: ...
    def settings(self, **overrides: Any) -> OptimizerFactory: ...


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent in torch's form: v ← momentum·v + g + weight_decay·w;  w ← w − lr·v."""

    lr: Positive = 0.03
    momentum: ShareBelow1 = 0.9
    weight_decay: NotNegative = 1e-5
    nesterov: bool = False
    fused: bool = True  # one kernel for all parameters

    @property
    def sgd_momentum(self) -> float | None:
        """The momentum; None with Nesterov's, which moves the weights further."""
        return None if self.nesterov and self.momentum else self.momentum

    def settings(self, **overrides: Any) -> Sgd:
        """The same optimizer with other settings."""
        return replace(self, **overrides) if overrides else self

    def __call__(self, parameters: Iterable[Tensor]) -> Optimizer:
        """A new optimizer with empty buffers."""
        if self.fused:
            return FusedSgd(parameters, self)
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay,
            nesterov=self.nesterov and self.momentum > 0,
        )  # fmt: skip


@dataclass(frozen=True)
class TorchOptimizer:
    """A class of ``torch.optim``, or a subclass of ``torch.optim.Optimizer``, with its settings."""

    kind: Callable[..., torch.optim.Optimizer]
    given: Mapping[str, Any]

    def __post_init__(self) -> None:
        if "lr" not in self.given:
            raise ConfigError("optim.lr is missing: a schedule and some methods need to know it. Add it.")

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({', '.join(f'{k}={v}' for k, v in self.given.items())})"

    @property
    def lr(self) -> float:
        """The learning rate."""
        return float(self.given["lr"])

    @property
    def sgd_momentum(self) -> float | None:
        """The momentum of torch's SGD in its plain form; None for any other rule."""
        plain = not any(self.given.get(name) for name in ("nesterov", "dampening", "maximize"))
        return self.given.get("momentum", 0.0) if self.kind is torch.optim.SGD and plain else None

    def settings(self, **overrides: Any) -> TorchOptimizer:
        """The same optimizer with other settings."""
        return replace(self, given={**self.given, **overrides}) if overrides else self

    def __call__(self, parameters: Iterable[Tensor]) -> Optimizer:
        """A new optimizer with empty state."""
        return self.kind(parameters, **self.given)


def configured(kind: Callable[..., Any], settings: Mapping[str, Any]) -> OptimizerFactory:
    """What a configuration's ``optim`` stands for: a factory, or an optimizer's class with its settings.

    Raises:
        ConfigError: If it does not take the settings, or a step.
    """
    theirs = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    made: OptimizerFactory = TorchOptimizer(kind, settings) if theirs else kind(**settings)
    if why := _refusal(made, {}, ranks={2}):
        raise ConfigError(f"optim: {made} cannot be used: {why}.")
    return made


def misfits(algorithm: Algorithm, optimizer: OptimizerFactory) -> Iterator[str]:
    """Why an optimizer cannot train an algorithm's phases."""
    for phase in algorithm.all_phases:
        ranks = {algorithm.facts.initial[n].ndim for n in algorithm.facts.layout.trainable(phase.train)}
        why = _refusal(optimizer, phase.optim, ranks)
        own = optimizer if why else optimizer.settings(**phase.optim)
        needing = [k for k, c in algorithm.components.items() if c.needs_sgd and {phase.name, "*"} & set(c.during)]
        if needing and own.sgd_momentum is None:
            yield (
                f"optim: component {needing[0]!r} computes the mean gradient of phase {phase.name!r} from how far the "
                f"weights moved, which only SGD without Nesterov's momentum allows, not {optimizer}. Use optim=sgd."
            )
        elif why and phase.optim:
            yield f"phase {phase.name!r} has optim={dict(phase.optim)}, which the optimizer {optimizer} refuses: {why}."
        elif why:
            yield f"optim: {optimizer} cannot train phase {phase.name!r}: {why}. Use optim=sgd."


def _refusal(optimizer: OptimizerFactory, overrides: Mapping[str, Any], ranks: set[int]) -> str | None:
    """Why an optimizer cannot take a step on parameters with so many dimensions; None if it can."""
    parameters = [torch.zeros((1,) * rank, requires_grad=True) for rank in sorted(ranks)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        own = optimizer.settings(**overrides)
        if wrong := [*problems_of(own)]:
            return wrong[0]
        own(parameters).step()
        lr, _ = own.lr, own.sgd_momentum
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return None if lr > 0 else f"lr must be greater than 0, not {lr}"


def kept_per_parameter(optimizer: OptimizerFactory) -> int:
    """How many tensors of a parameter's shape an optimizer keeps beside it: one of momentum, two of Adam."""
    probe = torch.zeros(2, 2, requires_grad=True)
    probe.grad = torch.zeros_like(probe)
    made = optimizer([probe])
    made.step()
    states = getattr(made, "state", {}).values()  # which a class of the user's own may lack
    kept = [t for s in states for t in (s.values() if isinstance(s, Mapping) else (s,))]
    return sum(isinstance(t, Tensor) and t.shape == probe.shape for t in kept)


class FusedSgd:
    """``torch.optim.SGD(fused=True)`` bit for bit, without its bookkeeping, which costs a tenth of a small step."""

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
