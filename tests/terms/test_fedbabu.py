"""FedBABU: features under a classifier that never moves; fine-tuning that leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedbabu import FineTune, FixedClassifier
from fedexp.algos.inherited import InheritedPrivateModel
from fedexp.client.network import load, tensors
from fedexp.core.state import digest
from fedexp.testing import play, tiny_net
from tests.helpers import Recorder, batches_of, jobs_of, opened, round_of, work

BABU = {"babu": FixedClassifier()}


def train(net, batches, trained, lr=0.1):
    sgd = torch.optim.SGD(trained, lr, momentum=0.9, weight_decay=1e-3)
    for x, y in batches:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        sgd.step()


def test_a_round_written_out():
    """The body is trained, with momentum and weight decay; the head is the initial one, bit for bit."""
    with opened(BABU, fraction=1.0) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
    net = tiny_net()
    load(net, job.downlink["model"])
    train(net, batches, net.features.parameters())
    assert result.uplink["model"].keys() == {n for n in tensors(net) if n.startswith("features.")}
    for name, value in result.uplink["model"].items():
        torch.testing.assert_close(value, tensors(net)[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", [{}, {"hpm": InheritedPrivateModel(during=("personal",))}])
def test_the_head_moves_in_no_phase_and_the_servers_model_has_it(more):
    recorder = Recorder()
    engine = play({**BABU, **more, "r": recorder}, norm=True)
    initial = engine.algorithm.facts.initial
    for tree in (engine.progress.state.model, *(end for r in recorder.rounds for end in r.ends.values())):
        assert torch.equal(tree["classifier.weight"], initial["classifier.weight"])
        assert not torch.equal(tree["features.1.weight"], initial["features.1.weight"])
    assert all("aggregation" in record for record in engine.records)


def test_what_lies_beside_the_network_is_trained():
    """The projection head of MOON belongs to the body."""
    from fedexp.algos.moon import ModelContrast

    engine = play({**BABU, "moon": ModelContrast(projection=3)}, fraction=1.0)
    initial, model = engine.algorithm.facts.initial, engine.progress.state.model
    head = engine.algorithm.facts.layout.parts["moon.projection"]
    assert head
    assert not any(torch.equal(model[n], initial[n]) for n in head)


@pytest.mark.parametrize("part", ["classifier", "all"])
def test_fine_tuning_written_out(part):
    """Five epochs from the model to be tested, on the client's samples, with another learning rate if asked for."""
    with opened({**BABU, "tune": FineTune(part=part, lr=0.02)}, fraction=1.0) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [0])
        worker = engine.executor._worker
        score = worker.test_client(job)
        (phase,) = engine.algorithm.test_phases
        batches = list(worker.fitter.batches(phase, (job.round, 0, "tune"), worker.data.info(0)))
        held = worker.data.own_test(0)
    net = tiny_net()
    load(net, job.downlink["model"])
    assert score.unadapted.loss == pytest.approx(loss_of(net, held), rel=1e-5)
    assert len(batches) == 5 * -(-worker.data.info(0).n // 4)
    train(net, batches, (net.classifier if part == "classifier" else net).parameters(), lr=0.02)
    assert score.after.loss == pytest.approx(loss_of(net, held), rel=1e-4)
    assert score.after.loss != pytest.approx(score.unadapted.loss, rel=1e-3)


def loss_of(net, samples):
    return F.cross_entropy(net(samples.x), samples.y, reduction="sum").item()


def test_fine_tuning_leaves_the_rounds_as_they_are():
    ours, plain = play({**BABU, "tune": FineTune()}, norm=True), play(BABU, norm=True)
    assert ours.digests() == plain.digests()
    assert ours.ledger.up == plain.ledger.up
    assert [r["aggregation"] for r in ours.records] == [r["aggregation"] for r in plain.records]
    assert ours.algorithm.personalizes
    assert not plain.algorithm.personalizes


def test_the_order_of_the_two_does_not_matter():
    one = play({**BABU, "tune": FineTune(part="all")})
    two = play({"tune": FineTune(part="all"), **BABU})
    assert digest({"": one.progress.state.model}) == digest({"": two.progress.state.model})
    assert one.algorithm.test_phases == two.algorithm.test_phases
