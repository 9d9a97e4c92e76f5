"""Centralized training: FedAvg with one client, which is plain SGD over the union of what was dealt out."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from fedexp.client.network import load, tensors
from fedexp.config.compose import composed
from fedexp.config.identity import run_id
from tests.helpers import TINY, array, batches_of, jobs_of, played, tiny, worker_of

RUN = [o for o in TINY if not o.startswith("algo=")]


def test_it_is_fedavg_with_the_run_setting():
    preset, setting = composed([*RUN, "algo=centralized"]), composed([*RUN, "algo=fedavg", "centralized=true"])
    assert preset["centralized"]
    assert run_id(preset) == run_id(setting)
    assert not composed([*RUN, "algo=fedavg"])["centralized"]


def test_one_client_has_everything_and_takes_every_step(tmp_path):
    dealt = tiny("algo=fedavg")
    engine = played(tmp_path / "run", "algo=centralized", "rounds=2", "local.epochs=2")
    assert engine.algorithm.facts.n_clients == 1
    assert torch.equal(engine.algorithm.facts.counts[0], dealt.algorithm.facts.counts.sum(0))
    (job,) = jobs_of(engine, [0])
    samples = int(engine.algorithm.facts.counts.sum())
    assert len(batches_of(engine, job, "local")) == 2 * -(-samples // 32)


def test_a_round_is_plain_sgd(tmp_path):
    engine = played(tmp_path / "run", "algo=centralized", "rounds=1")
    worker, initial = worker_of(engine), engine.algorithm.facts.initial
    after = {n: t.clone() for n, t in engine.progress.state.model.items()}
    engine.progress.state.round = 0
    (job,) = jobs_of(engine, [0])
    net, settings = worker.net, worker.fitter.optimizer
    load(net, initial)
    sgd = torch.optim.SGD(
        net.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    for x, y in batches_of(engine, job, "local"):
        sgd.zero_grad()
        F.cross_entropy(net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 100)
        sgd.step()
    for n, w in tensors(net).items():
        np.testing.assert_allclose(array(after[n]), array(w), rtol=1e-4, atol=1e-6)
