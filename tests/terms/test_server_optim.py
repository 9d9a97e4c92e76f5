"""Server optimizers: each rule written again, over rounds; torch's own; and what they must leave alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedexp.algos.fednova import NormalisedAveraging
from fedexp.algos.server_optim import ServerAdagrad, ServerAdam, ServerMomentum, ServerYogi
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import CLIENTS, play, trial_after
from tests.helpers import array, opened, round_of, served, work

LR, TAU, BETA1, BETA2 = 0.02, 1e-2, 0.8, 0.95
MOMENTUM = ServerMomentum(lr=0.5, beta=0.7)
ADAPTIVE = {
    "adagrad": ServerAdagrad(lr=LR, tau=TAU, beta1=BETA1),
    "adam": ServerAdam(lr=LR, tau=TAU, beta1=BETA1, beta2=BETA2),
    "yogi": ServerYogi(lr=LR, tau=TAU, beta1=BETA1, beta2=BETA2),
}
RULES = {
    "adagrad": lambda v, d: v + d**2,
    "adam": lambda v, d: BETA2 * v + (1 - BETA2) * d**2,
    "yogi": lambda v, d: v - (1 - BETA2) * d**2 * np.sign(v - d**2),
}


def walk(component, rounds=4):
    """Rounds of two clients with random steps: the mean step by samples, and the model before and after."""
    components = {"opt": component}
    engine = trial_after(components, rounds=0)
    counts = array(engine.algorithm.facts.counts.sum(1))[:2]
    state, generator = engine.progress.state, torch.Generator().manual_seed(1)
    for _ in range(rounds):
        drawn = [{n: 0.1 * torch.randn(w.shape, generator=generator) for n, w in state.model.items()} for _ in range(2)]
        sent = {c: {"model": {n: state.model[n] + s for n, s in steps.items()}} for c, steps in enumerate(drawn)}
        delta = {n: sum(k * array(s[n]) for k, s in zip(counts, drawn, strict=True)) / counts.sum() for n in drawn[0]}
        after = served(components, sent, engine=engine, state=state)
        yield delta, state, after
        state = after


def test_momentum_written_out():
    """v ← beta v + Δ, w ← w + lr v."""
    v = None
    for delta, before, after in walk(MOMENTUM):
        v = delta if v is None else {n: 0.7 * v[n] + d for n, d in delta.items()}
        for n in delta:
            np.testing.assert_allclose(array(after.model[n] - before.model[n]), 0.5 * v[n], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_adaptive_rule_written_out(name):
    """m ← b1 m + (1 - b1) Δ, v by the rule from tau², w ← w + lr m / (√v + tau); no bias correction."""
    m, v = 0.0, TAU**2
    fell = False
    for delta, before, after in walk(ADAPTIVE[name]):
        if isinstance(m, float):
            m, v = {n: 0.0 * d for n, d in delta.items()}, {n: TAU**2 + 0 * d for n, d in delta.items()}
        m = {n: BETA1 * m[n] + (1 - BETA1) * d for n, d in delta.items()}
        new = {n: RULES[name](v[n], d) for n, d in delta.items()}
        fell = fell or any((new[n] < v[n]).any() for n in new)
        v = new
        for n in delta:
            expected = LR * m[n] / (np.sqrt(v[n]) + TAU)
            np.testing.assert_allclose(array(after.model[n] - before.model[n]), expected, rtol=1e-3, atol=1e-6)
            np.testing.assert_allclose(array(after.slots["opt.v"][n]), v[n], rtol=1e-3, atol=1e-8)
    assert fell == (name != "adagrad")


@pytest.mark.parametrize(("v0", "first"), [(None, 1e-6), (0.0, 0.0), (0.25, 0.25)])
def test_v_begins_with(v0, first):
    engine = trial_after({"opt": ServerYogi(v0=v0)}, rounds=0)
    for v in engine.progress.state.slots["opt.v"].values():
        np.testing.assert_allclose(array(v), first, rtol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (MOMENTUM, lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.7)),
        (
            ServerAdam(lr=3e-4, beta2=0.999, tau=1e-8, v0=0.0, bias_correction=True),
            lambda p: torch.optim.Adam(p, lr=3e-4, betas=(0.9, 0.999), eps=1e-8),
        ),
    ],
)
def test_public_code_of_map_takes_torchs_optimizers(ours, theirs):
    twin = optimizer = None
    for delta, before, after in walk(ours):
        if twin is None:
            twin = {n: torch.nn.Parameter(before.model[n].double()) for n in delta}
            optimizer = theirs(list(twin.values()))
        for n, p in twin.items():
            p.grad = -torch.from_numpy(delta[n])
        optimizer.step()
        for n, p in twin.items():
            np.testing.assert_allclose(array(after.model[n]), array(p), rtol=1e-4, atol=1e-6)


def test_momentum_of_a_constant_step_gains_to_its_limit():
    """A step that stays the same ends up 1 / (1 - beta) times as long."""
    components = {"opt": ServerMomentum(beta=0.5)}
    engine = trial_after(components, rounds=0)
    state = engine.progress.state
    for _ in range(25):
        before = state
        sent = {"model": {n: w + 0.01 for n, w in state.model.items()}}
        state = served(components, {0: sent}, engine=engine, state=state)
    for n, w in state.model.items():
        np.testing.assert_allclose(array(w - before.model[n]), 0.02, rtol=1e-3)


def test_neutral_momentum_is_fedavg():
    plain = play({}).progress.state.model
    assert digest({"": play({"opt": MOMENTUM.neutral()}).progress.state.model}) == digest({"": plain})
    for other in (MOMENTUM, replace(MOMENTUM, beta=0.0), replace(MOMENTUM, lr=1.0)):
        assert digest({"": play({"opt": other}).progress.state.model}) != digest({"": plain})


@pytest.mark.parametrize("component", [MOMENTUM, *ADAPTIVE.values()])
def test_running_statistics_are_the_clients_mean(component):
    ours, plain = play({"opt": component}, norm=True, rounds=1), play({}, norm=True, rounds=1)
    layout = ours.algorithm.facts.layout
    assert layout.statistics
    for n in layout.statistics:
        assert torch.equal(ours.progress.state.model[n], plain.progress.state.model[n])
    assert set(ours.progress.state.slots.get("opt.v", {})) == set(layout.shared)


def test_momentum_behind_fednova_is_of_fednovas_step():
    """FedNova's gmf: v ← gmf v + its step, w ← w + v."""
    nova = {"nova": NormalisedAveraging()}
    v = None
    with opened({**nova, "opt": ServerMomentum(beta=0.5)}, fraction=1.0) as engine:
        for _ in range(2):
            before = engine.progress.state
            sent = {c: work(engine, c).uplink for c in range(CLIENTS)}
            plain = served(nova, sent, state=replace(before, slots={}))
            after = round_of(engine)
            steps = {n: array(w - before.model[n]) for n, w in plain.model.items()}
            v = steps if v is None else {n: 0.5 * v[n] + step for n, step in steps.items()}
            for n in v:
                np.testing.assert_allclose(array(after.model[n] - before.model[n]), v[n], rtol=1e-3, atol=1e-6)


def test_nothing_more_is_sent_than_in_fedavg():
    plain = play({})
    for component in (MOMENTUM, *ADAPTIVE.values()):
        ours = play({"opt": component})
        assert (ours.ledger.up, ours.ledger.down) == (plain.ledger.up, plain.ledger.down)


def test_ranges():
    with pytest.raises(PlanError, match=r"algo\.opt\.beta must be in \[0, 1\)"):
        trial_after({"opt": ServerMomentum(beta=1.0)}, rounds=0)
    with pytest.raises(PlanError, match=r"algo\.opt\.tau must be greater than 0"):
        trial_after({"opt": ServerAdam(tau=0.0)}, rounds=0)
