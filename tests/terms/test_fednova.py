"""FedNova: the normaliser, the server's step, the authors' shorter one, and when it is FedAvg."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedexp.algos.fednova import NormalisedAveraging
from fedexp.algos.fedrs import ClassWeightedAggregation
from fedexp.client.optim import Sgd, TorchOptimizer
from fedexp.errors import PlanError
from fedexp.runs.plan import forecast
from fedexp.testing import play, trial_after
from tests.helpers import Recorder, array, local_round, opened, round_of, served


def normaliser(steps, rho):
    """The sum of the factors that the gradients of all steps have in w_t - w_k, divided by lr, step by step."""
    velocity = total = 0.0
    for _ in range(steps):
        velocity = rho * velocity + 1
        total += velocity
    return total


def finished(received, steps, rho):
    """A client's round of so many local steps."""
    local = replace(local_round(received), steps={"local": steps}, momentum={"local": rho})
    return local.for_component("mine")


def a_round(steps, *, rho=0.9, shrink=False, start=1.0, moved=1e-3):
    """The server's step after a round of clients that all moved alike, in so many local steps each."""
    components = {"nova": NormalisedAveraging(shrink=shrink)}
    engine = trial_after(components, rounds=0)
    weights = {n: torch.full_like(w, start) for n, w in engine.progress.state.model.items()}
    state = replace(engine.progress.state, model=weights)
    sent = {}
    for client, tau in enumerate(steps):
        local = finished(weights, tau, rho)
        ends = {n: w + moved for n, w in weights.items()}
        nova = components["nova"]
        sent[client] = {"model": nova.uplink(ends, local), "nova.length": nova.finish(local).uploads["length"]}
    after = served(components, sent, engine=engine, state=state)
    return array(torch.cat([(after.model[n] - w).flatten() for n, w in weights.items()]))


@pytest.mark.parametrize(("steps", "expected"), [(1, 1.0), (2, 2.9), (5, 13.1441)])
def test_the_normaliser(steps, expected):
    upload = NormalisedAveraging().finish(finished({"w": torch.zeros(1)}, steps, 0.9)).uploads["length"]
    assert upload["value"].item() == pytest.approx(expected, rel=1e-5)
    assert normaliser(steps, 0.9) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("shrink", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_the_servers_step_written_out(rho, shrink, weighting):
    """w ← w + (Σ p_k a_k) Σ p_k (w_k - w)/a_k; shrunk: w ← w + (Σ p_k τ_k) Σ p_k (w_k - w)/(a_k + τ_k)."""
    recorder = Recorder()
    components = {"nova": NormalisedAveraging(shrink=shrink), "r": recorder}
    with opened(components, optimizer=Sgd(lr=0.1, momentum=rho), weighting=weighting) as engine:
        for _ in range(2):
            recorder.rounds.clear()
            before = engine.progress.state.model
            after = round_of(engine).model
            taus = np.array([r.steps["local"] for r in recorder.rounds], float)
            assert len(set(taus)) > 1
            p = np.array([r.info.n if weighting == "samples" else 1 for r in recorder.rounds], float)
            p /= p.sum()
            a = np.array([normaliser(int(t), rho) for t in taus])
            divisors = a + taus if shrink and rho else a
            length = (p * (taus if shrink else a)).sum()
            for n, w in before.items():
                steps = [array(r.ends["local"][n] - w) for r in recorder.rounds]
                expected = length * sum(q * s / d for q, s, d in zip(p, steps, divisors, strict=True))
                np.testing.assert_allclose(array(after[n] - w), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_equal_numbers_of_steps_make_it_fedavg(rho):
    optimizer = Sgd(lr=0.1, momentum=rho)
    ours = play({"nova": NormalisedAveraging()}, epochs=0.01, optimizer=optimizer).progress.state.model
    plain = play({}, epochs=0.01, optimizer=optimizer).progress.state.model
    for n, w in plain.items():
        np.testing.assert_allclose(array(ours[n]), array(w), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(a_round([20, 20, 20], rho=rho), 1e-3, rtol=1e-3)


def test_unequal_numbers_of_steps_do_not():
    """The client of few steps counts for more: (Σ p a) (Σ p / a) is greater than 1."""
    assert a_round([2, 30], rho=0.0).min() > 1.5e-3


def test_many_local_steps_lose_no_precision():
    """A step of 1e-3 beside a weight of 1, divided by 13,000 and multiplied again."""
    np.testing.assert_allclose(a_round([1310, 1310]), 1e-3, rtol=2e-3)


@pytest.mark.parametrize(("steps", "ratio"), [(20, 0.142), (50, 0.109), (130, 0.097)])
def test_the_authors_code_shrinks_the_step(steps, ratio):
    np.testing.assert_allclose(a_round([steps, steps], shrink=True), ratio * 1e-3, rtol=5e-3)
    np.testing.assert_allclose(a_round([steps, steps], shrink=True, rho=0.0), 1e-3, rtol=1e-3)


def test_running_statistics_are_the_clients_mean():
    ours, plain = (play(c, norm=True, rounds=1) for c in ({"nova": NormalisedAveraging()}, {}))
    assert ours.algorithm.facts.layout.statistics
    for n in ours.algorithm.facts.layout.statistics:
        assert torch.equal(ours.progress.state.model[n], plain.progress.state.model[n])


def test_one_number_more_than_in_fedavg_is_sent():
    (down, up), (plain_down, plain_up) = (
        forecast(trial_after(c, rounds=0).algorithm) for c in ({"nova": NormalisedAveraging()}, {})
    )
    assert sum(down.values()) == sum(plain_down.values())
    assert sum(up.values()) == sum(plain_up.values()) + 4


def test_what_it_refuses():
    with pytest.raises(PlanError, match=r"algo\.nova\.during must name the one phase"):
        trial_after({"nova": NormalisedAveraging(during=("*",))}, rounds=0)
    adam = TorchOptimizer(torch.optim.Adam, {"lr": 0.01})
    with pytest.raises(PlanError, match=r"component 'nova' .*Use optim=sgd"):
        trial_after({"nova": NormalisedAveraging()}, rounds=0, optimizer=adam)


def test_methods_that_look_at_clients_models_are_refused():
    with pytest.raises(PlanError, match=r"component 'nova' sends steps instead of models, and component 'rows'"):
        trial_after({"nova": NormalisedAveraging(), "rows": ClassWeightedAggregation()}, rounds=0)
