"""Optimizers of stacked parameters: those that treat every number by itself, so that clients do not mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedexp.client.batched.frames import stacked
from fedexp.client.optim import FusedSgd, Optimizer, OptimizerFactory, Sgd, TorchOptimizer

ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
)
Momentum = Mapping[int, Tensor]  # of one client, by the parameter's number


def misfit(factory: OptimizerFactory, *, continues: bool) -> str | None:
    """Why an optimizer cannot move the parameters of many clients at once; None if it can.

    ``continues``: in a phase that goes on with the optimizer of another one.
    """
    if isinstance(factory, Sgd):
        return None
    if not isinstance(factory, TorchOptimizer) or factory.kind not in ELEMENTWISE:
        return f"the optimizer {factory} may mix the numbers of a tensor"
    return f"it goes on with the state of {factory}; only that of optim=sgd can be dealt out" if continues else None


class StackedOptimizer:
    """An optimizer of stacked parameters; the first clients of a stack may go on while the others have ended."""

    def __init__(self, factory: OptimizerFactory, parameters: Sequence[Tensor], begun: Sequence[Momentum] = ()) -> None:
        self._parameters = list(parameters)
        self._optimizer: Optimizer = factory(self._parameters)
        self._whole: dict[int, Tensor] = {}  # momentum of all clients, of which the optimizer may have the first only
        for number in begun[0] if begun else ():
            self._begin(number, stacked([own[number] for own in begun]))

    def step(self, grads: Sequence[Tensor | None]) -> None:
        """Moves the parameters that have a gradient, which is the optimizer's from then on."""
        for parameter, grad in zip(self._parameters, grads, strict=True):
            parameter.grad = grad
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None

    def narrow(self, clients: int) -> None:
        """Goes on with the first clients of the stack, in the same memory."""
        self._whole = {**self._momentum(), **self._whole}
        before = [p.shape for p in self._parameters]
        for parameter in self._parameters:
            parameter.data = parameter.data[:clients]
        if isinstance(self._optimizer, FusedSgd):
            self._optimizer.state = {n: t[:clients] for n, t in self._optimizer.state.items()}
        elif isinstance(self._optimizer, torch.optim.Optimizer):
            for parameter, shape in zip(self._parameters, before, strict=True):
                state = self._optimizer.state[parameter]
                state.update({k: v[:clients] for k, v in state.items() if isinstance(v, Tensor) and v.shape == shape})

    def momenta(self, clients: int) -> list[Momentum]:
        """What each client's optimizer would go on with."""
        rows = {n: t.unbind(0) for n, t in {**self._momentum(), **self._whole}.items()}
        return [{n: own[i] for n, own in rows.items() if i < len(own)} for i in range(clients)]

    def _momentum(self) -> dict[int, Tensor]:
        if isinstance(self._optimizer, FusedSgd):
            return self._optimizer.state
        if not isinstance(self._optimizer, torch.optim.SGD):
            return {}
        states = {n: self._optimizer.state.get(p, {}) for n, p in enumerate(self._parameters)}
        return {n: t for n, s in states.items() if (t := s.get("momentum_buffer")) is not None}

    def _begin(self, number: int, momentum: Tensor) -> None:
        if isinstance(self._optimizer, FusedSgd):
            self._optimizer.state[number] = momentum
        elif isinstance(self._optimizer, torch.optim.SGD):
            self._optimizer.state[self._parameters[number]]["momentum_buffer"] = momentum


def clip_norms(grads: Sequence[Tensor | None], limit: float) -> None:
    """Limits the norm of each client's gradients, as ``torch.nn.utils.clip_grad_norm_`` does that of one."""
    there = [grad for grad in grads if grad is not None]
    if not there:
        return
    norms = torch.stack([torch.linalg.vector_norm(grad.flatten(1), dim=1) for grad in there])
    factors = (limit / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for grad in there:
        grad.mul_(factors.view(-1, *[1] * (grad.dim() - 1)))
