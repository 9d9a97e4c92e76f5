"""Published server steps in miniature: what the seams of the server have to carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from fedexp.core.component import Component
from fedexp.core.state import (
    Out,
    Slot,
    Upload,
    add,
    axpy,
    initial,
    number,
    pick,
    scale,
    snapshot,
    sub,
    zeros_shared,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Dyn(Component):
    """FedDyn's server: h ← h - alpha · m/K · step; it sends mean - h / alpha, and is tested with the mean."""

    alpha: float = 0.1

    def slots(self):
        return Slot("h", "server", zeros_shared), Slot("mean", "server", initial)

    def update(self, delta, server):
        share = len(server.cohort) / server.n_clients
        h = axpy(-self.alpha * share, delta, server.mine["h"])
        server.remember("h", h)
        server.remember("mean", {**server.model, **server.mean})
        return axpy(-1 / self.alpha, h, delta)

    def released(self, weights, view):
        return dict(view.mine["mean"])


@dataclass(frozen=True, kw_only=True)
class Nova(Component):
    """FedNova: clients send steps divided by their number, the server multiplies the mean by the mean number."""

    def uploads(self):
        return (Upload("tau", number(0.0), "weighted"),)

    def uplink(self, weights, local):
        tau = local.normaliser("local")
        return {n: local.received[n] + (w - local.received[n]) / tau for n, w in weights.items()}

    def finish(self, local):
        return Out(uploads={"tau": {"value": torch.tensor(local.normaliser("local"))}})

    def update(self, delta, server):
        return scale(delta, server.reduced["tau"]["value"].item())


@dataclass(frozen=True, kw_only=True)
class Momentum(Component):
    """FedAvgM: v ← beta v + step."""

    beta: float = 0.9

    def slots(self):
        return (Slot("v", "server", zeros_shared),)

    def update(self, delta, server):
        server.remember("v", axpy(self.beta, server.mine["v"], delta))
        return server.mine["v"]


@dataclass(frozen=True, kw_only=True)
class Adam(Component):
    """FedAdam, with torch's formula: the step is minus the gradient."""

    lr: float = 0.1
    eps: float = 1e-3

    def slots(self):
        return (
            Slot("m", "server", zeros_shared), Slot("v", "server", zeros_shared), Slot("t", "server", number(0.0)),
        )  # fmt: skip

    def update(self, delta, server):
        t = server.mine["t"]["value"] + 1
        m = {n: 0.9 * old + 0.1 * delta[n] for n, old in server.mine["m"].items()}
        v = {n: 0.999 * old + 0.001 * delta[n].square() for n, old in server.mine["v"].items()}
        for slot, value in (("m", m), ("v", v), ("t", {"value": t})):
            server.remember(slot, value)
        root = {n: (value / (1 - 0.999**t)).sqrt() + self.eps for n, value in v.items()}
        return {n: self.lr * value / (1 - 0.9**t) / root[n] for n, value in m.items()}


@dataclass(frozen=True, kw_only=True)
class Distil(Component):
    """FedDF: the mean learns the clients' mean prediction on public samples, with its running statistics."""

    steps: int = 3
    lr: float = 0.5

    keeps: ClassVar[tuple[str, ...]] = ("model",)
    needs_public: ClassVar[bool] = True

    def update(self, delta, server):
        x = server.public.x
        models = [{**server.model, **server.kept["model"][c]} for c in sorted(server.kept["model"])]
        with torch.no_grad():
            target = torch.stack([F.softmax(server.forward(model, x)[1], 1) for model in models]).mean(0)
        student = snapshot({**server.model, **server.mean, **add(delta, server.model)})
        trained = [student[n].requires_grad_() for n in delta]
        sgd = torch.optim.SGD(trained, self.lr)
        losses = []
        for _ in range(self.steps):
            z = server.forward(student, x, training=True)[1]
            loss = F.kl_div(F.log_softmax(z, 1), target, reduction="batchmean")
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            losses.append(loss.item())
        server.record("loss", losses)
        return sub(pick(student, server.mean), server.model)
