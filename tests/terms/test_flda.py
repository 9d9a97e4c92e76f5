"""FLDA: a client's round written out, the mixture as a distribution, and what the server is tested with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.flda import PrivateExpert
from fedexp.algos.scaffold import Scaffold
from fedexp.client.network import load
from fedexp.client.optim import Sgd
from fedexp.core.state import digest
from fedexp.testing import play, tiny_net
from tests.helpers import array, batches_of, jobs_of, opened, round_of, work, worker_of

EXPERT, GATE = "beside.flda/expert.", "beside.flda/gate."


def experts(job):
    """Shared network, private network and gate as a client begins with them."""
    shared, private, gate = tiny_net(), tiny_net(), nn.Linear(8, 1)
    load(shared, job.downlink["model"])
    load(private, {n.removeprefix(EXPERT): t for n, t in job.private["flda.expert"].items()})
    gate.load_state_dict({n.removeprefix(GATE): t for n, t in job.private["flda.gate"].items()})
    return shared, private, gate


def mixture(shared, private, gate, x):
    a = torch.sigmoid(gate(shared.features(x).detach()))
    return a * F.softmax(shared(x), 1) + (1 - a) * F.softmax(private(x), 1)


def test_a_client_written_out():
    with opened({"flda": PrivateExpert()}, fraction=1.0, optimizer=Sgd(lr=0.1, momentum=0.9)) as engine:
        round_of(engine)  # in the first round both networks stay alike, and the gate has nothing to learn
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
        decay = worker_of(engine).fitter.optimizer.weight_decay
    shared, private, gate = modules = experts(job)
    assert gate.weight.any()
    parameters = [p for m in modules for p in m.parameters()]
    sgd = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=decay)
    for x, y in batches:
        sgd.zero_grad()
        (-mixture(shared, private, gate, x)[torch.arange(len(y)), y].log().mean()).backward()
        sgd.step()
    got = {**result.uplink["model"], **result.private["flda.expert"], **result.private["flda.gate"]}
    for prefix, module in (("", shared), (EXPERT, private), (GATE, gate)):
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(array(got[prefix + name]), array(parameter), rtol=1e-3, atol=1e-5)


def test_only_the_shared_network_is_sent():
    ours, plain = play({"flda": PrivateExpert()}, norm=True), play({}, norm=True)
    assert (ours.ledger.up, ours.ledger.down) == (plain.ledger.up, plain.ledger.down)
    assert set(ours.progress.state.model) == set(plain.progress.state.model)


def test_clients_are_tested_with_the_mixture_and_the_server_without():
    with opened({"flda": PrivateExpert()}, fraction=1.0) as engine:
        state = round_of(engine)
        (job,) = jobs_of(engine, [1])
        worker = worker_of(engine)
        score, server = worker.test_client(job).after, list(worker.test_server(state.message, (0, 40)))
        own, everyones = worker.data.own_test(1), worker.data.test
    shared, private, gate = experts(job)
    p = mixture(shared, private, gate, own.x)
    torch.testing.assert_close(p.sum(1), torch.ones(len(p)))
    assert score.loss == pytest.approx(F.nll_loss(p.log(), own.y, reduction="sum").item(), rel=1e-4)
    plain = F.cross_entropy(shared(everyones.x), everyones.y, reduction="sum").item()
    assert sum(s.loss for s in server) == pytest.approx(plain, rel=1e-5)


def test_a_new_client_answers_half_with_each():
    """And the first step moves both networks alike, because they begin alike."""
    sgd = Sgd(lr=0.1, momentum=0.0, weight_decay=0.0)
    with opened({"flda": PrivateExpert()}, epochs=0.01, optimizer=sgd) as engine:
        (job,) = jobs_of(engine, [1])
        ((x, y),) = batches_of(engine, job, "local")
        result = work(engine, 1)
    net = tiny_net()
    F.cross_entropy(net(x), y).backward()
    for name, parameter in net.named_parameters():
        half = array(parameter - 0.1 * 0.5 * parameter.grad)
        np.testing.assert_allclose(array(result.uplink["model"][name]), half, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(array(result.private["flda.expert"][EXPERT + name]), half, rtol=1e-4, atol=1e-6)
    assert all(not t.any() for t in result.private["flda.gate"].values())


@pytest.mark.parametrize("other", [{"rs": RestrictedSoftmax(alpha=0.5)}, {"scaffold": Scaffold()}], ids=str)
def test_it_composes(other):
    flda = {"flda": PrivateExpert()}
    both = play({**other, **flda}, rounds=2).progress.state.model
    assert digest({"": both}) != digest({"": play(flda, rounds=2).progress.state.model})
    assert all(t.isfinite().all() for t in both.values())
