"""pFedMe: both streams written out, the law of the Moreau envelope, and which model is tested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.pfedme import MoreauEnvelope
from fedexp.algos.scaffold import Scaffold
from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import play, tiny_net, trial_after
from tests.helpers import array, batches_of, jobs_of, opened, round_of, work, worker_of

LR = 0.1


def gradient(weights, batch):
    x, y = batch
    leaves = {n: w.detach().clone().requires_grad_() for n, w in weights.items()}
    loss = F.cross_entropy(torch.func.functional_call(tiny_net(), leaves, (x.double(),)), y)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def written_out(weights, batches, method):
    u = {n: w.double() for n, w in weights.items()}
    theta = dict(u)
    rate = LR * method.weight if method.step is None else method.step
    for batch in batches:
        theta = theta if method.carry else dict(u)
        for _ in range(method.inner_steps):
            g = gradient(theta, batch)
            pull = {n: method.weight * (t - u[n]) + method.decay * t for n, t in theta.items()}
            theta = {n: t - method.inner_lr * (g[n] + pull[n]) for n, t in theta.items()}
        u = {n: v - rate * (v - theta[n]) for n, v in u.items()}
    return u, theta


@pytest.mark.parametrize(
    "settings",
    [{}, {"weight": 2.0, "step": None}, {"carry": False, "weight": 0.5}, {"decay": 0.1, "inner_steps": 1}],
    ids=str,
)
def test_a_client_written_out(settings):
    method = MoreauEnvelope(**{"inner_lr": 0.05, "inner_steps": 3, "step": 0.6, **settings})
    with opened({"moreau": method}, fraction=1.0, optimizer=Sgd(lr=LR, momentum=0.9, weight_decay=1e-2)) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
    assert len(batches) > 2
    u, theta = written_out(job.downlink["model"], batches, method)
    for n in u:
        np.testing.assert_allclose(array(result.uplink["model"][n]), array(u[n]), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(array(result.private["moreau.theta"][n]), array(theta[n]), rtol=1e-3, atol=1e-5)


def test_enough_inner_steps_find_the_proximal_point():
    """There weight · (u - theta) = g(theta): u moves along the gradient of the envelope."""
    method = MoreauEnvelope(weight=3.0, inner_lr=0.1, inner_steps=150, step=None)
    with opened({"moreau": method}, epochs=0.01, optimizer=Sgd(lr=LR)) as engine:
        (job,) = jobs_of(engine, [1])
        (batch,) = batches_of(engine, job, "local")
        result = work(engine, 1)
    theta = {n: w.double() for n, w in result.private["moreau.theta"].items()}
    g = gradient(theta, batch)
    for n, w in tensors(tiny_net()).items():
        np.testing.assert_allclose(3.0 * array(w - theta[n]), array(g[n]), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(array(w - result.uplink["model"][n]), LR * array(g[n]), rtol=1e-3, atol=1e-5)


def test_the_personal_model_is_tested_and_the_server_has_its_own_step():
    with opened({"moreau": MoreauEnvelope()}, fraction=1.0, norm=True) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        worker = worker_of(engine)
        score, own = worker.test_client(job).after, worker.data.own_test(1)
    net = tiny_net(norm=True)
    load(net, job.private["moreau.theta"])
    loss = F.cross_entropy(net.eval()(own.x), own.y, reduction="sum").item()
    assert score.loss == pytest.approx(loss, rel=1e-5)
    one, half = (
        play({"moreau": MoreauEnvelope(server_lr=b)}, rounds=1, norm=True).progress.state.model for b in (1.0, 0.5)
    )
    for n, w in tensors(tiny_net(norm=True)).items():
        if "running" in n or "num" in n:
            assert torch.equal(one[n], half[n])
        else:
            np.testing.assert_allclose(array(half[n] - w), 0.5 * array(one[n] - w), rtol=1e-3, atol=1e-6)


def test_a_model_that_could_not_move_is_refused():
    with pytest.raises(PlanError, match=r"algo\.moreau\.step must be a number where weight is 0"):
        trial_after({"moreau": MoreauEnvelope(weight=0.0, step=None)}, rounds=0)


def test_it_composes():
    moreau = {"moreau": MoreauEnvelope(inner_steps=2)}
    alone = play(moreau, rounds=2).progress.state.model
    for both in ({"rs": RestrictedSoftmax(alpha=0.5), **moreau}, {**moreau, "scaffold": Scaffold()}):
        made = play(both, rounds=2).progress.state.model
        assert digest({"": made}) != digest({"": alone})
        assert all(t.isfinite().all() for t in made.values())


def test_a_gradient_that_was_edited_before_is_refused():
    """Control variates in front would be lost."""
    with pytest.raises(PlanError, match=r"component 'moreau' replaces .* Put it in front of 'scaffold'"):
        trial_after({"scaffold": Scaffold(), "moreau": MoreauEnvelope()}, rounds=0)
    trial_after({"moreau": MoreauEnvelope(), "scaffold": Scaffold()}, rounds=0)
