"""FD and FedDistill: the tables, the mean of the others, the loss, and what is sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.label_logits import LabelLogits
from fedexp.algos.scaffold import Scaffold
from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import CLASSES, play, tiny_net, trial_after
from tests.helpers import array, batches_of, jobs_of, opened, round_of, work, worker_of

KINDS = [{"share_model": True}, {"share_model": False}, {"share_model": True, "average": "probabilities"}]


def table_of(weights, samples, average):
    """Mean logits, or probabilities, of each label, by a loop; nan for labels that are not there."""
    net = tiny_net()
    load(net, weights)
    z, y = array(net.eval()(samples.x)), samples.y.numpy()
    if average == "probabilities":
        z = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return np.array([z[y == c].mean(0) if (y == c).any() else np.full(CLASSES, np.nan) for c in range(CLASSES)])


def trained(result, method):
    return result.uplink["model"] if method.share_model else result.private["logits.model"]


def others_mean(tables, client):
    """The mean over the other clients that have a label; nan where nobody else has it."""
    rest = np.stack([t for c, t in tables.items() if c != client])
    there = ~np.isnan(rest)
    return np.where(there.any(0), np.where(there, rest, 0).sum(0) / np.maximum(there.sum(0), 1), np.nan)


@pytest.mark.parametrize("client", [1, 2])  # of which the second has a label that nobody teaches it
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_client_learns_from_the_latest_tables_of_the_others(kind, client):
    """Over rounds with different cohorts: each client's table is in the sum once, as it was sent last."""
    method = LabelLogits(weight=0.7, **kind)
    tables = {}
    sgd = Sgd(lr=0.1, momentum=0.9, weight_decay=0.0)
    with opened({"logits": method}, rounds=6, optimizer=sgd) as engine:
        data = worker_of(engine).data
        for _ in range(4):
            cohort = engine.sampler(engine.progress.state.round)
            tables |= {c: table_of(trained(work(engine, c), method), data.own_train(c), method.average) for c in cohort}
            round_of(engine)
        total = engine.progress.state.slots["logits.total"]
        np.testing.assert_allclose(array(total["value"]), np.nansum(list(tables.values()), 0), rtol=1e-3, atol=1e-4)
        assert set(tables) >= {0, 1}
        (job,) = jobs_of(engine, [client])
        batches = batches_of(engine, job, "local")
        result = work(engine, client)
    net = tiny_net()
    load(net, job.downlink["model"] if method.share_model else job.private["logits.model"])
    teacher = others_mean(tables, client)
    known = torch.tensor(~np.isnan(teacher).any(1))
    targets = torch.tensor(np.nan_to_num(teacher)).float()
    targets = F.softmax(targets, 1) if method.average == "logits" else targets
    plain = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        z = net(x)
        soft = -(targets[y] * F.log_softmax(z, 1)).sum(1)
        plain.zero_grad()
        (F.cross_entropy(z, y) + 0.7 * (soft * known[y]).sum() / len(y)).backward()
        plain.step()
    for n, w in tensors(net).items():
        np.testing.assert_allclose(array(trained(result, method)[n]), array(w), rtol=1e-3, atol=1e-5)


def test_a_label_that_only_one_client_has_teaches_nobody():
    """Class 3 belongs to client 2 alone, whose own table does not teach it."""
    with opened({"logits": LabelLogits()}, fraction=1.0) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [2])
        total, own = (job.downlink["logits.total"], job.private["logits.own"])
        counts = worker_of(engine).data.info(2).counts
        engine_counts = engine.algorithm.facts.counts
    assert counts[3] > 0
    assert int((engine_counts[:, 3] > 0).sum()) == 1
    assert (total["weight"] - own["weight"])[3] == 0
    torch.testing.assert_close(total["value"][3], own["value"][3])
    assert torch.equal(total["weight"], (engine_counts > 0).sum(0).float())


def test_the_teacher_may_be_the_mean_of_all():
    from tests.helpers import step

    total = {"value": torch.arange(16.0).view(4, 4), "weight": torch.tensor([2.0, 1.0, 0.0, 1.0])}
    own = {"value": torch.eye(4), "weight": torch.tensor([1.0, 0.0, 0.0, 1.0])}
    here = step(torch.zeros(1, 4), torch.tensor([0]), counts=[1, 0, 0, 1], slots={"mine": {"total": total, "own": own}})
    targets, known = LabelLogits(teacher="all")._teacher(here)
    assert known.tolist() == [1, 1, 0, 1]
    torch.testing.assert_close(targets[0], F.softmax(total["value"][0] / 2, 0))
    targets, known = LabelLogits()._teacher(here)
    assert known.tolist() == [1, 1, 0, 0]
    torch.testing.assert_close(targets[0], F.softmax(total["value"][0] - own["value"][0], 0))


def test_a_replaced_classifier_is_refused():
    """Tables are made by the network's own, which nobody has trained then."""
    from fedexp.algos.fedgela import EquiangularHead

    with pytest.raises(PlanError, match=r"'logits' runs the network's own classifier .* component 'etf' replaces"):
        trial_after({"etf": EquiangularHead(), "logits": LabelLogits()}, rounds=0)


def test_without_the_model_only_tables_are_sent():
    numbers = 4 * (CLASSES * CLASSES + CLASSES)
    bare, plain = play({"logits": LabelLogits(share_model=False)}), play({})
    calls = bare.sampler.size * bare.rounds
    assert (bare.ledger.up, bare.ledger.down) == (calls * numbers, calls * numbers)
    assert play({"logits": LabelLogits()}).ledger.up == plain.ledger.up + calls * numbers
    assert not bare.algorithm.global_view
    assert bare.algorithm.personal


def test_a_client_keeps_its_model_for_ever():
    with opened({"logits": LabelLogits(share_model=False)}, fraction=1.0) as engine:
        round_of(engine)
        kept = engine.progress.store.get(1)["logits.model"]
        (job,) = jobs_of(engine, [1])
        worker = worker_of(engine)
        score, own = worker.test_client(job).after, worker.data.own_test(1)
    net = tiny_net()
    load(net, kept)
    loss = F.cross_entropy(net(own.x), own.y, reduction="sum").item()
    assert score.loss == pytest.approx(loss, rel=1e-5)


def test_the_first_round_is_fedavg():
    ours, plain = (play(c, rounds=1).progress.state.model for c in ({"logits": LabelLogits(weight=1.0)}, {}))
    assert digest({"": ours}) == digest({"": plain})


def test_one_phase_gives_logits():
    with pytest.raises(PlanError, match=r"algo\.logits\.during must name the one phase"):
        trial_after({"logits": LabelLogits(during=("*",))}, rounds=0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_composes(kind):
    ours = {"logits": LabelLogits(**kind)}
    alone = play(ours, rounds=2).digests()
    for both in ({"rs": RestrictedSoftmax(alpha=0.5), **ours}, {**ours, "scaffold": Scaffold()}):
        assert play(both, rounds=2).digests()["clients"] != alone["clients"]
