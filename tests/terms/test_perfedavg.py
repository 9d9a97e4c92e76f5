"""PerFedAvg: both forms written out with autograd, and the step before a test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.perfedavg import MetaGradient
from fedexp.algos.scaffold import Scaffold
from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd
from fedexp.client.schedules import ConstantRate, ExponentialDecay
from fedexp.core.component import Component
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import play, tiny_net, trial_after
from tests.helpers import array, batches_of, jobs_of, opened, round_of, work, worker_of

ALPHA, DELTA, LR, META_LR = 0.2, 1e-2, 0.1, 0.05


def loss_at(weights, batch):
    x, y = batch
    return F.cross_entropy(torch.func.functional_call(tiny_net(), weights, (x,)), y)


def gradient(weights, batch):
    """By autograd, in double precision."""
    leaves = {n: w.detach().clone().requires_grad_() for n, w in weights.items()}
    loss = loss_at(leaves, (batch[0].double(), batch[1]))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def stepped(weights, direction, rate):
    return {n: w - rate * direction[n] for n, w in weights.items()}


def written_out(weights, groups, form):
    weights = {n: w.double() for n, w in weights.items()}
    velocity = {n: torch.zeros_like(w) for n, w in weights.items()}
    for group in groups:
        v = gradient(stepped(weights, gradient(weights, group[0]), ALPHA), group[1])
        d = v
        if form == "hessian_free":
            up, down = (gradient(stepped(weights, v, -sign * DELTA), group[2]) for sign in (1, -1))
            d = {n: v[n] - ALPHA * (up[n] - down[n]) / (2 * DELTA) for n in v}
        velocity = {n: 0.9 * velocity[n] + d[n] for n in d}
        weights = stepped(weights, velocity, META_LR)
    return weights


@pytest.mark.parametrize(("form", "batches"), [("first_order", 2), ("hessian_free", 3)])
def test_a_client_written_out(form, batches):
    meta = MetaGradient(alpha=ALPHA, lr=META_LR, form=form, delta=DELTA)
    sgd = Sgd(lr=LR, momentum=0.9, weight_decay=0.0)
    with opened({"meta": meta}, fraction=1.0, epochs=3, optimizer=sgd) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        groups = batches_of(engine, job, "local")
        result = work(engine, 1)
    assert [len(g) for g in groups] == [batches] * (9 // batches)  # three batches an epoch, so fewer steps than FedAvg
    for name, w in written_out(job.downlink["model"], groups, form).items():
        np.testing.assert_allclose(array(result.uplink["model"][name]), array(w), rtol=1e-3, atol=1e-4)


def test_the_difference_is_the_hessian_times_the_gradient():
    """One step: d = v - alpha · H(w; b2) v, with H by autograd."""
    meta = MetaGradient(alpha=ALPHA, form="hessian_free", delta=DELTA)
    sgd = Sgd(lr=LR, momentum=0.0, weight_decay=0.0)
    with opened({"meta": meta}, epochs=0.01, optimizer=sgd) as engine:
        (job,) = jobs_of(engine, [1])
        (group,) = batches_of(engine, job, "local")
        sent = work(engine, 1).uplink["model"]
    start = {n: w.double() for n, w in tensors(tiny_net()).items()}
    v = gradient(stepped(start, gradient(start, group[0]), ALPHA), group[1])
    leaves = [w.detach().clone().requires_grad_() for w in start.values()]
    x, y = group[2]
    loss = loss_at(dict(zip(start, leaves, strict=True)), (x.double(), y))
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    inner = sum((g * v[n]).sum() for n, g in zip(start, first, strict=True))
    product = dict(zip(start, torch.autograd.grad(inner, leaves), strict=True))
    for n, w in start.items():
        np.testing.assert_allclose(array(sent[n] - w), array(-LR * (v[n] - ALPHA * product[n])), rtol=0.02, atol=2e-5)
        assert product[n].abs().max() > 1e-2


def test_a_test_comes_after_one_step_at_alpha():
    with opened({"meta": MetaGradient(alpha=ALPHA)}, fraction=1.0, batch_size=100) as engine:
        state = round_of(engine)
        (job,) = jobs_of(engine, [1])
        worker = worker_of(engine)
        result = worker.test_client(job)
        own, train = worker.data.own_test(1), worker.data.own_train(1)
    adapted = stepped(state.model, gradient({n: w.double() for n, w in state.model.items()}, (train.x, train.y)), ALPHA)
    for score, weights in ((result.after, adapted), (result.unadapted, state.model)):
        net = tiny_net()
        load(net, weights)
        loss = F.cross_entropy(net(own.x), own.y, reduction="sum").item()
        assert score.loss == pytest.approx(loss, rel=1e-4)
    assert result.after.loss != pytest.approx(result.unadapted.loss, rel=1e-3)


def test_phases():
    engine = trial_after({"meta": MetaGradient(alpha=ALPHA, lr=META_LR, test_epochs=2.0)}, rounds=0)
    (local,), (adapt,) = engine.algorithm.phases, engine.algorithm.test_phases
    assert (local.batches, local.optim) == (2, {"lr": META_LR})
    assert (adapt.epochs, adapt.optim) == (2.0, {"lr": ALPHA, "momentum": 0.0, "weight_decay": 0.0})
    assert not trial_after({"meta": MetaGradient(alpha=0.0)}, rounds=0).algorithm.test_phases


def test_without_alpha_it_is_sgd_on_every_second_batch():
    sgd = Sgd(lr=LR, momentum=0.9, weight_decay=0.0)
    with opened({"meta": MetaGradient(alpha=0.0)}, epochs=4, optimizer=sgd) as engine:
        (job,) = jobs_of(engine, [0])
        groups = batches_of(engine, job, "local")
        sent = work(engine, 0).uplink["model"]
    net = tiny_net()
    plain = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    for _, (x, y) in groups:
        plain.zero_grad()
        F.cross_entropy(net(x), y).backward()
        plain.step()
    for n, w in tensors(net).items():
        np.testing.assert_allclose(array(sent[n]), array(w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["first_order", "hessian_free"])
def test_it_composes(form):
    """A restricted softmax acts in every gradient; control variates are added to the last one."""
    meta = {"meta": MetaGradient(form=form)}
    alone = play(meta, rounds=2).progress.state.model
    for both in ({"rs": RestrictedSoftmax(alpha=0.5), **meta}, {**meta, "scaffold": Scaffold()}):
        made = play(both, rounds=2).progress.state.model
        assert digest({"": made}) != digest({"": alone})
        assert all(t.isfinite().all() for t in made.values())


def test_a_gradient_that_was_edited_before_is_refused():
    """Control variates in front would be lost."""
    with pytest.raises(PlanError, match=r"component 'meta' replaces .* Put it in front of 'scaffold'"):
        trial_after({"scaffold": Scaffold(), "meta": MetaGradient()}, rounds=0)
    trial_after({"meta": MetaGradient(), "scaffold": Scaffold()}, rounds=0)
    with pytest.raises(PlanError, match=r"component 'meta' replaces .* which component 'decay' has edited before"):
        trial_after({"decay": Decay(during=("*",)), "meta": MetaGradient()}, rounds=0)
    trial_after({"decay": Decay(during=("adapt",)), "meta": MetaGradient()}, rounds=0)


@dataclass(frozen=True, kw_only=True)
class Decay(Component):
    """Edits gradients in any phase that it is told to."""

    def grads(self, grads, step):
        return {n: g + 0.01 * step.weights[n].detach() for n, g in grads.items()}


@pytest.mark.parametrize("schedule", [ConstantRate(), ExponentialDecay(gamma=0.1)], ids=lambda s: type(s).__name__)
def test_no_schedule_scales_the_step_before_a_test(schedule):
    meta = {"meta": MetaGradient(alpha=0.5)}
    with opened(meta, fraction=1.0, batch_size=100, rounds=5, schedule=schedule) as engine:
        state = [round_of(engine) for _ in range(2)][-1]
        (job,) = jobs_of(engine, [1])
        worker = worker_of(engine)
        tested, own, train = worker.test_client(job), worker.data.own_test(1), worker.data.own_train(1)
    model = {n: w.double() for n, w in state.model.items()}
    adapted = stepped(model, gradient(model, (train.x, train.y)), 0.5)
    expected = loss_at(adapted, (own.x.double(), own.y)).item() * len(own)
    assert tested.after.loss == pytest.approx(expected, rel=1e-4)
