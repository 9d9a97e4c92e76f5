"""FedROD: a client's round written out, who gets which gradient, and with which head who is tested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedexp.algos.fedrod import TwoHeads
from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.scaffold import Scaffold
from fedexp.client.network import load
from fedexp.client.optim import Sgd
from fedexp.core.state import digest
from fedexp.models.split import SplitModel
from fedexp.testing import CLASSES, SIDE, play, tiny_net, trial_after
from tests.helpers import array, batches_of, jobs_of, opened, round_of, work, worker_of

HEAD = "beside.rod/head.weight"


@pytest.mark.parametrize("power", [1.0, 0.5, 0.0])
def test_a_client_written_out(power):
    """Two losses, two optimizers: the balanced one knows nothing of the personal head, and the other way round."""
    sgd = Sgd(lr=0.1, momentum=0.9, weight_decay=1e-3)
    with opened({"rod": TwoHeads(power=power)}, fraction=1.0, optimizer=sgd) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        counts = worker_of(engine).data.info(1).counts
        result = work(engine, 1)
    net, head = tiny_net(), nn.Linear(8, CLASSES, bias=False)
    load(net, job.downlink["model"])
    head.load_state_dict({"weight": job.private["rod.head"][HEAD]})
    generic = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    personal = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    for x, y in batches:
        h = net.features(x)
        z = net.classifier(h)
        shares = counts**power * torch.exp(z)  # n^power · e^z, normalised: 0 for a class without samples
        balanced = -torch.log(shares[torch.arange(len(y)), y] / shares.sum(1)).mean()
        own = F.cross_entropy(z.detach() + head(h.detach()), y)
        for optimizer, loss in ((generic, balanced), (personal, own)):
            optimizer.zero_grad()
            loss.backward()
        generic.step()
        personal.step()
    for name, value in result.uplink["model"].items():
        np.testing.assert_allclose(array(value), array(net.get_parameter(name)), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(array(result.private["rod.head"][HEAD]), array(head.weight), rtol=1e-3, atol=1e-5)
    assert not torch.equal(result.private["rod.head"][HEAD], job.private["rod.head"][HEAD])


def test_a_missing_class_has_no_gradient_in_the_generic_head():
    with opened({"rod": TwoHeads()}, optimizer=Sgd(lr=0.1, weight_decay=0.0)) as engine:
        missing = worker_of(engine).data.info(3).counts == 0
        (job,) = jobs_of(engine, [3])
        sent = work(engine, 3).uplink["model"]["classifier.weight"]
    moved = (sent != job.downlink["model"]["classifier.weight"]).any(1)
    assert missing.any()
    assert not moved[missing].any()


def test_equal_counts_balance_nothing():
    from tests.helpers import info, step

    h, y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0])
    balanced = TwoHeads().logits(h, step(h, y, counts=[7, 7, 7, 7]))
    torch.testing.assert_close(F.cross_entropy(balanced, y), F.cross_entropy(h, y))
    assert torch.equal(TwoHeads()._balance(info([0, 1, 3, 0]))[[1, 2]], torch.tensor([1.0, 3.0]).log())


def test_the_personal_head_never_reaches_the_server():
    """Whatever it learns, the server has the same model; and without balance that is FedAvg's."""
    plain = play({}, norm=True).progress.state.model
    one, two = (play({"rod": TwoHeads(power=0.0, initial=i)}, norm=True) for i in ("zeros", "copy"))
    assert digest({"": one.progress.state.model}) == digest({"": two.progress.state.model}) == digest({"": plain})
    assert one.ledger.up == play({}, norm=True).ledger.up


def test_a_client_is_tested_with_both_heads_and_the_server_with_one():
    with opened({"rod": TwoHeads()}, fraction=1.0) as engine:
        state = round_of(engine)
        (job,) = jobs_of(engine, [1])
        worker = worker_of(engine)
        score, server = worker.test_client(job).after, list(worker.test_server(state.message, (0, 40)))
        own, everyones = worker.data.own_test(1), worker.data.test
    net = tiny_net()
    load(net, state.model)
    h = net.features(own.x)
    both = net.classifier(h) + h @ job.private["rod.head"][HEAD].T
    assert score.loss == pytest.approx(F.cross_entropy(both, own.y, reduction="sum").item(), rel=1e-5)
    assert score.loss != pytest.approx(F.cross_entropy(net.classifier(h), own.y, reduction="sum").item(), rel=1e-3)
    plain = F.cross_entropy(net(everyones.x), everyones.y, reduction="sum").item()
    assert sum(s.loss for s in server) == pytest.approx(plain, rel=1e-5)


def test_the_last_layer_of_a_deep_head_begins_with_zeros():
    def deep(*, norm=False):
        features = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 8), nn.ReLU())
        return SplitModel(features, nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, CLASSES)), 8)

    engine = trial_after({"rod": TwoHeads()}, rounds=0, net=deep)
    initial = engine.algorithm.facts.initial
    assert not initial["beside.rod/head.2.weight"].any()
    assert not initial["beside.rod/head.2.bias"].any()
    assert initial["beside.rod/head.0.weight"].all()
    copied = trial_after({"rod": TwoHeads(initial="copy")}, rounds=0, net=deep).algorithm.facts.initial
    assert torch.equal(copied["beside.rod/head.2.weight"], copied["classifier.2.weight"])


@pytest.mark.parametrize("other", [{"rs": RestrictedSoftmax(alpha=0.5)}, {"scaffold": Scaffold()}], ids=str)
def test_it_composes(other):
    both = play({**other, "rod": TwoHeads()}, rounds=2).progress.state.model
    assert digest({"": both}) != digest({"": play(other, rounds=2).progress.state.model})
    assert all(t.isfinite().all() for t in both.values())
