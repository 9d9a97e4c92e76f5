"""FedDC, which is FedDyn's drift and SCAFFOLD's control in one yaml: the authors' formulas, written again."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd
from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.runs.plan import forecast
from fedexp.testing import CLIENTS, tiny_net, trial_after
from tests.helpers import Recorder, array, batches_of, jobs_of, opened, round_of, work

LR, DECAY, RHO, ALPHA = 0.1, 1e-3, 0.9, 0.01


def feddc():
    return {key: make(node) for key, node in composed(["algo=feddc"])["algo"].items()}


def test_a_client_written_out():
    """Loss + alpha/2 |w - (w_t - h_k)|² + <w, g - g_k>; h_k ← h_k + Δ; g_k ← g_k - g - Δ/(a lr)."""
    optimizer = Sgd(lr=LR, momentum=RHO, weight_decay=DECAY)
    with opened(feddc(), fraction=1.0, rounds=3, optimizer=optimizer) as engine:
        for _ in range(2):
            round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
        state = engine.progress.state
    received, g = state.model, state.slots["scaffold.c"]
    hk, gk = job.private["dyn.rk"], job.private["scaffold.ck"]
    net = tiny_net()
    load(net, received)
    velocity = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    for x, y in batches:
        net.zero_grad()
        pairs = list(net.named_parameters())
        penalty = sum((p - (received[n] - hk[n])).square().sum() for n, p in pairs)
        correction = sum((p * (g[n] - gk[n])).sum() for n, p in pairs)
        (F.cross_entropy(net(x), y) + ALPHA / 2 * penalty + correction).backward()
        with torch.no_grad():
            for n, p in pairs:
                velocity[n] = RHO * velocity[n] + p.grad + DECAY * p
                p.sub_(LR * velocity[n])
    a = sum((1 - RHO**i) / (1 - RHO) for i in range(1, len(batches) + 1))
    for n, w in tensors(net).items():
        moved = array(w) - array(received[n])
        np.testing.assert_allclose(array(result.uplink["model"][n]), array(w), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(array(result.private["dyn.rk"][n]), array(hk[n]) + moved, rtol=1e-3, atol=1e-4)
        new = array(gk[n]) - array(g[n]) - moved / (a * LR)
        np.testing.assert_allclose(array(result.private["scaffold.ck"][n]), new, rtol=1e-3, atol=1e-4)


def test_the_server_written_out():
    """w ← mean of the cohort's w_k + mean of all clients' h_k, g the mean of all g_k; the first mean is released."""
    recorder = Recorder()
    with opened({**feddc(), "r": recorder}, rounds=4) as engine:
        for _ in range(4):
            recorder.rounds.clear()
            state = round_of(engine)
            released = engine.algorithm.released(state)
            kept = [engine.progress.store.get(c) for c in range(CLIENTS)]
            for n, w in state.model.items():
                mean = np.mean([array(r.ends["local"][n]) for r in recorder.rounds], 0)
                h, g = (
                    sum(array(k[slot][n]) for k in kept if slot in k) / CLIENTS for slot in ("dyn.rk", "scaffold.ck")
                )
                np.testing.assert_allclose(array(w), mean + h, rtol=1e-3, atol=1e-5)
                np.testing.assert_allclose(array(released[n]), mean, rtol=1e-3, atol=1e-5)
                np.testing.assert_allclose(array(state.slots["scaffold.c"][n]), g, rtol=1e-3, atol=1e-4)


def test_twice_as_much_as_in_fedavg_is_sent_each_way():
    ours, plain = (forecast(trial_after(c, rounds=0).algorithm) for c in (feddc(), {}))
    assert [sum(way.values()) for way in ours] == [2 * sum(way.values()) for way in plain]
