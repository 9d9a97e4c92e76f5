"""Methods in miniature, one for each seam that no method of ``fedexp.algos`` uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch.nn.functional as F
from torch import nn

from fedexp.core.component import Component, Phase
from fedexp.core.state import Slot, received


@dataclass(frozen=True, kw_only=True)
class SecondHead(Component):
    """FedROD: a personal head beside the shared one, trained on detached features and logits; both answer together."""

    during: tuple[str, ...] = ("local", "eval")

    personal: ClassVar[bool] = True

    def modules(self, net, n_classes):
        return {"head": nn.Linear(net.feature_dim, n_classes)}

    def loss(self, step):
        return F.cross_entropy(step.z.detach() + step.module("head")(step.h.detach()), step.y)

    def logits(self, z, step):
        if step.phase == "eval" and step.info is not None:
            return z + step.module("head")(step.h)
        return z


@dataclass(frozen=True, kw_only=True)
class Projection(Component):
    """MOON: features are projected by a head that travels, and pulled towards those of the received model."""

    weight: float = 0.5

    shared_modules: ClassVar[tuple[str, ...]] = ("projection",)

    def modules(self, net, n_classes):
        return {"projection": nn.Sequential(nn.Linear(net.feature_dim, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))}

    def loss(self, step):
        features, _ = step.forward(step.received)
        anchor = step.module("projection", step.received)(features)
        return -self.weight * F.cosine_similarity(step.module("projection")(step.h), anchor).mean()


@dataclass(frozen=True, kw_only=True)
class MetaGradient(Component):
    """PerFedAvg, first order: w <- w - lr · g(w - alpha · g(w; batch 0); batch 1)."""

    alpha: float = 0.1

    def plan(self, phases):
        return [replace(p, batches=2) if p.uploads else p for p in phases]

    def grads(self, grads, step):
        inner = {n: step.weights[n].detach() - self.alpha * g for n, g in grads.items()}
        return step.gradient(inner, batch=1)


@dataclass(frozen=True, kw_only=True)
class MoreauEnvelope(Component):
    """pFedMe: theta from K steps on f + weight/2 · |theta - w|², then w <- w - lr · weight · (w - theta)."""

    weight: float = 2.0
    inner_lr: float = 0.1
    inner_steps: int = 3

    personal: ClassVar[bool] = True

    unbatched: ClassVar[str | None] = "takes gradients at other weights"

    def slots(self):
        return (Slot("theta", "client", received),)

    def grads(self, grads, step):
        w = {n: step.weights[n].detach().clone() for n in grads}
        theta = dict(w)
        for _ in range(self.inner_steps):
            g = step.gradient(theta)
            theta = {n: t - self.inner_lr * (g[n] + self.weight * (t - w[n])) for n, t in theta.items()}
        step.remember("theta", {**step.weights, **theta})
        return {n: self.weight * (w[n] - theta[n]) for n in grads}

    def view(self, weights, view):
        return view.mine["theta"]


@dataclass(frozen=True, kw_only=True)
class FineTune(Component):
    """FedBABU: a head that is never trained in the rounds is tuned before the test, and forgotten."""

    epochs: float = 2.0

    personal: ClassVar[bool] = True

    def plan(self, phases):
        body = [replace(p, train="body") if p.train == "all" else p for p in phases]
        return [*body, Phase("tune", start="previous", epochs=self.epochs, optim={"momentum": 0.0}, test=True)]


MINIATURES = {
    "second_head": {"rod": SecondHead()},
    "projection": {"moon": Projection()},
    "meta_gradient": {"maml": MetaGradient()},
    "moreau_envelope": {"moreau": MoreauEnvelope()},
    "fine_tune": {"babu": FineTune()},
    "all": {"moon": Projection(), "maml": MetaGradient(), "rod": SecondHead(), "babu": FineTune()},
}
