"""Class prototypes: whose features, weighted how, kept how long; and the alignment with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedexp.algos.prototypes import Align, ClassMeans, class_sums
from fedexp.client.network import load
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import CLASSES, CLIENTS, play, tiny_net, trial_after
from tests.helpers import Recorder, array, jobs_of, opened, round_of, served, step, work


def features_of(engine, end, client, *, norm=False):
    """Features and labels of a client's training samples, with a network of the test's own."""
    net = tiny_net(norm=norm)
    load(net, end)
    net.eval()
    own = engine.executor._worker.data.own_train(client)
    with torch.no_grad():
        return array(net.features(own.x)), own.y.numpy()


@pytest.mark.parametrize("by", ["samples", "clients"])
def test_prototypes_written_out_over_rounds(by):
    """samples: Σ n_kc g_kc / Σ n_kc; clients: the mean of g_kc over owners. Features after training, in eval mode."""
    recorder = Recorder()
    with opened({"means": ClassMeans(by=by), "r": recorder}, norm=True, rounds=4) as engine:
        value, known = np.zeros((CLASSES, 8)), np.zeros(CLASSES)
        for _ in range(4):
            recorder.rounds.clear()
            means = round_of(engine).slots["means.means"]
            pairs = {r.client: features_of(engine, r.ends["local"], r.client, norm=True) for r in recorder.rounds}
            for c in range(CLASSES):
                owners = [h[y == c] for h, y in pairs.values() if (y == c).any()]
                if owners:
                    value[c] = (
                        np.concatenate(owners).mean(0) if by == "samples" else np.mean([o.mean(0) for o in owners], 0)
                    )
                    known[c] = 1
            np.testing.assert_allclose(array(means["value"]), value, rtol=1e-4, atol=1e-5)
            assert means["known"].tolist() == known.tolist()


def test_a_class_that_nobody_submits_keeps_its_prototype():
    components = {"means": ClassMeans()}
    engine = trial_after(components, rounds=0)
    model = {k: v for k, v in engine.progress.state.model.items() if k in engine.algorithm.travelling}

    def upload(weight):
        weight = torch.tensor(weight, dtype=torch.float32)
        return {"model": model, "means.sums": {"value": weight[:, None] * torch.arange(1.0, 9.0), "weight": weight}}

    first = served(components, {0: upload([2, 0, 1, 0]), 1: upload([1, 0, 0, 0])}, engine=engine)
    assert first.slots["means.means"]["known"].tolist() == [1, 0, 1, 0]
    second = served(components, {2: upload([0, 3, 0, 0])}, engine=engine, state=first)
    assert second.slots["means.means"]["known"].tolist() == [1, 1, 1, 0]
    assert torch.equal(second.slots["means.means"]["value"][[0, 2]], first.slots["means.means"]["value"][[0, 2]])
    third = served(components, {3: {"model": model}}, engine=engine, state=second)
    assert digest(third.slots) == digest(second.slots)


@pytest.mark.parametrize(("submit", "expected"), [(1.0, 5), (0.6, 3), (0.5, 2), (0.0, 0)])
def test_a_fixed_share_of_clients_submits(submit, expected):
    with opened({"means": ClassMeans(submit=submit)}, fraction=1.0, rounds=3) as engine:
        sets = []
        for _ in range(2):
            results = [work(engine, c) for c in range(CLIENTS)]
            sets.append({r.client for r in results if "means.sums" in r.uplink})
            assert all("means.means" in j.downlink for j in jobs_of(engine, range(CLIENTS)))
            round_of(engine)
    assert sets[0] == sets[1]
    assert len(sets[0]) == expected
    assert bool(engine.progress.state.slots["means.means"]["known"].any()) == (expected > 0)


def test_sums_over_several_chunks():
    h, y = torch.randn(10, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 3])
    whole = class_sums([(h, y)], 5)
    parts = class_sums([(h[:4], y[:4]), (h[4:], y[4:])], 5)
    assert whole["weight"].tolist() == [3, 3, 3, 1, 0]
    assert torch.allclose(whole["value"], parts["value"], atol=1e-6)
    assert torch.equal(whole["value"][4], torch.zeros(3))


# ---------------------------------------------------------------- alignment
def slots(value, known):
    return {"means": {"means": {"value": value, "known": torch.tensor(known, dtype=torch.float32)}}}


def test_alignment_written_out():
    """Mean over samples and dimensions of (h - g_y)²; a sample without prototype counts as zero."""
    rng = torch.Generator().manual_seed(0)
    h, g = torch.randn(5, 3, generator=rng, requires_grad=True), torch.randn(4, 3, generator=rng)
    y = torch.tensor([0, 1, 1, 3, 2])
    given = Align(weight=0.5).loss(step(h, y, slots=slots(g, [1, 1, 0, 1])))
    squares = (array(h) - array(g)[y.numpy()]) ** 2
    squares[y.numpy() == 2] = 0
    assert given.item() == pytest.approx(0.5 * squares.mean(), rel=1e-5)
    (gradient,) = torch.autograd.grad(given, h)
    assert torch.equal(gradient[4], torch.zeros(3))


def test_no_prototype_no_alignment():
    h, y = torch.randn(3, 2), torch.tensor([0, 1, 2])
    assert Align().loss(step(h, y, slots=slots(torch.zeros(4, 2), [0, 0, 0, 0]))) is None
    assert Align(weight=0.0).loss(step(h, y, slots=slots(torch.zeros(4, 2), [1, 1, 1, 1]))) is None
    engine = play({"means": ClassMeans(by="clients"), "align": Align()}, rounds=1)
    plain = play({}, rounds=1)
    assert digest({"": engine.progress.state.model}) == digest({"": plain.progress.state.model})
    later = play({"means": ClassMeans(by="clients"), "align": Align()}, rounds=2)
    assert digest({"": later.progress.state.model}) != digest({"": play({}, rounds=2).progress.state.model})


def test_alignment_needs_prototypes():
    with pytest.raises(PlanError, match="needs 'means'"):
        trial_after({"align": Align()}, rounds=0)
    with pytest.raises(PlanError, match="during must name the one phase"):
        trial_after({"means": ClassMeans(during=("*",))}, rounds=0)
    with pytest.raises(PlanError, match=r"algo\.means\.submit must be between 0 and 1"):
        trial_after({"means": ClassMeans(submit=1.5)}, rounds=0)
