"""One phase of a client's round as a LightningModule, and what goes to a client and comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.client.logits import LogitPipeline
from fedexp.client.optim import Optimizer
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Phase
from fedexp.core.state import Tree
from fedexp.core.views import Frame, Step
from fedexp.models.split import SplitModel


class Meter:
    """How far a worker is with its task: clients done, with the share of the running one. Others may look at it."""

    def __init__(self, memory: list[float] | memoryview[float] | None = None, place: int = 0) -> None:
        self._memory: list[float] | memoryview[float] = [0.0] if memory is None else memory
        self._place, self._unit = place, 0.0

    @property
    def value(self) -> float:
        """Clients done, with the share of the running one."""
        return self._memory[self._place]

    def reset(self, clients: int = 0) -> None:
        """So many clients of the task are done."""
        self._memory[self._place] = clients

    def begin(self, steps: int) -> None:
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
    optimizer: Optimizer = field(init=False)
    step: Step = field(init=False)

    def count(self, term: str, value: Tensor) -> None:
        """Adds a loss term of a step."""
        value = value.detach()
        self.sums[term] = self.sums[term] + value if term in self.sums else value

    def terms(self) -> dict[str, float]:
        """The mean of each loss term over the phase."""
        return {k: v.item() / max(self.taken, 1) for k, v in self.sums.items()}


class ClientModule(lightning.LightningModule):
    """One phase of a client's round. Folds the active components over a step. Used again for every client."""

    def __init__(self, net: SplitModel, algorithm: Algorithm, phase: Phase, clip: float | None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.phase = phase
        self._clip = clip
        self._names = algorithm.facts.layout.trainable(phase.train)
        self._answer = LogitPipeline(algorithm, phase.name, net.classifier)
        self._loss, self._grads = (algorithm.active(phase.name, seam) for seam in ("loss", "grads"))
        parts = {"features": net.features, "classifier": net.classifier}
        self._frozen = [part for name, part in parts.items() if self._is_frozen(part, name)]
        self._parts = (self, net, *net.children())  # whose mode says that of all

    def _is_frozen(self, part: nn.Module, name: str) -> bool:
        """Whether a part has parameters, and the phase trains none of them."""
        own = [f"{name}.{n}" for n, _ in part.named_parameters()]
        return bool(own) and not self._names & set(own)

    def begin(self, frame: Frame, optimizer: Callable[[], Optimizer], meter: Meter) -> None:
        """Takes up a client's phase: from now on nothing is left of another client."""
        frame.classify = self._answer.of_network
        trained = {n: p for n, p in frame.weights.items() if n in self._names}
        self.turn = Turn(frame, trained, optimizer, meter)
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

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Loss, gradients, their correction, clipping, step."""
        turn = self.turn
        loss = self.objective(batch, batch_idx)
        turn.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._grads:
            self._correct()
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(turn.trained.values(), self._clip)
        turn.optimizer.step()
        turn.taken += 1
        turn.meter.step()

    def objective(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Cross-entropy of the edited logits, plus the components' terms."""
        x, y = batch
        h = self.net.features(x)
        step = self.turn.step = Step(self.turn.frame, x, y, h, h, h, index)
        step.z = z = self._answer(step)
        step.ce = F.cross_entropy(z, y)
        total = step.ce
        self.turn.count("ce", total)
        for key, component in self._loss:
            term = component.loss(step.for_component(key))
            if term is not None:
                total = total + term
                self.turn.count(key, term)
        return total

    def _correct(self) -> None:
        trained = self.turn.trained
        grads = {n: p.grad for n, p in trained.items() if p.grad is not None}
        for key, component in self._grads:
            grads = component.grads(grads, self.turn.step.for_component(key))
        for name, grad in grads.items():
            trained[name].grad = grad
