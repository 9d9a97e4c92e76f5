"""FedProx: the pull, written out as a gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedprox import Proximal
from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd
from fedexp.core.state import digest
from fedexp.testing import play, tiny_net
from tests.helpers import array, batches_of, facts, jobs_of, opened, round_of, step, work


def pull(form, moved, n_tensors):
    """The gradient of the term at weight 1."""
    return moved if form == "squared" else moved.clamp(-1, 1) / moved.numel() / n_tensors


@pytest.mark.parametrize(("form", "weight"), [("squared", 0.7), ("smooth_l1", 50.0)])
def test_a_client_written_out(form, weight):
    """w ← w - lr v with v ← 0.9 v + g + weight (w - w_t), or the gradient of the mean smooth L1 distance."""
    sgd = Sgd(lr=0.1, momentum=0.9, weight_decay=0.0)
    with opened({"prox": Proximal(weight=weight, form=form)}, norm=True, fraction=1.0, optimizer=sgd) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
    net = tiny_net(norm=True)
    received = job.downlink["model"]
    load(net, received)
    parameters = dict(net.named_parameters())
    velocity = {n: torch.zeros_like(p) for n, p in parameters.items()}
    for x, y in batches:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for n, p in parameters.items():
                velocity[n] = 0.9 * velocity[n] + p.grad + weight * pull(form, p - received[n], len(parameters))
                p.sub_(0.1 * velocity[n])
    for n, w in tensors(net).items():
        np.testing.assert_allclose(array(result.uplink["model"][n]), array(w), rtol=1e-4, atol=1e-5)
    assert result.terms["local/prox"] > 1e-4


def test_only_what_is_trained_and_travels_is_pulled():
    received = {n: torch.zeros(2, 3) for n in ("sent", "private", "frozen")}
    weights = {n: torch.full((2, 3), 2.0, requires_grad=n != "frozen") for n in received}
    known = facts(initial=received)
    s = step(torch.zeros(1, 2), torch.tensor([0]))
    s.frame.facts = replace(known, layout=replace(known.layout, shared=("sent", "frozen")))
    s.frame.weights, s.frame.received = weights, received
    assert Proximal(weight=0.5).loss(s).item() == pytest.approx(0.5 / 2 * 6 * 4)
    assert Proximal(weight=0.5, form="smooth_l1").loss(s).item() == pytest.approx(0.5 * 1.5)


def test_a_stronger_pull_keeps_clients_closer():
    moved = []
    for weight in (0.0, 0.1, 1.0, 5.0):
        with opened({"prox": Proximal(weight=weight)}) as engine:
            model = work(engine, 1).uplink["model"]
        moved.append(sum(float((model[n] - w).detach().square().sum()) for n, w in tensors(tiny_net()).items()))
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.2 * moved[0]


def test_without_weight_it_is_fedavg():
    plain = play({}).progress.state.model
    for form in ("squared", "smooth_l1"):
        ours = play({"prox": Proximal(weight=0.0, form=form)}).progress.state.model
        assert digest({"": ours}) == digest({"": plain})
    assert digest({"": play({"prox": Proximal()}).progress.state.model}) != digest({"": plain})
