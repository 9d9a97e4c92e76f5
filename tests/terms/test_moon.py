"""MOON: the contrast of three models, written out; whose model is the previous one; what travels."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.moon import ModelContrast
from fedexp.client.network import add_modules, load
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import CLASSES, play, tiny_net, trial_after
from tests.helpers import batches_of, jobs_of, opened, round_of, work, worker_of
from tests.terms.training import assert_same, train

MOON = ModelContrast(weight=3.0, temperature=0.4, projection=5)


def network(components, tree, *, norm=False):
    net = add_modules(tiny_net(norm=norm), components, 0, CLASSES)
    load(net, tree)
    return net


def frozen(net, tree):
    other = copy.deepcopy(net).eval().requires_grad_(requires_grad=False)
    load(other, tree)
    return other


@pytest.mark.parametrize("projection", [None, 5])
@pytest.mark.parametrize("norm", [False, True])
def test_a_client_written_out(projection, norm):
    """CE - weight · mean log(e^{cos(z, z_t)/τ} / (e^{cos(z, z_t)/τ} + e^{cos(z, z_p)/τ}))."""
    components = {"moon": replace(MOON, projection=projection)}
    with opened(components, norm=norm, fraction=1.0) as engine:
        round_of(engine)
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
    net = network(components, job.downlink["model"], norm=norm)
    received, previous = frozen(net, job.downlink["model"]), frozen(net, job.private["moon.previous"])

    def z(model, h):
        return h if projection is None else model.module_beside("moon", "projection")(h)

    def cosine(a, b):
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp(min=1e-8)

    def loss(x, y):
        h = net.features(x)
        near, far = (torch.exp(cosine(z(net, h), z(m, m.features(x))) / 0.4) for m in (received, previous))
        return F.cross_entropy(net.classifier(h), y) - 3.0 * torch.log(near / (near + far)).mean()

    train(net, batches, loss)
    assert_same(result.uplink["model"], net)
    assert_same(result.private["moon.previous"], net)


def test_the_projection_head_has_two_layers_and_a_relu():
    head = network({"moon": MOON}, {}).module_beside("moon", "projection")
    assert [tuple(p.shape) for p in head.parameters()] == [(8, 8), (8,), (5, 8), (5,)]
    h = torch.randn(4, 8)
    w1, b1, w2, b2 = head.parameters()
    torch.testing.assert_close(head(h), (h @ w1.T + b1).clamp(min=0) @ w2.T + b2)


def test_the_first_round_is_fedavg():
    """There is no previous model; the head has not moved."""
    ours, plain = (play(c, rounds=1, norm=True).progress.state.model for c in ({"moon": MOON}, {}))
    assert digest({"": {n: ours[n] for n in plain}}) == digest({"": plain})
    initial = trial_after({"moon": MOON}, rounds=0, norm=True).algorithm.facts.initial
    head = ours.keys() - plain.keys()
    assert len(head) == 4
    for n in head:
        torch.testing.assert_close(ours[n], initial[n])  # a mean of equal numbers
    later = [play(c, rounds=3, norm=True).progress.state.model for c in ({"moon": MOON}, {})]
    assert digest({"": {n: later[0][n] for n in plain}}) != digest({"": later[1]})


def test_a_previous_model_that_is_the_received_one_has_no_gradient():
    components = {"moon": replace(MOON, projection=None)}
    with opened(components) as engine:
        (job,) = jobs_of(engine, [1])
        private = {"moon.previous": dict(engine.progress.state.model), "moon.seen": {"value": torch.tensor(1)}}
        ours = worker_of(engine).work(replace(job, private=private))
        plain = work(engine, 1)
    assert ours.terms["local/moon"] == pytest.approx(3.0 * 0.693147, rel=1e-5)
    for n, w in plain.uplink["model"].items():
        torch.testing.assert_close(ours.uplink["model"][n], w, rtol=1e-5, atol=1e-6)


def test_a_client_that_is_not_drawn_keeps_its_last_local_model():
    with opened({"moon": MOON}, fraction=0.4, rounds=8) as engine:
        kept = {}
        waited = 0
        for number in range(8):
            round_of(engine)
            cohort = engine.sampler(number)
            for client, slots in kept.items():
                if client not in cohort:
                    waited += 1
                    assert digest(engine.progress.store.get(client)) == slots
            kept.update({c: digest(engine.progress.store.get(c)) for c in cohort})
    assert waited > 3


def test_bytes_are_those_of_fedavg_and_of_the_head():
    plain = play({}, rounds=1).ledger
    features = play({"moon": replace(MOON, projection=None)}, rounds=1).ledger
    head = play({"moon": MOON}, rounds=1).ledger
    assert (features.up, features.down) == (plain.up, plain.down)
    assert head.up - plain.up == head.down - plain.down == 3 * 4 * (8 * 8 + 8 + 5 * 8 + 5)


def test_without_weight_it_is_fedavg():
    ours, plain = (play(c).progress.state.model for c in ({"moon": replace(MOON, weight=0.0)}, {}))
    assert digest({"": {n: ours[n] for n in plain}}) == digest({"": plain})


def test_the_previous_model_is_that_of_one_phase():
    with pytest.raises(PlanError, match=r"algo\.moon\.during must name the one phase"):
        trial_after({"moon": replace(MOON, during=("*",))}, rounds=0)
