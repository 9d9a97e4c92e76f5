"""Ditto: the personal stream, written out, beside an untouched FedAvg."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.ditto import Ditto
from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd
from fedexp.core.state import digest
from fedexp.testing import play, tiny_net
from tests.helpers import array, batches_of, jobs_of, opened, round_of, work


@pytest.mark.parametrize("weight", [0.0, 0.1, 2.0])
def test_uploaded_stream_is_fedavg(weight):
    ours, plain = play({"ditto": Ditto(weight=weight)}, norm=True), play({}, norm=True)
    assert digest({"": ours.progress.state.model}) == digest({"": plain.progress.state.model})


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_personal_stream_written_out(weight):
    """v ← v - lr (g(v) + weight (v - w_t)) with momentum, from the kept v; w_t is the received model."""
    sgd = Sgd(lr=0.1, momentum=0.9, weight_decay=0.0)
    with opened({"ditto": Ditto(weight=weight)}, fraction=1.0, optimizer=sgd) as engine:
        round_of(engine)
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "ditto")
        result = work(engine, 1)
    net = tiny_net()
    load(net, job.private["ditto.model"])
    received = job.downlink["model"]
    velocity = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    for x, y in batches:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for n, p in net.named_parameters():
                velocity[n] = 0.9 * velocity[n] + p.grad + weight * (p - received[n])
                p.sub_(0.1 * velocity[n])
    for n, v in tensors(net).items():
        np.testing.assert_allclose(array(result.private["ditto.model"][n]), array(v), rtol=1e-4, atol=1e-5)


def test_personal_stream_begins_at_the_initial_model_and_has_its_own_epochs():
    """A client that appears late starts from w⁰, not from what it receives."""
    sgd = Sgd(lr=1e-12, momentum=0.0, weight_decay=0.0)
    with opened({"ditto": Ditto(weight=0.0, epochs=3)}, optimizer=Sgd(lr=0.3)) as engine:
        round_of(engine)
        new = next(c for c in range(5) if not engine.progress.store.get(c))
        engine.executor._worker.fitter.optimizer = sgd
        (job,) = jobs_of(engine, [new])
        assert len(batches_of(engine, job, "ditto")) == 3 * len(batches_of(engine, job, "local")) // 2
        result = work(engine, new)
    for n, w in tensors(tiny_net()).items():
        assert torch.allclose(result.private["ditto.model"][n], w, atol=1e-9)
        assert not torch.equal(job.downlink["model"][n], w)


def test_test_uses_the_personal_model():
    with opened({"ditto": Ditto()}) as engine:
        round_of(engine)
        client = next(c for c in range(5) if engine.progress.store.get(c))
        (job,) = jobs_of(engine, [client])
        score = engine.executor._worker.test_client(job).after
    personal = engine.progress.store.get(client)["ditto.model"]
    net = tiny_net()
    load(net, personal)
    held = engine.executor._worker.data.own_test(client)
    correct = int((net(held.x).argmax(1) == held.y).sum())
    assert (sum(score.correct), score.n) == (correct, len(held))
    assert score.loss == pytest.approx(F.cross_entropy(net(held.x), held.y, reduction="sum").item(), rel=1e-5)


def test_the_personal_stream_has_statistics_of_its_own():
    with opened({"ditto": Ditto(epochs=3)}, fraction=1.0, norm=True) as engine:
        uploaded = round_of(engine).model
        personal = engine.progress.store.get(0)["ditto.model"]
        (counter,) = (n for n in personal if n.endswith("num_batches_tracked"))
        assert int(personal[counter]) == 3 * steps_of_an_epoch(engine, 0)
        (mean,) = (n for n in personal if n.endswith("running_mean"))
        assert not torch.equal(personal[mean], uploaded[mean])


def steps_of_an_epoch(engine, client):
    (job,) = jobs_of(engine, [client])
    return len(batches_of(engine, job, "local")) // 2  # a trial's local phase has two
