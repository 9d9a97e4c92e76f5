"""One phase of a client's round as a LightningModule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from fedexp.client.logits import LogitPipeline
from fedexp.client.network import load
from fedexp.client.optim import Optimizer
from fedexp.client.precision import NetworkPrecision
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Phase
from fedexp.core.state import Tree, pick, snapshot
from fedexp.core.views import Batch, Frame, Step
from fedexp.errors import PlanError
from fedexp.models.split import SplitModel


class Meter:
    """How far a worker is with its task: clients done, with the share of the running one."""

    def __init__(self) -> None:
        self._memory: list[float] | memoryview[float] = [0.0]
        self._place, self._unit = 0, 0.0

    def write_to(self, memory: memoryview[float], place: int) -> None:
        """From now on the value is in memory that other processes see."""
        self._memory, self._place = memory, place

    @property
    def value(self) -> float:
        """Clients done, with the share of the running one."""
        return self._memory[self._place]

    def set_done(self, clients: int = 0) -> None:
        """So many clients of the task are done."""
        self._memory[self._place] = clients

    def begin(self, steps: float) -> None:
        """The running client takes so many steps."""
        self._unit = 1 / steps

    def step(self) -> None:
        """The running client has taken a step."""
        self._memory[self._place] += self._unit


@dataclass
class Turn:
    """What a phase has of the client whose turn it is. Not attributes of the module, which are slow to set."""

    frame: Frame
    trained: Tree  # the parameters that the phase trains
    make_optimizer: Callable[[], Optimizer]
    meter: Meter
    taken: int = 0  # steps
    sums: dict[str, Tensor] = field(default_factory=dict)
    observe: Callable[[Step], None] | None = None  # probes that look at every step
    shares: Tensor | None = None  # see Step
    optimizer: Optimizer = field(init=False)
    step: Step = field(init=False)

    def count(self, term: str, value: Tensor) -> None:
        """Adds a loss term of a step."""
        value = value.detach()
        self.sums[term] = self.sums[term] + value if term in self.sums else value

    def terms(self) -> dict[str, float]:
        """The mean of each loss term over the phase."""
        if not self.sums:
            return {}
        values = torch.stack([v.reshape(()) for v in self.sums.values()]).tolist()  # read at once
        return {k: v / max(self.taken, 1) for k, v in zip(self.sums, values, strict=True)}


class ClientModule(lightning.LightningModule):
    """One phase of a client's round. Folds the active components over a step. Used again for every client."""

    def __init__(
        self, net: SplitModel, algorithm: Algorithm, phase: Phase, clip: float | None, precision: NetworkPrecision
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.phase = phase
        self._clip = clip
        self._precision = precision
        self._names = algorithm.facts.layout.trainable(phase.train)
        self._answer = LogitPipeline(algorithm, phase.name, net.classifier)
        self._loss, self._grads = (algorithm.active(phase.name, seam) for seam in ("loss", "grads"))
        self._several = phase.batches > 1
        self._statistics = algorithm.facts.layout.buffers
        beside = {f"beside.{k}/{m}": net.module_beside(k, m) for k, m in net.names_beside}
        parts = {"features": net.features, "classifier": net.classifier, **beside}
        self._frozen = [part for name, part in parts.items() if self._is_frozen(part, name)]
        self._parts = (self, net, *parts.values())  # whose mode says that of all

    def _is_frozen(self, part: nn.Module, name: str) -> bool:
        """Whether a part has parameters, and the phase trains none of them."""
        own = [f"{name}.{n}" for n, _ in part.named_parameters()]
        return bool(own) and not self._names & set(own)

    def begin(self, frame: Frame, optimizer: Callable[[], Optimizer], meter: Meter) -> None:
        """Takes up a client's phase: from now on nothing is left of another client."""
        frame.classify = self._answer.of_network
        trained = {n: p for n, p in frame.weights.items() if n in self._names}
        self.turn = Turn(frame, trained, optimizer, meter)
        self._precision.begin()
        for name, tensor in frame.weights.items():
            if tensor.requires_grad is not (name in trained):
                tensor.requires_grad_(name in trained)

    def configure_optimizers(self) -> Optimizer:  # type: ignore[override]
        """The phase's optimizer: new, or the one of the phase it continues."""
        self.turn.optimizer = self.turn.make_optimizer()
        return self.turn.optimizer

    def train(self, mode: bool = True) -> ClientModule:  # noqa: FBT001, FBT002
        """Train mode for what is trained; a frozen part stays in evaluation mode, with its running statistics."""
        if self._frozen or any(part.training is not mode for part in self._parts):
            super().train(mode)
        for part in self._frozen:
            part.eval()
        return self

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Loss, gradients, their correction, clipping, step. The batch is a pair, or a tuple of pairs."""
        turn = self.turn
        batches = batch if self._several else ()
        turn.step, loss = self.objective(batches[0] if batches else batch, batch_idx, batches, turn.count)
        turn.optimizer.zero_grad()
        self._precision.backward(loss, turn.optimizer)
        if turn.observe is not None:
            turn.observe(turn.step)
        if self._grads:
            self._correct()
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(turn.trained.values(), self._clip)
        self._precision.step(turn.optimizer)
        turn.taken += 1
        turn.meter.step()

    def objective(
        self, batch: Batch, index: int, batches: Sequence[Batch], count: Callable[[str, Tensor], None]
    ) -> tuple[Step, Tensor]:
        """Cross-entropy of the edited logits, plus the components' terms, each of which is counted."""
        x, y = batch
        h = self.net.features(x)
        step = Step(self.turn.frame, x, y, h, h, h, index, batches, self.turn.shares)
        step.z = z = self._answer(step)
        step.ce = step.cross_entropy(z)
        total = step.ce
        count("ce", total)
        for key, component in self._loss:
            term = component.loss(step.for_component(key))
            if isinstance(term, Tensor) and not component.terms:
                total = total + term
                count(key, term)
            elif term is not None:
                for name, value in _named_terms(key, component.terms, term).items():
                    total = total + value
                    count(name, value)
        return step, total

    def _correct(self) -> None:
        trained = self.turn.trained
        grads = {n: p.grad for n, p in trained.items() if p.grad is not None}
        edited = self.correct(grads, self._gradient)
        for name, parameter in trained.items():
            parameter.grad = _laid_out(edited[name].detach(), parameter) if name in edited else None

    def correct(self, grads: Tree, gradient: Callable[[Tree, Batch, Step], Tree] | None = None) -> Tree:
        """The gradients of a step as components edit them."""
        self.turn.frame.gradient = gradient
        for key, component in self._grads:
            grads = component.grads(grads, self.turn.step.for_component(key))
            if not grads.keys() <= self._names:
                unknown = ", ".join(sorted(grads.keys() - self._names))
                raise PlanError(f"grads of component {key!r} returned {unknown}, which this phase does not train")
            weights = self.turn.frame.weights
            for name in (n for n, grad in grads.items() if grad.shape != weights[n].shape):
                shapes = f"{tuple(grads[name].shape)}, not {tuple(weights[name].shape)}"
                raise PlanError(f"grads of component {key!r} returned {name} in the shape {shapes}")
        self.turn.frame.gradient = None
        return grads

    def _gradient(self, weights: Tree, batch: Batch, step: Step) -> Tree:
        """The gradient of the objective at other weights; afterwards everything is as it was."""
        frame, trained = self.turn.frame, self.turn.trained
        key, frame.gradient = frame.key, None
        saved = snapshot(pick(frame.weights, {*weights, *self._statistics}))
        load(self.net, weights)
        try:
            _, loss = self.objective(batch, step.index, step.batches, _not_counted)
            grads = self._precision.gradients(loss, trained.values())
        finally:
            load(self.net, saved)
            frame.key, frame.gradient = key, self._gradient
        return {n: g for n, g in zip(trained, grads, strict=True) if g is not None}


def _laid_out(grad: Tensor, parameter: Tensor) -> Tensor:
    """A gradient in its parameter's type and memory layout: fused optimizers pair numbers by where they are stored."""
    if grad.dtype == parameter.dtype and grad.stride() == parameter.stride():
        return grad
    return torch.empty_like(parameter, requires_grad=False).copy_(grad)


def _not_counted(_: str, __: Tensor) -> None:
    """Terms at other weights are not those of the step."""


def _named_terms(key: str, names: Sequence[str], terms: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Several terms of one component, as they are recorded."""
    if isinstance(terms, Tensor) or not terms.keys() <= set(names):
        given = "one tensor" if isinstance(terms, Tensor) else f"the terms {list(terms)}"
        raise PlanError(f"loss of component {key!r} returned {given}, but its class declares terms = {tuple(names)}")
    return {f"{key}.{name}": value for name, value in terms.items()}
