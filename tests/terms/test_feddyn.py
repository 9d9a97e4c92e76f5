"""FedDyn: local steps and the server's rule in the paper's form, the law of the drifts, and what is tested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.feddyn import DynamicRegularizer
from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd
from fedexp.errors import PlanError
from fedexp.testing import CLIENTS, play, tiny_net, trial_after
from tests.helpers import Recorder, array, batches_of, jobs_of, opened, round_of, work

LR, DECAY, ALPHA = 0.1, 1e-3, 0.3


def drifts(engine, name):
    """A tensor of all clients' drifts; zero for those that never took part."""
    shape = engine.progress.state.model[name].shape
    kept = [engine.progress.store.get(c).get("dyn.rk") for c in range(CLIENTS)]
    return [np.zeros(shape) if tree is None else array(tree[name]) for tree in kept]


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("by_samples", [False, True])
def test_a_client_written_out(by_samples, rho):
    """Loss - <g_k, w> + alpha/2 |w - w_t|², then g_k ← g_k - alpha (w_k - w_t); what is kept is r_k = -g_k / alpha."""
    component = DynamicRegularizer(alpha=ALPHA, by_samples=by_samples)
    optimizer = Sgd(lr=LR, momentum=rho, weight_decay=DECAY)
    with opened({"dyn": component}, fraction=1.0, rounds=3, optimizer=optimizer) as engine:
        for _ in range(2):
            round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
        received, counts = engine.progress.state.model, engine.algorithm.facts.counts.sum(1)
    alpha = ALPHA / (counts[1] / counts.mean()).item() if by_samples else ALPHA
    assert alpha == ALPHA or abs(alpha / ALPHA - 1) > 0.1
    net = tiny_net()
    load(net, received)
    g = {n: -alpha * r for n, r in job.private["dyn.rk"].items()}
    assert max(v.abs().max() for v in g.values()) > 1e-2
    velocity = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    for x, y in batches:
        net.zero_grad()
        pairs = list(net.named_parameters())
        linear = sum((g[n] * p).sum() for n, p in pairs)
        square = sum((p - received[n]).square().sum() for n, p in pairs)
        (F.cross_entropy(net(x), y) - linear + alpha / 2 * square).backward()
        with torch.no_grad():
            for n, p in pairs:
                velocity[n] = rho * velocity[n] + p.grad + DECAY * p
                p.sub_(LR * velocity[n])
    for n, w in tensors(net).items():
        np.testing.assert_allclose(array(result.uplink["model"][n]), array(w), rtol=1e-3, atol=1e-5)
        new = array(g[n]) - alpha * (array(w) - array(received[n]))
        np.testing.assert_allclose(-alpha * array(result.private["dyn.rk"][n]), new, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_server_written_out(weighting):
    """h ← h - alpha/K Σ (w_k - w_t), w ← mean(w_k) - h/alpha; the mean is uniform and is what is released."""
    recorder = Recorder()
    with opened(
        {"dyn": DynamicRegularizer(alpha=ALPHA), "r": recorder}, norm=True, rounds=4, weighting=weighting
    ) as engine:
        h = {n: np.zeros(engine.progress.state.model[n].shape) for n in engine.algorithm.facts.layout.shared}
        for _ in range(4):
            recorder.rounds.clear()
            before = engine.progress.state.model
            state = round_of(engine)
            released = engine.algorithm.released(state)
            for n in before:
                ends = [array(r.ends["local"][n]) for r in recorder.rounds]
                mean = np.mean(ends, 0)
                if n not in h:  # running statistics: no drift, no shift
                    if state.model[n].is_floating_point():
                        np.testing.assert_allclose(array(state.model[n]), mean, rtol=1e-4, atol=1e-6)
                    continue
                h[n] = h[n] - ALPHA / CLIENTS * sum(end - array(before[n]) for end in ends)
                np.testing.assert_allclose(array(state.model[n]), mean - h[n] / ALPHA, rtol=1e-3, atol=1e-5)
                np.testing.assert_allclose(array(released[n]), mean, rtol=1e-3, atol=1e-5)
    assert max(np.abs(v / ALPHA).max() for v in h.values()) > 0.05


def test_r_is_the_mean_of_all_clients_drifts_after_every_round():
    with opened({"dyn": DynamicRegularizer(alpha=ALPHA)}, rounds=6) as engine:
        for _ in range(6):
            r = round_of(engine).slots["dyn.r"]
            for n, v in r.items():
                np.testing.assert_allclose(array(v), np.mean(drifts(engine, n), 0), rtol=1e-3, atol=1e-5)


def test_the_sent_model_can_be_released():
    mean, sent = (
        trial_after({"dyn": DynamicRegularizer(release=release)}, rounds=2, norm=True) for release in ("mean", "sent")
    )
    models = [e.algorithm.released(e.progress.state) for e in (mean, sent)]
    r = sent.progress.state.slots["dyn.r"]
    for n, w in sent.progress.state.model.items():
        assert torch.equal(models[1][n], w)
        expected = array(w - r[n]) if n in r else array(w)
        np.testing.assert_allclose(array(models[0][n]), expected, atol=1e-7)
    scores = [[record["aggregation"]["loss"] for record in e.records] for e in (mean, sent)]
    assert scores[0] != scores[1]


def test_a_strong_pull_holds_clients_near_the_received_model():
    moved = []
    for alpha in (1e-3, 9.0):  # lr · alpha < 1
        engine = trial_after({"dyn": DynamicRegularizer(alpha=alpha)}, rounds=0, optimizer=Sgd(lr=LR, momentum=0.0))
        end, start = work(engine, 0).uplink["model"], engine.progress.state.model
        moved.append(max((end[n] - start[n]).abs().max().item() for n in end))
    assert moved[1] < 0.5 * moved[0]


def test_what_is_sent_is_fedavgs():
    ours, plain = play({"dyn": DynamicRegularizer()}), play({})
    assert (ours.ledger.up, ours.ledger.down) == (plain.ledger.up, plain.ledger.down)


def test_what_it_refuses():
    with pytest.raises(PlanError, match=r"algo\.dyn\.during must name the one phase"):
        trial_after({"dyn": DynamicRegularizer(during=("local", "personal"))}, rounds=0)
    with pytest.raises(PlanError, match=r"algo\.dyn\.alpha must be greater than 0"):
        trial_after({"dyn": DynamicRegularizer(alpha=0.0)}, rounds=0)
