"""Gradients at other weights, several batches in a step, and slots that are remembered while training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.scaffold import Scaffold
from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd, TorchOptimizer
from fedexp.core.component import Component, Phase
from fedexp.core.seeding import seeded
from fedexp.core.state import Out, Slot, number, received, snapshot
from fedexp.errors import ClientError, PlanError
from fedexp.models.split import SplitModel
from fedexp.testing import CLIENTS, play, tiny_net
from tests.helpers import batches_of, jobs_of, opened, work
from tests.miniatures import MetaGradient, MoreauEnvelope

LOOPS = [FabricLoop, TrainerLoop]
SGD = Sgd(lr=0.1, momentum=0.0, weight_decay=0.0)


def gradient(net, x, y, weights=None):
    """The gradient of the cross-entropy, at other weights and without their leaving a trace."""
    before = snapshot(tensors(net))
    load(net, weights or {})
    grads = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
    load(net, before)
    return dict(zip([n for n, _ in net.named_parameters()], grads, strict=True))


def descend(net, grads, lr=0.1):
    load(net, {n: p.detach() - lr * grads[n] for n, p in net.named_parameters()})


# ---------------------------------------------------------------- the formulas written again
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("norm", [False, True])
def test_first_order_meta_gradients(loop, norm):
    with opened({"maml": MetaGradient(alpha=0.3)}, loop=loop, norm=norm, optimizer=SGD) as engine:
        result = work(engine, 1)
        (job,) = jobs_of(engine, [1])
        net = tiny_net(norm=norm).train()
        pairs = batches_of(engine, job, "local")
    assert len(pairs) == 3  # two epochs of three batches, two a step
    for (x0, y0), (x1, y1) in pairs:
        g = gradient(net, x0, y0)
        inner = {n: p.detach() - 0.3 * g[n] for n, p in net.named_parameters()}
        outer = gradient(net, x1, y1, inner)
        with torch.no_grad():
            net(x0)  # the step's own forward pass is the one that moves the running statistics
        descend(net, outer)
    for name, value in tensors(net).items():
        torch.testing.assert_close(result.uplink["model"][name], value.detach())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("norm", [False, True])
def test_moreau_envelopes(loop, norm):
    method = MoreauEnvelope(weight=2.0, inner_lr=0.1, inner_steps=3)
    with opened({"moreau": method}, loop=loop, norm=norm, optimizer=SGD) as engine:
        result = work(engine, 1)
        (job,) = jobs_of(engine, [1])
        net = tiny_net(norm=norm).train()
        batches = batches_of(engine, job, "local")
    for x, y in batches:
        w = {n: p.detach().clone() for n, p in net.named_parameters()}
        theta = dict(w)
        for _ in range(3):
            g = gradient(net, x, y, theta)
            theta = {n: t - 0.1 * (g[n] + 2.0 * (t - w[n])) for n, t in theta.items()}
        with torch.no_grad():
            net(x)
        statistics = snapshot(dict(net.named_buffers()))
        descend(net, {n: 2.0 * (w[n] - theta[n]) for n in w})
    for name, value in tensors(net).items():
        torch.testing.assert_close(result.uplink["model"][name], value.detach())
    for name, value in {**theta, **statistics}.items():
        torch.testing.assert_close(result.private["moreau.theta"][name], value)


# ---------------------------------------------------------------- the whole objective
@dataclass(frozen=True, kw_only=True)
class Prox(Component):
    """A term that depends on the live weights."""

    def loss(self, step):
        return 0.5 * sum((step.weights[n] - w).square().sum() for n, w in step.received.items() if "weight" in n)


@dataclass(frozen=True, kw_only=True)
class Asks(Component):
    """Asks for gradients at random weights, and writes down what it is shown before and after."""

    seen: list = field(default_factory=list, compare=False)

    def grads(self, grads, step):
        before = snapshot(step.weights)
        rng = step.generator("elsewhere")
        point = {n: torch.randn(g.shape, generator=rng) for n, g in grads.items()}
        here, there = step.gradient(dict(step.weights)), step.gradient(point)
        self.seen.append(
            (before, snapshot(step.weights), snapshot(grads), here, point, there, step.x, step.y, step.info)
        )
        assert step.frame.key == "asks"
        return grads


@pytest.mark.parametrize("norm", [False, True])
def test_a_gradient_elsewhere_is_that_of_the_whole_objective_and_leaves_no_trace(norm):
    asks = Asks()
    components = {"rs": RestrictedSoftmax(alpha=0.5), "prox": Prox(), "asks": asks}
    with opened(components, norm=norm) as engine:
        result = work(engine, 1)
        received = engine.progress.state.model
    net = tiny_net(norm=norm).train()
    for before, after, grads, here, point, there, x, y, info in asks.seen:
        assert all(torch.equal(before[n], v) for n, v in after.items())
        for name, grad in grads.items():
            torch.testing.assert_close(here[name], grad)
        load(net, {**before, **point})
        z = net(x) * torch.where(info.owned, 1.0, 0.5)
        pull = sum(0.5 * (p - received[n]).square().sum() for n, p in net.named_parameters() if "weight" in n)
        expected = torch.autograd.grad(F.cross_entropy(z, y) + pull, list(net.parameters()))
        for (name, _), grad in zip(net.named_parameters(), expected, strict=True):
            torch.testing.assert_close(there[name], grad)
    with opened({"rs": RestrictedSoftmax(alpha=0.5), "prox": Prox()}, norm=norm) as engine:
        plain = work(engine, 1)
    assert all(torch.equal(v, result.uplink["model"][n]) for n, v in plain.uplink["model"].items())
    assert plain.terms == result.terms  # those elsewhere are not counted


def test_a_part_of_the_weights_is_enough():
    @dataclass(frozen=True, kw_only=True)
    class Part(Component):
        def grads(self, grads, step):
            assert step.gradient({"classifier.weight": torch.zeros(4, 8)}).keys() == grads.keys()
            return grads

    play({"part": Part()}, rounds=1)


def test_scaffold_corrects_the_gradient_that_is_returned():
    """The control variates are added once, to the meta-gradient, and are what option II makes of the displacement."""
    with opened({"maml": MetaGradient(), "scaffold": Scaffold()}, optimizer=SGD, fraction=1.0) as engine:
        result = work(engine, 1)
        start = engine.progress.state.model
    with opened({"maml": MetaGradient()}, optimizer=SGD, fraction=1.0) as engine:
        plain = work(engine, 1)
    for name in result.private["scaffold.ck"]:
        torch.testing.assert_close(result.uplink["model"][name], plain.uplink["model"][name])  # c = c_k = 0 at first
        moved = (start[name] - result.uplink["model"][name]) / (3 * 0.1)
        torch.testing.assert_close(result.private["scaffold.ck"][name], moved)
    engine = play({"maml": MetaGradient(), "scaffold": Scaffold()}, rounds=3)
    assert engine.records[-1]["aggregation"]["accuracy"] > 0.5


# ---------------------------------------------------------------- what is handed back
@dataclass(frozen=True, kw_only=True)
class Rebuilt(Component):
    """Hands back the same gradients, stored otherwise."""

    rows_first: bool = True

    def grads(self, grads, step):
        if self.rows_first:
            return {n: g.flatten().view(g.shape) for n, g in grads.items()}
        return {n: g.transpose(0, -1).contiguous().transpose(0, -1) for n, g in grads.items()}


def convolutional(*, norm=False):
    with seeded(0, "convolutional"):
        layers = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()]
        return SplitModel(nn.Sequential(*layers), nn.Linear(16, 4), 16)


@pytest.mark.parametrize(
    "optimizer", [Sgd(lr=0.1), TorchOptimizer(torch.optim.Adam, {"lr": 0.01, "fused": True})], ids=str
)
@pytest.mark.parametrize("net", [tiny_net, convolutional])
@pytest.mark.parametrize("rows_first", [True, False])
def test_a_gradient_may_be_stored_in_any_order(optimizer, net, rows_first):
    plain, rebuilt = (play(c, net=net, optimizer=optimizer) for c in ({}, {"c": Rebuilt(rows_first=rows_first)}))
    assert plain.digests() == rebuilt.digests()


@dataclass(frozen=True, kw_only=True)
class ClassifierOnly(Component):
    def grads(self, grads, step):
        return {n: g for n, g in grads.items() if n.startswith("classifier")}


@pytest.mark.parametrize("loop", [FabricLoop, BatchedLoop])
def test_a_weight_whose_gradient_is_left_out_is_not_moved(loop):
    optimizer = Sgd(lr=0.1, momentum=0.9, weight_decay=0.0)
    engine = play(
        {"c": ClassifierOnly()}, loop=loop, optimizer=optimizer, group=CLIENTS if loop is BatchedLoop else None
    )
    start, model = engine.algorithm.facts.initial, engine.progress.state.model
    moved = {n for n in model if not torch.allclose(model[n], start[n], atol=1e-6)}
    assert moved == {"classifier.weight"}


@pytest.mark.parametrize("loop", [FabricLoop, BatchedLoop])
def test_a_gradient_of_what_is_not_trained_is_refused(loop):
    class Misspelt(Component):
        def grads(self, grads, step):
            return {**grads, "classifiers.weight": grads["classifier.weight"]}

    with pytest.raises(
        (ClientError, PlanError), match=r"'c' returned classifiers\.weight, which this phase does not train"
    ):
        play({"c": Misspelt()}, loop=loop, group=CLIENTS if loop is BatchedLoop else None)


@pytest.mark.parametrize("loop", [FabricLoop, BatchedLoop])
def test_a_gradient_of_another_shape_is_refused_and_not_stretched(loop):
    class Scalars(Component):
        def grads(self, grads, step):
            return {n: torch.zeros(()) for n in grads}

    with pytest.raises((ClientError, PlanError), match=r"'c' returned .* in the shape \(\), not \("):
        play({"c": Scalars()}, loop=loop, group=CLIENTS if loop is BatchedLoop else None)


def test_logits_of_the_step_have_a_gradient_in_grads_too():
    class Asks(Component):
        def grads(self, grads, step):
            weight = step.weights["classifier.weight"]
            (own,) = torch.autograd.grad(F.cross_entropy(step.classify(step.h), step.y), [weight])
            torch.testing.assert_close(own, grads["classifier.weight"])
            return grads

    play({"c": Asks()})


# ---------------------------------------------------------------- who may ask
@dataclass(frozen=True, kw_only=True)
class AsksTooEarly(Component):
    def loss(self, step):
        step.gradient({})


@dataclass(frozen=True, kw_only=True)
class AsksWithin(Component):
    """Asks for a gradient whose loss asks for one."""

    def loss(self, step):
        if step.frame.cache.get("asking"):
            step.gradient({})

    def grads(self, grads, step):
        step.frame.cache["asking"] = True
        return step.gradient({})


@pytest.mark.parametrize("component", [AsksTooEarly(), AsksWithin()])
def test_gradients_are_for_those_who_edit_gradients(component):
    with pytest.raises(ClientError, match=r"step\.gradient can be asked for in grads only"):
        play({"c": component})


# ---------------------------------------------------------------- batches
@dataclass(frozen=True, kw_only=True)
class Takes(Component):
    batches: int = 2
    seen: list = field(default_factory=list, compare=False)

    def plan(self, phases):
        return [replace(p, batches=self.batches) for p in phases]

    def loss(self, step):
        self.seen.append([step.batch(i) for i in range(self.batches)])
        assert step.batch(0)[0] is step.x
        with pytest.raises(IndexError):
            step.batch(self.batches)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("batches", "steps"), [(1, 6), (2, 3), (3, 2), (4, 1), (7, 1)])
def test_a_step_of_several_batches_goes_on_where_the_last_one_ended(loop, batches, steps):
    taken, single = Takes(batches=batches), Takes(batches=1)
    for takes in (taken, single):
        with opened({"t": takes}, loop=loop) as engine:
            work(engine, 1)
    assert len(taken.seen) == steps
    flat = [pair for step in taken.seen for pair in step]
    for (x, y), ((wanted, labels),) in zip(flat, single.seen, strict=False):
        assert torch.equal(x, wanted)
        assert torch.equal(y, labels)


def test_halves_of_a_phase_with_several_batches_continue_each_other():
    @dataclass(frozen=True, kw_only=True)
    class Halves(Takes):
        during: tuple[str, ...] = ("*",)

        def plan(self, phases):
            (phase,) = super().plan(phases)
            rest = Phase("rest", start="previous", begin=0.5, continues=True, batches=2)
            return [replace(phase, end=0.5), rest]

        def finish(self, local):
            self.seen.append(dict(local.steps))
            return Out()

        def loss(self, step):
            if step.phase != "eval":
                super().loss(step)

    halves, whole = Halves(), Takes()
    for takes in (halves, whole):
        with opened({"t": takes}, epochs=4) as engine:
            work(engine, 1)
    assert halves.seen.pop() == {"local": 3, "rest": 3}
    for one, two in zip(halves.seen, whole.seen, strict=True):
        assert all(torch.equal(a[0], b[0]) for a, b in zip(one, two, strict=True))


# ---------------------------------------------------------------- remembering
@dataclass(frozen=True, kw_only=True)
class Remembers(Component):
    """Keeps the weights before the last step, and counts steps; ``finish`` may say otherwise."""

    insists: bool = False
    during: tuple[str, ...] = ("*",)

    def slots(self):
        return Slot("model", "client", received), Slot("count", "client", number(0.0))

    def logits(self, z, step):
        step.remember("model", step.weights)
        step.remember("count", {"value": step.mine["count"]["value"] + 1.0 + step.index})
        return z

    def finish(self, local):
        return Out(slots={"count": {"value": torch.tensor(-1.0)}} if self.insists else {})


def test_the_last_value_that_was_remembered_is_kept_and_nothing_of_a_test():
    with opened({"r": Remembers()}) as engine:
        result = work(engine, 1)
    assert result.private["r.count"]["value"] == 6
    end = result.uplink["model"]
    kept = result.private["r.model"]
    assert kept.keys() == end.keys()
    assert not any(torch.equal(kept[n], end[n]) for n in end)  # a copy, which the last step did not touch
    assert all(not v.requires_grad for v in kept.values())


def test_what_finish_hands_back_comes_last():
    with opened({"r": Remembers(insists=True)}) as engine:
        assert work(engine, 1).private["r.count"]["value"] == -1
