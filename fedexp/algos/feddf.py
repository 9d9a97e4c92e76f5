"""Distilling the clients' models into their mean at the server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.algos.transfer import distillation
from fedexp.core.component import Component
from fedexp.core.ranges import Count, CountOr0, Positive
from fedexp.core.state import Tree, add, pick, snapshot, sub
from fedexp.core.views import ServerRound


@dataclass(frozen=True, kw_only=True)
class EnsembleDistillation(Component):
    """Trains the mean model to answer as the clients' models do together, on samples of the server's own.

    Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning (FedDF), NeurIPS 2020, Alg. 1 and
    eq. 1: the student begins as the clients' mean and minimises KL(softmax(mean_k z_k(x)) ‖ softmax(z(x))) over
    unlabelled public samples, with Adam and a learning rate that falls to zero by a cosine. Teachers are in evaluation
    mode, the student in training mode, so that its running statistics become those of the public samples.

    Global: the distilled model. Personal: none; clients are tested with their locally trained models. Nothing more
    than FedAvg's is sent. The server holds the cohort's models during its step. ``loss`` in a round's record is the
    first and the last value of the loss.

    Deviations: a fixed number of steps; the authors' code takes up to 10,000, stops by a validation set, and clips
    gradients to a norm of 5, which is not done. ``teacher: probabilities`` averages probabilities instead of logits, an
    option of their code, whose default averages losses. MAP draws its 500 public samples from the global test set and
    does not say that they leave it; here they do (``public``), so that nothing is tested that was trained on. All
    teachers count alike, as in eq. 1, whatever the run's ``weighting``.
    """

    steps: CountOr0 = 200
    lr: Positive = 1e-3
    batch_size: Count = 128
    teacher: Literal["logits", "probabilities"] = "logits"

    keeps: ClassVar[tuple[str, ...]] = ("model",)
    needs_public: ClassVar[bool] = True
    needs_classifier: ClassVar[bool] = True

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """From the mean, which the components before may have moved, to the distilled model."""
        if not (self.steps and server.kept["model"]):
            return delta
        x = server.public.x.to(server.device)
        target = self._taught(server, x)
        student = snapshot({**server.model, **server.mean, **add(delta, server.model)})
        student = {n: t.to(server.device) for n, t in student.items()}
        optimizer = torch.optim.Adam([student[n].requires_grad_() for n in delta], self.lr, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        losses: list[Tensor] = []
        for rows in self._batches(server, len(x)):
            z = server.forward(student, x[rows], training=True)[1]
            loss = distillation(z, target[rows], temperature=1.0)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        server.record("loss", [losses[0].item(), losses[-1].item()])
        return sub({n: t.detach().cpu() for n, t in pick(student, server.mean).items()}, server.model)

    def _taught(self, server: ServerRound, x: Tensor) -> Tensor:
        """What the clients' models answer together, as logits."""
        models = ({**server.model, **server.kept["model"][c]} for c in sorted(server.kept["model"]))
        with torch.no_grad():
            logits = [server.forward(model, x)[1] for model in models]
            if self.teacher == "probabilities":
                return torch.stack([F.log_softmax(z, 1) for z in logits]).logsumexp(0)  # up to a constant
            return torch.stack(logits).mean(0)

    def _batches(self, server: ServerRound, n: int) -> list[Tensor]:
        """Rows of the public samples for each step: one random order after another."""
        size, rng = min(self.batch_size, n), server.generator("batches")
        epochs = -(-self.steps * size // n)
        rows = torch.cat([torch.randperm(n, generator=rng) for _ in range(epochs)])
        return list(rows[: self.steps * size].to(server.device).view(self.steps, size))

    def neutral(self) -> EnsembleDistillation:
        """Without steps the mean stays as it is."""
        return replace(self, steps=0)
