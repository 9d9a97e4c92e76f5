"""One phase of a client's round as a LightningModule, and what goes to a client and comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.algorithm import Algorithm, Private
from fedexp.answer import Answer
from fedexp.component import Phase
from fedexp.contexts import Frame, Step
from fedexp.evaluate import Score
from fedexp.models.split import SplitModel
from fedexp.optim import Optimizer
from fedexp.state import Message


@dataclass(frozen=True)
class Local:
    """The run's local setting."""

    epochs: float
    batch_size: int
    clip: float | None = None  # largest global norm of a gradient


@dataclass(frozen=True)
class Job:
    """One client's work in one round: tensors and numbers only, so that it can go anywhere."""

    round: int
    client: int
    downlink: Message  # in a task only what is for this client alone, see Task.including
    private: Private
    weight: float = 1.0  # of its uploads, where they are weighted
    share: float = 1.0  # of the local steps that it does; a straggler does fewer
    test_globally: bool = False  # also test the trained model on the global test set


@dataclass(frozen=True)
class Result:
    """What comes back: messages on the CPU, and what was measured. A client that failed has nothing but its error."""

    client: int
    uplink: Message = field(default_factory=dict)
    private: Private = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)  # mean loss terms, "phase/term"
    seconds: dict[str, float] = field(default_factory=dict)
    before: Score | None = None
    after: Score | None = None
    globally: Score | None = None
    sent: dict[str, int] = field(default_factory=dict)  # bytes of each upload
    error: str | None = None


class ClientModule(lightning.LightningModule):
    """One phase of a client's round. Folds the active components over a step. Used again for every client."""

    def __init__(self, net: SplitModel, algorithm: Algorithm, phase: Phase, clip: float | None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = net
        self.phase = phase
        self._clip = clip
        self._names = algorithm.facts.layout.trainable(phase.train)
        self._answer = Answer(algorithm, phase.name, net.classifier)
        self._loss, self._grads = (algorithm.active(phase.name, seam) for seam in ("loss", "grads"))
        parts = (net.features, net.classifier)
        self._frozen = [
            p for p, name in zip(parts, ("features", "classifier"), strict=True) if self._is_frozen(p, name)
        ]

    def _is_frozen(self, part: nn.Module, name: str) -> bool:
        """Whether a part has parameters, and the phase trains none of them."""
        own = [f"{name}.{n}" for n, _ in part.named_parameters()]
        return bool(own) and not self._names & set(own)

    def begin(self, frame: Frame, optimizer: Callable[[], Optimizer]) -> None:
        """Takes up a client's phase: what is trained, from now on, and nothing else of another client."""
        self.frame = frame
        frame.structure = self._answer.of_others
        self.taken = 0
        self.sums: dict[str, Tensor] = {}
        self._make_optimizer = optimizer
        self._trained = {n: p for n, p in frame.weights.items() if n in self._names}
        for name, tensor in frame.weights.items():
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(name in self._names)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that the phase trains."""
        return [p for p in self._trained.values() if isinstance(p, nn.Parameter)]

    def configure_optimizers(self) -> Optimizer:  # type: ignore[override]
        """The phase's optimizer: new, or the one of the phase it continues."""
        self.optimizer = self._make_optimizer()
        return self.optimizer

    def train(self, mode: bool = True) -> ClientModule:  # noqa: FBT001, FBT002
        """Train mode for what is trained; a frozen part stays in evaluation mode, with its running statistics."""
        super().train(mode)
        for part in self._frozen:
            part.eval()
        return self

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Loss, gradients, their correction, clipping, step."""
        loss = self.objective(batch, batch_idx)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._grads:
            self._correct()
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._trained.values(), self._clip)
        self.optimizer.step()
        self.taken += 1

    def objective(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Cross-entropy of the edited logits, plus the components' terms."""
        x, y = batch
        h = self.net.features(x)
        nothing = h.new_zeros(())
        step = self.step = Step(self.frame, x, y, h, nothing, nothing, index)
        step.z = z = self._answer(step)
        step.ce = F.cross_entropy(z, y)
        total = step.ce
        self._count("ce", total)
        for key, component in self._loss:
            term = component.loss(step.bind(key))
            if term is not None:
                total = total + term
                self._count(key, term)
        return total

    def terms(self) -> dict[str, float]:
        """The mean of each loss term over the phase."""
        return {k: v.item() / max(self.taken, 1) for k, v in self.sums.items()}

    def _count(self, term: str, value: Tensor) -> None:
        value = value.detach()
        self.sums[term] = self.sums[term] + value if term in self.sums else value

    def _correct(self) -> None:
        grads = {n: p.grad for n, p in self._trained.items() if p.grad is not None}
        for key, component in self._grads:
            grads = component.grads(grads, self.step.bind(key))
        for name, grad in grads.items():
            self._trained[name].grad = grad
