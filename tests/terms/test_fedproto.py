"""FedProto: the distance of class means, the nearest prototype, and models that never travel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedproto import FedProto
from fedexp.algos.private import PrivatePart
from fedexp.algos.prototypes import Align, ClassMeans
from fedexp.client.network import load
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import play, tiny_net, trial_after
from tests.helpers import array, jobs_of, opened, round_of, step

RNG = torch.Generator().manual_seed(0)
METHOD = {"private": PrivatePart(part="all"), "means": ClassMeans(), "proto": FedProto()}


def slots(value, known):
    return {"means": {"means": {"value": value, "known": torch.tensor(known, dtype=torch.float32)}}}


def test_the_pull_written_out():
    """weight · Σ_c ‖mean of the batch's features of c - prototype of c‖, over classes that have both."""
    h, g = torch.randn(6, 3, generator=RNG, requires_grad=True), torch.randn(4, 3, generator=RNG)
    y = torch.tensor([0, 1, 1, 3, 1, 0])
    given = FedProto(weight=0.5).loss(step(h, y, slots=slots(g, [1, 1, 1, 0])))
    rows, labels = array(h), y.numpy()
    expected = sum(np.linalg.norm(rows[labels == c].mean(0) - array(g)[c]) for c in (0, 1))
    assert given.item() == pytest.approx(0.5 * expected, rel=1e-5)
    (gradient,) = torch.autograd.grad(given, h)
    assert torch.equal(gradient[3], torch.zeros(3))
    away = rows[labels == 1].mean(0) - array(g)[1]
    np.testing.assert_allclose(array(gradient[1]), 0.5 * away / np.linalg.norm(away) / 3, rtol=1e-4)


def test_a_class_mean_on_its_prototype_has_a_finite_gradient():
    h = torch.ones(2, 3, requires_grad=True)
    given = FedProto().loss(step(h, torch.tensor([0, 0]), slots=slots(torch.ones(4, 3), [1, 1, 1, 1])))
    (gradient,) = torch.autograd.grad(given, h)
    assert given.item() == 0
    assert torch.equal(gradient, torch.zeros(2, 3))


def test_the_pull_on_samples_is_the_mean_square():
    h, g, y = torch.randn(5, 3, generator=RNG), torch.randn(4, 3, generator=RNG), torch.tensor([0, 1, 1, 3, 2])
    given = FedProto(weight=0.3, form="samples").loss(step(h, y, slots=slots(g, [1, 1, 1, 1])))
    assert given.item() == pytest.approx(0.3 * ((array(h) - array(g)[y.numpy()]) ** 2).mean(), rel=1e-5)


@pytest.mark.parametrize("form", ["classes", "samples"])
def test_without_weight_or_prototypes_there_is_no_pull(form):
    h, y = torch.randn(3, 2, generator=RNG), torch.tensor([0, 1, 2])
    assert FedProto(form=form).loss(step(h, y, slots=slots(torch.zeros(4, 2), [0, 0, 0, 0]))) is None
    assert FedProto(form=form, weight=0.0).loss(step(h, y, slots=slots(torch.ones(4, 2), [1, 1, 1, 1]))) is None


def test_the_nearest_prototype_answers_in_tests_only():
    h, g = torch.randn(40, 3, generator=RNG), torch.randn(4, 3, generator=RNG)
    z, y = torch.randn(40, 4, generator=RNG), torch.zeros(40, dtype=torch.long)
    known_but_one = slots(g, [1, 0, 1, 1])
    given = {p: FedProto().logits(z, step(h, y, slots=known_but_one, phase=p)) for p in ("local", "eval")}
    assert torch.equal(given["local"], z)
    distance = np.linalg.norm(array(h)[:, None] - array(g), axis=2)
    distance[:, 1] = np.inf
    assert given["eval"].argmax(1).tolist() == distance.argmin(1).tolist()
    assert torch.isfinite(given["eval"]).all()
    known = [0, 2, 3]
    np.testing.assert_allclose(array(given["eval"])[:, known], -distance[:, known], rtol=1e-5)
    for other in (FedProto(answer="head"), FedProto()):
        none = slots(g, [0, 0, 0, 0]) if other.answer == "prototype" else slots(g, [1, 1, 1, 1])
        assert torch.equal(other.logits(z, step(h, y, slots=none, phase="eval")), z)


@pytest.mark.parametrize("answer", ["prototype", "head"])
def test_a_client_is_tested_with_its_own_model(answer):
    with opened({**METHOD, "proto": FedProto(answer=answer)}, fraction=1.0) as engine:
        means = round_of(engine).slots["means.means"]
        (job,) = jobs_of(engine, [0])
        score = engine.executor._worker.test_client(job).after
        held = engine.executor._worker.data.own_test(0)
    net = tiny_net()
    load(net, job.private["private.part"])
    with torch.no_grad():
        h = net.features(held.x)
        z = net.classifier(h) if answer == "head" else -torch.cdist(h, means["value"])
    assert means["known"].all()
    assert score.loss == pytest.approx(F.cross_entropy(z, held.y, reduction="sum").item(), rel=1e-4)
    assert sum(score.correct) == int((z.argmax(1) == held.y).sum())


def test_only_prototypes_are_sent():
    """C · d features and C numbers each way, four bytes each."""
    engine = play(METHOD, fraction=1.0, rounds=2)
    assert engine.ledger.up == engine.ledger.down == 2 * 5 * 4 * (4 * 8 + 4)
    assert not engine.algorithm.travelling


def test_the_first_round_is_local_training_and_the_second_is_not():
    def clients(components, rounds):
        engine = play(components, fraction=1.0, rounds=rounds)
        return digest({str(c): engine.progress.store.get(c)["private.part"] for c in range(5)})

    alone = {"private": PrivatePart(part="all")}
    assert clients(METHOD, 1) == clients(alone, 1)
    assert clients(METHOD, 2) != clients(alone, 2)
    assert clients({**METHOD, "proto": FedProto(weight=0.0)}, 2) == clients(alone, 2)


def test_the_pull_on_samples_trains_like_alignment():
    def state(pull):
        return digest({"": play({"means": ClassMeans(), "pull": pull}).progress.state.model})

    assert state(FedProto(form="samples", weight=0.7)) == state(Align(weight=0.7))
    assert state(FedProto(weight=0.7)) != state(Align(weight=0.7))


def test_it_needs_prototypes_and_a_weight():
    with pytest.raises(PlanError, match="needs 'means'"):
        trial_after({"proto": FedProto()}, rounds=0)
    with pytest.raises(PlanError, match=r"algo\.proto\.weight must be 0 or more"):
        trial_after({**METHOD, "proto": replace(FedProto(), weight=-1.0)}, rounds=0)
