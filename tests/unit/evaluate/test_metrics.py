"""Metrics by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedexp.client.messages import ClientResult
from fedexp.evaluate.metrics import aggregation, per_class, personalization, worst_decile
from fedexp.evaluate.tester import Score


def made(
    correct: tuple[int, ...], total: tuple[int, ...], owned: int = 0, of_owned: int = 0, loss: float = 0.0
) -> Score:
    return Score(correct, total, owned, of_owned, loss, predicted_owned=0)


def test_aggregation():
    got = aggregation(made((1, 1, 1, 0), (2, 1, 3, 0), loss=9.0))
    assert got == {"accuracy": 0.5, "loss": 1.5, "per_class": [0.5, 1.0, pytest.approx(1 / 3), None]}


def test_personalization_averages_over_clients_not_samples():
    after = (made((9, 0), (10, 0), 9, 10), made((0, 1), (1, 1), 0, 0), made((1, 1), (2, 2), 3, 4))
    before = (made((5, 0), (10, 0)), made((0, 0), (1, 1)), made((1, 0), (2, 2)))
    results = [ClientResult(c, before=b, after=a) for c, a, b in zip((4, 7, 9), after, before, strict=True)]
    got = personalization([*results, ClientResult(11, error="failed")])
    accuracies = [0.9, 0.5, 0.5]
    assert got["accuracy"] == pytest.approx(np.mean(accuracies))
    assert got["before"] == pytest.approx(np.mean([0.5, 0.0, 0.25]))
    assert got["std"] == pytest.approx(np.std(accuracies))
    assert got["owned"] == pytest.approx((0.9 + 0.75) / 2)  # client 7 was not tested on its own classes
    assert got["worst_decile"] == 0.5
    assert got["clients"] == accuracies
    assert got["per_class"] == [pytest.approx(10 / 13), pytest.approx(2 / 3)]


def test_personalization_without_any_owned_class():
    assert "owned" not in personalization([ClientResult(0, after=made((1, 0), (1, 1)))])


def test_other_models_have_their_own_means():
    scores = {name: made((n, 0), (4, 0)) for n, name in enumerate(("before", "personal_before", "unadapted"), 1)}
    got = personalization([ClientResult(0, after=made((4, 0), (4, 0)), **scores)])
    assert [got[name] for name in ("before", "personal_before", "unadapted", "accuracy")] == [0.25, 0.5, 0.75, 1.0]
    assert "personal_before" not in personalization([ClientResult(0, after=made((4, 0), (4, 0)))])


def test_nobody_tested_gives_no_metrics():
    assert personalization([ClientResult(0), ClientResult(1, error="failed")]) == {}


@pytest.mark.parametrize(
    ("accuracy", "worst"),
    [([0.5], 0.5), ([0.9, 0.1, 0.5], 0.1), (list(np.linspace(0, 0.9, 10)), 0.0),
     ([*[0.9] * 17, 0.3, 0.1, 0.8], 0.2), ([*[1.0] * 28, 0.5], 0.75)],
)  # fmt: skip
def test_worst_decile(accuracy, worst):
    assert worst_decile(accuracy) == pytest.approx(worst)


def test_per_class_pools_counts():
    assert per_class([made((1, 0, 0), (2, 0, 4)), made((2, 0, 0), (2, 0, 1))]) == [0.75, None, 0.0]
