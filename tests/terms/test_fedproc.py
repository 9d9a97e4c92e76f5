"""FedProc: the contrast with prototypes and its share of the loss, written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedproc import PrototypeContrast
from fedexp.algos.prototypes import ClassMeans
from fedexp.client.network import load
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import CLASSES, play, tiny_net, trial_after
from tests.helpers import array, batches_of, jobs_of, opened, round_of, step, work
from tests.terms.training import assert_same, train


def a_step(known=(1, 1, 1, 1), round_=3):
    rng = torch.Generator().manual_seed(0)
    h, g = torch.randn(5, 3, generator=rng, requires_grad=True), torch.randn(4, 3, generator=rng)
    means = {"value": g, "known": torch.tensor(known, dtype=torch.float32)}
    s = step(h, torch.tensor([0, 1, 1, 3, 2]), slots={"means": {"means": means}})
    s.z = torch.randn(5, 4, generator=rng)
    s.ce = F.cross_entropy(s.z, s.y)
    s.frame.round = round_
    return s, g


def log_softmax(z):
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("known", [(1, 1, 1, 1), (1, 0, 1, 1)])
def test_the_loss_written_out(similarity, known):
    """a CE + (1 - a) L over samples whose class has a prototype, CE over the others; a = 3/10."""
    s, g = a_step(known)
    given = s.ce + PrototypeContrast(similarity=similarity, temperature=0.4).loss(s)
    h, y = array(s.h), s.y.numpy()
    unit = array(g) / np.linalg.norm(array(g), axis=1, keepdims=True)
    if similarity == "cosine":
        h = h / np.linalg.norm(h, axis=1, keepdims=True)
    classes = np.flatnonzero(known)
    by_prototype = log_softmax(h @ unit[classes].T / 0.4)
    by_classifier = log_softmax(array(s.z))
    total = 0.0
    for i, c in enumerate(y):
        total -= (0.3 if known[c] else 1.0) * by_classifier[i, c]
        if known[c]:
            total -= 0.7 * by_prototype[i, list(classes).index(c)]
    assert given.item() == pytest.approx(total / 5, rel=1e-5)
    (gradient,) = torch.autograd.grad(given, s.h)
    assert torch.isfinite(gradient).all()
    assert (gradient.abs().sum(1) > 0).tolist() == [bool(known[c]) for c in y]


def test_the_contrast_gives_way_over_the_rounds():
    proc = PrototypeContrast()
    full = proc.loss(a_step(round_=0)[0]).item()
    for number in range(10):  # the run has ten
        assert proc.loss(a_step(round_=number)[0]).item() == pytest.approx((1 - number / 10) * full, rel=1e-5)
    assert replace(proc, rounds=4).loss(a_step(round_=1)[0]).item() == pytest.approx(0.75 * full, rel=1e-5)
    assert replace(proc, rounds=4).loss(a_step(round_=4)[0]) is None
    assert proc.loss(a_step(known=(0, 0, 0, 0))[0]) is None


@pytest.mark.parametrize("norm", [False, True])
def test_a_client_written_out(norm):
    components = {"means": ClassMeans(), "proc": PrototypeContrast()}
    with opened(components, norm=norm, fraction=1.0, rounds=4) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [2])
        batches = batches_of(engine, job, "local")
        result = work(engine, 2)
    means = job.downlink["means.means"]
    assert means["known"].tolist() == [1.0] * CLASSES
    net = tiny_net(norm=norm)
    load(net, job.downlink["model"])

    def loss(x, y):
        h = net.features(x)
        cosines = F.cosine_similarity(h[:, None], means["value"][None], dim=2)
        return 0.25 * F.cross_entropy(net.classifier(h), y) + 0.75 * F.cross_entropy(cosines / 0.5, y)

    train(net, batches, loss)
    assert_same(result.uplink["model"], net)


def test_prototypes_are_sent_with_the_model():
    """C · d numbers each way as FedMR, table 3, counts them, and C beside them."""
    components = {"means": ClassMeans(), "proc": PrototypeContrast()}
    ours, plain = play(components, rounds=1).ledger, play({}, rounds=1).ledger
    assert ours.up - plain.up == ours.down - plain.down == 3 * 4 * (CLASSES * 8 + CLASSES)


def test_the_first_round_is_fedavg_and_so_is_one_round_of_contrast():
    def model(proc, rounds):
        return digest({"": play({"means": ClassMeans(), "proc": proc}, rounds=rounds).progress.state.model})

    plain = [digest({"": play({}, rounds=r).progress.state.model}) for r in (1, 3)]
    assert model(PrototypeContrast(), 1) == plain[0]
    assert model(PrototypeContrast(rounds=1), 3) == plain[1]
    assert model(PrototypeContrast(), 3) != plain[1]


def test_it_needs_prototypes():
    with pytest.raises(PlanError, match="needs 'means'"):
        trial_after({"proc": PrototypeContrast()}, rounds=0)
