"""A generator of features, trained at the server, from which clients learn classes that they lack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.algos.transfer import distillation
from fedexp.core.component import Component
from fedexp.core.devices import send, to_device
from fedexp.core.ranges import Count, CountOr0, NotNegative, Positive, ShareAbove0
from fedexp.core.state import Init, Out, Slot, Tree, Upload, per_class, pick, snapshot
from fedexp.core.views import Facts, LocalRound, ServerRound, Step


@dataclass(frozen=True, kw_only=True)
class FeatureGenerator(Component):
    """Learns features of each class from the clients' classifiers, and trains every client's classifier on them.

    Zhu et al., Data-Free Knowledge Distillation for Heterogeneous Federated Learning (FedGen), ICML 2021, Alg. 1. The
    generator G makes features of noise and a label: linear, batch norm, ReLU, linear. Each round the server trains it
    with Adam for ``steps`` on labels drawn as the clients' counts say (eq. 4),

    ``logits``: CE(softmax(mean_k f_k(G(ε, y))), y), with f_k the classifier that client k sent;
    ``losses``: Σ_k n_ky / n_y · CE(softmax(f_k(G(ε, y))), y), the authors' code;

    plus ``diversity`` · exp(-mean over pairs of |ε - ε'|² · |G - G'|, means over dimensions), of that code. Clients
    minimise (eq. 5) CE + ``weight`` · CE(f(G(ε, y')), y'), with ``samples`` labels y' drawn in the same way. The first
    round has no generator.

    Global: the model, and the generator with the labels' counts, which are sent down with it; clients send their model
    and their counts. Personal: none; clients are tested with their locally trained models.

    Deviations: the paper's two terms have weight 1. The authors' code begins with ``weight: 10`` and ``latent: 10``,
    the weight of KL(softmax(f(G(ε, y))) ‖ softmax(z)) for the labels y of the batch, and multiplies both by ``decay:
    0.98`` each round, the first also by ``samples`` over the batch size. It draws labels uniformly and keeps Adam's
    state; here Adam begins anew each round. PFLlib and FL-bench have other sizes and steps, and no diversity; FL-bench
    draws the client's own labels only, from which nothing is learned about classes that it lacks. Clients run the
    generator with its running statistics, the server trains it with those of its batches. A restricted softmax does not
    act on generated features.
    """

    weight: NotNegative = 1.0
    latent: NotNegative = 0.0
    decay: ShareAbove0 = 1.0
    samples: Count = 32
    teacher: Literal["logits", "losses"] = "logits"
    diversity: NotNegative = 1.0
    steps: CountOr0 = 50
    lr: Positive = 3e-4
    weight_decay: NotNegative = 1e-2
    batch_size: Count = 32
    noise: Count = 64
    hidden: Count = 512

    keeps: ClassVar[tuple[str, ...]] = ("model",)
    needs_classifier: ClassVar[bool] = True
    terms: ClassVar[tuple[str, ...]] = ("generated", "latent")
    unbatched: ClassVar[str | None] = "draws random numbers at every step"

    def problems(self, facts: Facts) -> Iterable[str]:
        """The generator has batch norm."""
        if self.batch_size < 2:
            yield "batch_size must be at least 2: the generator normalises by its batch"

    def slots(self) -> Sequence[Slot]:
        """The generator, and how many samples of each label trained it, sent down."""
        return Slot("generator", "server", self._fresh, down=True), Slot("labels", "server", per_class(), down=True)

    def uploads(self) -> Sequence[Upload]:
        """The client's class counts."""
        return (Upload("counts", per_class(), "keep"),)

    # ------------------------------------------------------------ the generator
    def _net(self, n_classes: int, feature_dim: int) -> nn.Sequential:
        """Its structure, without values."""
        with torch.device("meta"):
            return nn.Sequential(
                nn.Linear(self.noise + n_classes, self.hidden), nn.BatchNorm1d(self.hidden), nn.ReLU(),
                nn.Linear(self.hidden, feature_dim),
            )  # fmt: skip

    def _fresh(self, init: Init) -> Tree:
        """Its initial values, as torch draws them for linear layers."""
        norm = {f"1.{n}": t for n, t in nn.BatchNorm1d(self.hidden).state_dict().items()}
        linear: Tree = {}
        for name, like in self._net(init.n_classes, init.feature_dim).named_parameters():
            if name not in norm:
                inputs = self.hidden if name.startswith("3.") else self.noise + init.n_classes
                linear[name] = (2 * torch.rand(like.shape, generator=init.generator) - 1) / math.sqrt(inputs)
        return {**linear, **norm}

    def _generate(self, facts: Facts, *, training: bool) -> Callable[[Tree, Tensor, Tensor], Tensor]:
        """Features of noise and labels under given weights."""
        net = self._net(facts.n_classes, facts.feature_dim).train(training)

        def features(tree: Tree, noise: Tensor, y: Tensor) -> Tensor:
            given = torch.cat([noise, F.one_hot(y, facts.n_classes).to(noise)], 1)
            made: Tensor = torch.func.functional_call(net, dict(tree), (given,))
            return made

        return features

    # ------------------------------------------------------------ client
    def loss(self, step: Step) -> dict[str, Tensor] | None:
        """Cross-entropy on generated features; with ``latent`` also what they say of the batch's labels."""
        labels = step.mine["labels"]["value"]
        if self.weight == self.latent == 0 or not step.once("trained", lambda: bool(labels.any())):
            return None
        generate = step.once("generate", lambda: self._generate(step.facts, training=False))
        rng, tree = step.generator("features"), step.mine["generator"]
        fade = self.decay**step.round
        terms: dict[str, Tensor] = {}
        if self.weight:
            y = torch.multinomial(labels, self.samples, replacement=True, generator=rng)
            z = step.classify(generate(tree, self._noise(y, rng), y))
            terms["generated"] = self.weight * fade * F.cross_entropy(z, y)
        if self.latent:
            with torch.no_grad():
                z = step.classify(generate(tree, self._noise(step.y, rng), step.y))
            terms["latent"] = self.latent * fade * distillation(step.classify(step.h), z, temperature=1.0)
        return terms

    def _noise(self, y: Tensor, rng: torch.Generator) -> Tensor:
        return torch.randn(len(y), self.noise, generator=rng, device=y.device)

    def finish(self, local: LocalRound) -> Out:
        """Sends the counts."""
        return Out(uploads={"counts": {"value": local.info.counts}})

    # ------------------------------------------------------------ server
    def serve(self, server: ServerRound) -> dict[str, Tree | dict[int, Tree]]:
        """Trains the generator through the clients' classifiers."""
        clients = sorted(server.kept["counts"].keys() & server.kept["model"].keys())
        if not (self.steps and clients):
            return {}
        counts = torch.stack([server.kept["counts"][c]["value"] for c in clients])
        classifier = server.facts.layout.part("classifier")
        models = [pick({**server.model, **server.kept["model"][c]}, classifier) for c in clients]
        models = [*to_device({str(n): m for n, m in enumerate(models)}, server.device).values()]
        generate, rng = self._generate(server.facts, training=True), server.generator("features")
        tree = {n: t.to(server.device) for n, t in snapshot(server.mine["generator"]).items()}
        shares = (counts / counts.sum(0).clamp(min=1)).to(server.device)
        trained = [t.requires_grad_() for n, t in tree.items() if "running" not in n and t.is_floating_point()]
        adam = torch.optim.Adam(trained, self.lr, weight_decay=self.weight_decay, fused=True)
        for _ in range(self.steps):
            y = torch.multinomial(counts.sum(0), self.batch_size, replacement=True, generator=rng)
            y, noise = send(y, server.device), send(self._noise(y, rng), server.device)
            h = generate(tree, noise, y)
            loss = self._taught([server.classify(m, h) for m in models], y, shares)
            total = loss + self.diversity * _sameness(noise, h)
            adam.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
            adam.step()
        server.record("loss", loss.item())
        return {"generator": tree, "labels": {"value": counts.sum(0)}}

    def _taught(self, logits: list[Tensor], y: Tensor, shares: Tensor) -> Tensor:
        """How far the clients' classifiers are from the labels on generated features."""
        if self.teacher == "logits":
            return F.cross_entropy(torch.stack(logits).mean(0), y)
        losses = torch.stack([F.cross_entropy(z, y, reduction="none") for z in logits])
        return (shares[:, y] * losses).sum(0).mean()

    def neutral(self) -> FeatureGenerator:
        """What the generator makes counts for nothing."""
        return replace(self, weight=0.0, latent=0.0)


def _sameness(noise: Tensor, h: Tensor) -> Tensor:
    """exp(-mean over pairs of distances of noise times distances of features): 1 where all features are alike."""
    apart = (noise[:, None] - noise[None]).square().mean(2) * (h[:, None] - h[None]).abs().mean(2)
    return torch.exp(-apart.mean())
