"""Scores against an example counted by hand, and metrics against their formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from fedexp.client.network import layout_of, tensors
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Component
from fedexp.core.state import snapshot
from fedexp.core.views import Facts
from fedexp.data.federated import Info
from fedexp.data.source import Samples
from fedexp.evaluate.tester import Score, features
from fedexp.evaluate.tester import Tester as Examiner  # pytest takes Test… for tests
from fedexp.models.split import SplitModel

# Logits by hand: the network below is the identity, so a sample is its own logits.
X = torch.tensor(
    [
        [3.0, 1.0, 0.0, 0.0],  # says 0, is 0
        [0.0, 5.0, 4.0, 0.0],  # says 1, is 2; among 0 and 2: says 2
        [0.0, 0.0, 2.0, 1.0],  # says 2, is 2
        [1.0, 9.0, 0.0, 0.0],  # says 1, is 0; among 0 and 2: says 0
        [0.0, 2.0, 0.0, 0.0],  # says 1, is 1
        [9.0, 0.0, 8.0, 1.0],  # says 0, is 2; among 0 and 2: says 0
    ]
)
Y = torch.tensor([0, 2, 2, 0, 1, 2])


def identity(components: dict[str, Component] | None = None) -> tuple[Examiner, Algorithm, SplitModel]:
    net = SplitModel(nn.Flatten(), nn.Linear(4, 4, bias=False), 4)
    with torch.no_grad():
        net.classifier.weight.copy_(torch.eye(4))
    facts = Facts(
        seed=0, rounds=1, fraction=1.0, n_clients=1, n_classes=4, feature_dim=4, layout=layout_of(net),
        counts=torch.ones(1, 4), initial=snapshot(tensors(net)),
    )  # fmt: skip
    algorithm = Algorithm.compile(components or {}, facts)
    return Examiner(net, algorithm), algorithm, net


def info(*counts: float) -> Info:
    return Info(0, int(sum(counts)), torch.tensor(counts))


def score(client: Info | None, components: dict[str, Component] | None = None) -> Score:
    tester, algorithm, _ = identity(components)
    return tester.score(algorithm.facts.initial, Samples(X, Y), algorithm.views(), client)


def test_counts_by_hand():
    got = score(info(5, 0, 3, 0))
    assert got.correct == (1, 1, 1, 0)
    assert got.total == (2, 1, 3, 0)
    assert (got.n, got.accuracy) == (6, 0.5)
    assert (got.owned, got.of_owned) == (4, 5)
    assert got.owned_accuracy == 0.8
    assert got.predicted_owned == 3  # says 0, 2 and 0; 1 is not its own
    assert [got.accuracy_on(c) for c in ((1, 0, 1, 0), (0, 1, 0, 1), (0, 0, 0, 1))] == [0.4, 1.0, None]
    expected = sum(
        math.log(sum(math.exp(v) for v in row)) - row[y] for row, y in zip(X.tolist(), Y.tolist(), strict=True)
    )
    assert got.loss == pytest.approx(expected, rel=1e-6)


def test_the_server_owns_all_classes():
    got = score(None)
    assert (got.owned, got.of_owned, got.predicted_owned) == (3, 6, 6)
    assert got.owned_accuracy == got.accuracy


def test_no_owned_class_in_the_test_set():
    assert score(info(0, 0, 0, 9)).owned_accuracy is None


def test_batches_do_not_matter(monkeypatch):
    whole = score(info(1, 0, 1, 0))
    monkeypatch.setattr("fedexp.evaluate.tester.BATCH", 4)
    pieces = score(info(1, 0, 1, 0))
    assert replace(pieces, loss=0) == replace(whole, loss=0)
    assert pieces.loss == pytest.approx(whole.loss)


@dataclass(frozen=True, kw_only=True)
class Bias(Component):
    """Adds to the logit of class 1 in the phases it acts in."""

    def logits(self, z, step):
        return z + torch.tensor([0.0, 100.0, 0.0, 0.0])


def test_components_act_on_a_test_only_if_they_say_so():
    assert score(None, {"b": Bias()}).correct == (1, 1, 1, 0)
    for during in (("eval",), ("*",), ("local", "eval")):
        assert score(None, {"b": Bias(during=during)}).correct == (0, 1, 0, 0)


def test_a_test_neither_trains_nor_moves_statistics():
    net = SplitModel(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Dropout(0.9)), nn.Linear(4, 4), 4)
    facts = Facts(
        seed=0, rounds=1, fraction=1.0, n_clients=1, n_classes=4, feature_dim=4, layout=layout_of(net),
        counts=torch.ones(1, 4), initial=snapshot(tensors(net)),
    )  # fmt: skip
    algorithm = Algorithm.compile({}, facts)
    tester = Examiner(net, algorithm)
    net.train()
    scores = [tester.score(facts.initial, Samples(X, Y), algorithm.views(), None) for _ in range(3)]
    assert scores[0] == scores[1] == scores[2]  # no dropout
    assert all(torch.equal(v, facts.initial[k]) for k, v in tensors(net).items())
    assert all(p.grad is None for p in net.parameters())
    for _, _, h in features(net, Samples(X, Y)):
        assert not h.requires_grad
        assert torch.is_grad_enabled()  # between batches


@pytest.mark.parametrize(("side", "largest"), [(8, 1000), (32, 1000), (224, 20)])
def test_large_images_are_tested_in_small_batches(side, largest):
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.sizes = []

        def forward(self, x):
            self.sizes.append(len(x))
            return x.flatten(1)[:, :2]

    net = SplitModel(Seen(), nn.Identity(), 2)
    x = torch.zeros(1, 3, side, side).expand(2 * largest + 1, 3, side, side)
    assert sum(len(h) for _, _, h in features(net, Samples(x, torch.zeros(len(x), dtype=torch.int64)))) == len(x)
    assert net.features.sizes == [largest, largest, 1]
