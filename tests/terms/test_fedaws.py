"""FedAwS: the descent on the rows, written out; what it reaches; what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedexp.algos.fedaws import SpreadRows, closeness
from fedexp.algos.fedgela import EquiangularHead
from fedexp.algos.scaffold import Scaffold
from fedexp.core.seeding import seeded
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.models.split import SplitModel
from fedexp.testing import CLASSES, play, tiny_net, trial_after
from tests.helpers import advanced, array, opened, round_of

SPREAD = SpreadRows(margin=0.6, steps=4, lr=0.5, momentum=0.9)
ROWS = "classifier.weight"


def gradient(w, margin):
    """Of Σ_{c ≠ c'} max(0, margin - (1 - cos)/2)² / C², from the derivative of the cosine."""
    norms = np.linalg.norm(w, axis=1)
    out = np.zeros_like(w)
    for i in range(len(w)):
        for j in range(len(w)):
            if i == j:
                continue
            cosine = w[i] @ w[j] / norms[i] / norms[j]
            lack = max(0.0, margin - (1 - cosine) / 2)
            slope = w[j] / norms[i] / norms[j] - cosine * w[i] / norms[i] ** 2
            out[i] += 2 * 2 * lack / 2 * slope / len(w) ** 2  # the pair is counted in both orders
    return out


def descended(rows):
    """After the steps of ``SPREAD``."""
    velocity = 0.0
    for _ in range(4):
        velocity = 0.9 * velocity + gradient(rows, 0.6)
        rows = rows - 0.5 * velocity
    return rows


def biased_net(*, norm=False):
    net = tiny_net(norm=norm)
    with seeded(0, "biased"):
        return SplitModel(net.features, nn.Linear(8, CLASSES), 8)


def test_the_descent_written_out():
    w = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    (given,) = torch.autograd.grad(closeness(w, 0.6), w)
    np.testing.assert_allclose(array(given), gradient(array(w), 0.6), rtol=1e-5, atol=1e-8)


def test_the_server_written_out():
    """The clients' mean, then steps with a momentum of their own on the rows; everything else is FedAvg's."""
    with opened({"spread": SPREAD}, net=biased_net, norm=True, rounds=1) as engine:
        ours = round_of(engine).model
        record = engine.records[-1]
    with opened({}, net=biased_net, norm=True, rounds=1) as engine:
        plain = round_of(engine).model
    rows = ours[ROWS]
    assert not np.allclose(array(rows), array(plain[ROWS]), atol=1e-3)
    np.testing.assert_allclose(array(ours.pop(ROWS)), descended(array(plain.pop(ROWS))), rtol=1e-4, atol=1e-5)
    assert digest({"": ours}) == digest({"": plain})
    assert record["numbers"]["spread.closeness"] == pytest.approx(float(closeness(rows, 0.6)), rel=1e-4)


def test_each_round_begins_with_a_new_momentum():
    engine = trial_after({"spread": SPREAD}, rounds=0)
    state = engine.progress.state
    sent = {c: {"model": {n: v for n, v in state.model.items() if n in engine.algorithm.travelling}} for c in (0, 1)}
    for _ in range(2):
        before = state.model[ROWS]
        state = advanced({"spread": SPREAD}, sent, engine=engine, state=state).state
        assert not torch.equal(state.model[ROWS], before)
        np.testing.assert_allclose(array(state.model[ROWS]), descended(array(before)), rtol=1e-4, atol=1e-5)
        sent = {c: {"model": {**up["model"], ROWS: state.model[ROWS]}} for c, up in sent.items()}


def test_rows_end_at_the_margin_if_it_can_be_met():
    engine = trial_after({"spread": SPREAD}, rounds=0)
    model = {n: v for n, v in engine.progress.state.model.items() if n in engine.algorithm.travelling}
    alike = torch.ones(CLASSES, 8) + 0.1 * torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(0))

    def nearest(margin):
        spread = {"spread": replace(SPREAD, margin=margin, steps=2000)}
        rows = array(advanced(spread, {0: {"model": {**model, ROWS: alike}}}).state.model[ROWS])
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return ((1 - units @ units.T) / 2 + np.eye(CLASSES)).min()

    assert nearest(0.4) == pytest.approx(0.4, abs=1e-3)
    assert nearest(0.9) == pytest.approx(CLASSES / (2 * (CLASSES - 1)), abs=1e-3)  # the simplex


def test_what_the_components_before_have_made_of_the_step_is_spread():
    half = {"scaffold": Scaffold(server_lr=0.5)}
    ours, plain = (play(c, rounds=1).progress.state.model for c in ({**half, "spread": SPREAD}, half))
    np.testing.assert_allclose(array(ours[ROWS]), descended(array(plain[ROWS])), rtol=1e-4, atol=1e-5)


def test_without_steps_it_is_fedavg():
    ours, plain = (play(c).progress.state.model for c in ({"spread": replace(SPREAD, steps=0)}, {}))
    assert digest({"": ours}) == digest({"": plain})


def deep_head(*, norm=False):
    head = nn.Sequential(nn.Linear(8, CLASSES), nn.ReLU(), nn.Linear(CLASSES, CLASSES))
    return SplitModel(tiny_net(norm=norm).features, head, 8)


def test_a_classifier_of_several_layers_or_one_that_stays_is_refused():
    with pytest.raises(PlanError, match=r"algo\.spread\.steps need a classifier of one linear layer with 4 rows"):
        trial_after({"spread": SPREAD}, rounds=0, net=deep_head)
    with pytest.raises(PlanError, match=r"algo\.spread\.steps move the averaged classifier"):
        trial_after({"spread": SPREAD, "etf": EquiangularHead()}, rounds=0)
