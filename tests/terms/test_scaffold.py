"""SCAFFOLD: local steps, option II, the server's control, and what they come to in the first round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.scaffold import Scaffold
from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import CLIENTS, play, tiny_net, trial_after
from tests.helpers import array, batches_of, jobs_of, opened, round_of, work

LR, DECAY = 0.1, 1e-3


def mean_control(engine):
    names = engine.algorithm.facts.layout.shared
    controls = [engine.progress.store.get(c).get("scaffold.ck") for c in range(CLIENTS)]
    shapes = engine.progress.state.model
    return {n: np.mean([np.zeros(shapes[n].shape) if k is None else array(k[n]) for k in controls], 0) for n in names}


def test_c_is_the_mean_of_all_ck_after_every_round():
    with opened({"scaffold": Scaffold()}, rounds=6) as engine:
        moved = 0.0
        for _ in range(6):
            c = round_of(engine).slots["scaffold.c"]
            for name, mean in mean_control(engine).items():
                np.testing.assert_allclose(array(c[name]), mean, rtol=1e-4, atol=1e-5)
                moved = max(moved, float(c[name].abs().max()))
    assert moved > 0.1


def test_the_public_codes_full_step_breaks_that_law():
    with opened({"scaffold": Scaffold(full_step=True)}, rounds=1) as engine:
        c = round_of(engine).slots["scaffold.c"]
        for name, mean in mean_control(engine).items():
            np.testing.assert_allclose(array(c[name]), mean * CLIENTS / 3, rtol=1e-4, atol=1e-6)


def test_first_round_is_fedavg_without_momentum():
    ours = play({"scaffold": Scaffold()}, rounds=1, optimizer=Sgd(lr=LR, momentum=0.9))
    plain = play({}, rounds=1, optimizer=Sgd(lr=LR, momentum=0.0))
    assert digest({"": ours.progress.state.model}) == digest({"": plain.progress.state.model})
    second = [play(c, rounds=2).progress.state.model for c in ({"scaffold": Scaffold()}, {})]
    assert digest({"": second[0]}) != digest({"": second[1]})


@pytest.mark.parametrize("momentum", [False, True])
def test_a_client_written_out(momentum):
    """w ← w - lr (g + wd w + c - c_k), then c_k⁺ = c_k - c + (w_t - w)/(a lr)."""
    scaffold = {"scaffold": Scaffold(momentum=momentum)}
    with opened(scaffold, fraction=1.0, rounds=3, optimizer=Sgd(lr=LR, momentum=0.9, weight_decay=DECAY)) as engine:
        for _ in range(2):
            round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
        state = engine.progress.state
    net = tiny_net()
    load(net, state.model)
    c, ck = state.slots["scaffold.c"], job.private["scaffold.ck"]
    rho = 0.9 if momentum else 0.0
    velocity = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    for x, y in batches:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for n, p in net.named_parameters():
                velocity[n] = rho * velocity[n] + p.grad + c[n] - ck[n] + DECAY * p
                p.sub_(LR * velocity[n])
    tau = len(batches)
    a = sum((1 - rho ** (tau - i)) / (1 - rho) for i in range(tau)) if momentum else tau
    for n, w in tensors(net).items():
        np.testing.assert_allclose(array(result.uplink["model"][n]), array(w), rtol=1e-4, atol=1e-5)
        new = array(ck[n]) - array(c[n]) + (array(state.model[n]) - array(w)) / (a * LR)
        np.testing.assert_allclose(array(result.private["scaffold.ck"][n]), new, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(array(result.uplink["scaffold.dc"][n]), new - array(ck[n]), rtol=1e-3, atol=1e-4)


def test_the_control_is_the_mean_gradient_without_drift():
    """With c = c_k = 0 and one step, c_k⁺ is that step's gradient, weight decay included."""
    with opened({"scaffold": Scaffold()}, epochs=0.01, optimizer=Sgd(lr=LR, weight_decay=DECAY)) as engine:
        (job,) = jobs_of(engine, [0])
        ((x, y),) = batches_of(engine, job, "local")
        result = work(engine, 0)
    net = tiny_net()
    F.cross_entropy(net(x), y).backward()
    for n, p in net.named_parameters():
        np.testing.assert_allclose(
            array(result.private["scaffold.ck"][n]), array(p.grad + DECAY * p), rtol=1e-3, atol=1e-5
        )


def test_the_control_knows_the_learning_rate_of_its_round():
    """Whatever the rate, the control after one step is the gradient, also where a schedule has changed the rate."""
    from fedexp.client.schedules import ExponentialDecay

    for lr, gamma, rounds in ((0.02, 1.0, 0), (LR, 0.5, 0), (LR, 0.5, 1)):
        sgd, rate = Sgd(lr=lr, weight_decay=0.0), ExponentialDecay(gamma=gamma)
        with opened({"scaffold": Scaffold()}, epochs=0.01, fraction=1.0, optimizer=sgd, schedule=rate) as engine:
            for _ in range(rounds):
                round_of(engine)
            (job,) = jobs_of(engine, [0])
            ((x, y),) = batches_of(engine, job, "local")
            result = work(engine, 0)
        net = tiny_net()
        load(net, job.downlink["model"])
        F.cross_entropy(net(x), y).backward()
        for n, p in net.named_parameters():
            np.testing.assert_allclose(array(result.private["scaffold.ck"][n]), array(p.grad), rtol=1e-3, atol=1e-4)


def test_server_lr_scales_the_servers_step():
    one, half = (play({"scaffold": Scaffold(server_lr=s)}, rounds=1).progress.state.model for s in (1.0, 0.5))
    start = tensors(tiny_net())
    for n, w in start.items():
        np.testing.assert_allclose(array(half[n] - w), 0.5 * array(one[n] - w), rtol=1e-3, atol=1e-6)


def test_running_statistics_have_no_control():
    engine = play({"scaffold": Scaffold()}, norm=True, rounds=2)
    assert set(engine.progress.state.slots["scaffold.c"]) == set(engine.algorithm.facts.layout.parameters)


def test_only_the_named_phase_loses_its_momentum():
    from fedexp.algos.inherited import InheritedPrivateModel

    engine = trial_after({"hpm": InheritedPrivateModel(), "scaffold": Scaffold()}, rounds=0)
    assert {p.name: dict(p.optim) for p in engine.algorithm.phases} == {"local": {"momentum": 0.0}, "personal": {}}
    with pytest.raises(PlanError, match=r"during must name the one phase"):
        trial_after({"scaffold": Scaffold(during=("*",))}, rounds=0)


def test_restricted_softmax_composes():
    both = play({"rs": RestrictedSoftmax(alpha=0.5), "scaffold": Scaffold()})
    assert digest({"": both.progress.state.model}) != digest({"": play({"scaffold": Scaffold()}).progress.state.model})
