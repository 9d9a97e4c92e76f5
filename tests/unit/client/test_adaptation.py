"""Phases before a test: run when a personal model is about to be tested, from that model, leaving nothing behind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.ditto import Ditto
from fedexp.client.fit import Fitter
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.network import load
from fedexp.core.component import Component, Phase
from fedexp.core.state import Slot, digest, number
from fedexp.engine import client_columns
from fedexp.errors import ClientError
from fedexp.testing import play, tiny_net, trial_after
from tests.helpers import jobs_of, opened, work, worker_of
from tests.miniatures import FineTune

LOOPS = [FabricLoop, TrainerLoop]


@dataclass(frozen=True, kw_only=True)
class BodyOnly(Component):
    """``FineTune`` without the tuning."""

    def plan(self, phases):
        return [replace(p, train="body") for p in phases]


@dataclass(frozen=True, kw_only=True)
class Tunes(Component):
    """Tunes a personal model of another component for so many epochs."""

    epochs: float = 2.0

    def plan(self, phases):
        return [*phases, Phase("tune", start="previous", epochs=self.epochs, test=True)]


def loss_of(net, samples) -> float:
    return F.cross_entropy(net.eval()(samples.x), samples.y, reduction="sum").item()


def tune(net, batches) -> None:
    """Plain steps without momentum, as ``FineTune`` has them."""
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.1, weight_decay=1e-3)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


# ---------------------------------------------------------------- the formula written again
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("norm", [False, True])
def test_a_model_is_tuned_before_its_test_and_is_also_tested_as_it_is(loop, norm):
    with opened({"babu": FineTune()}, loop=loop, norm=norm) as engine:
        result = work(engine, 1)
        worker = worker_of(engine)
        own = worker.data.own_test(1)
        (phase,) = engine.algorithm.test_phases
        batches = list(worker.fitter.batches(phase, (0, 1, "tune"), worker.data.info(1)))
    assert len(batches) == 6
    net = tiny_net(norm=norm)
    load(net, result.uplink["model"])
    assert result.unadapted.loss == pytest.approx(loss_of(net, own), rel=1e-5)
    tune(net, batches)
    assert result.after.loss == pytest.approx(loss_of(net, own), rel=1e-4)
    assert result.after.loss != result.unadapted.loss


@pytest.mark.parametrize("norm", [False, True])
def test_tuning_leaves_nothing_behind(norm):
    tuned, plain = (play({"c": c}, norm=norm) for c in (FineTune(), BodyOnly()))
    assert tuned.digests()["model"] == plain.digests()["model"]
    assert tuned.ledger.up == plain.ledger.up
    with opened({"c": FineTune()}, norm=norm) as engine:
        with_test = work(engine, 1)
    with opened({"c": BodyOnly()}, norm=norm) as engine:
        without = work(engine, 1)
    assert digest(with_test.uplink) == digest(without.uplink)
    assert with_test.terms == without.terms
    assert with_test.unadapted == without.after


def test_a_private_model_is_tuned_from_where_it_is_and_kept_as_it_was():
    ends = {}
    for name, more in (("tuned", {"tunes": Tunes()}), ("plain", {})):
        with opened({"ditto": Ditto(), **more}) as engine:
            ends[name] = work(engine, 1)
    assert digest(ends["tuned"].private) == digest(ends["plain"].private)
    assert ends["tuned"].unadapted == ends["plain"].after
    assert ends["tuned"].personal_before == ends["plain"].personal_before
    assert ends["tuned"].after != ends["plain"].after


# ---------------------------------------------------------------- only when a test is due
def fits(monkeypatch) -> list[tuple[int, str]]:
    seen = []
    fit = Fitter.fit

    def watched(self, ask):
        seen.append((ask.job.client, ask.phase.name))
        return fit(self, ask)

    monkeypatch.setattr(Fitter, "fit", watched)
    return seen


def test_no_test_is_due_so_nothing_is_tuned(monkeypatch):
    seen = fits(monkeypatch)
    with opened({"babu": FineTune()}) as engine:
        (job,) = jobs_of(engine, [1])
        result = worker_of(engine).work(replace(job, due=False))
    assert seen == [(1, "local")]
    assert result.after is None
    assert result.unadapted is not None


def test_a_client_without_test_samples_is_not_tuned(monkeypatch):
    seen = fits(monkeypatch)
    with opened({"babu": FineTune()}) as engine:
        monkeypatch.setattr(worker_of(engine).data, "own_test", lambda client: None)
        result = work(engine, 1)
        assert seen == [(1, "local")]
        assert (result.after, result.unadapted, result.globally) == (None, None, None)
        (job,) = jobs_of(engine, [1])
        result = worker_of(engine).work(replace(job, test_globally=True))
    assert seen[1:] == [(1, "local"), (1, "tune")]
    assert result.globally.n == 40


def test_a_model_is_tuned_once_for_both_test_sets(monkeypatch):
    seen = fits(monkeypatch)
    with opened({"babu": FineTune()}) as engine:
        (job,) = jobs_of(engine, [1])
        result = worker_of(engine).work(replace(job, test_globally=True))
    assert seen == [(1, "local"), (1, "tune")]
    assert (result.after.n, result.globally.n) == (2, 40)


def test_newcomers_and_clients_after_the_last_round_are_tuned_too(monkeypatch):
    seen = fits(monkeypatch)
    engine = trial_after({"babu": FineTune()}, rounds=0)
    results = engine.measurement.test_clients([0, 2])
    assert seen == [(0, "tune"), (2, "tune")]
    (job,) = jobs_of(engine, [2])
    tested = worker_of(engine).test_client(job)
    assert (tested.after, tested.unadapted) == (results[2].after, results[2].unadapted)
    assert tested.unadapted != tested.after
    seen.clear()
    results = engine.measurement.train_once_more([1])
    assert seen == [(1, "local"), (1, "tune")]
    assert results[1].unadapted is not None


# ---------------------------------------------------------------- as part of a plan
def test_phases_before_a_test_are_no_part_of_the_round():
    with opened({"babu": FineTune()}) as engine:
        assert [p.name for p in engine.algorithm.phases] == ["local"]
        assert [p.name for p in engine.algorithm.test_phases] == ["tune"]
        assert not any("tune" in column for column in client_columns(engine.algorithm))
        result = work(engine, 1)
    assert list(result.terms) == ["local/ce"]


@dataclass(frozen=True, kw_only=True)
class Acts(Component):
    """Acts while a model is tuned: remembers, and knows the phase's name."""

    seen: list = field(default_factory=list, compare=False)
    during: tuple[str, ...] = ("tune",)

    def slots(self):
        return (Slot("count", "client", number(0.0)),)

    def loss(self, step):
        self.seen.append((step.phase, step.round))
        step.remember("count", {"value": torch.tensor(9.0)})


def test_components_may_act_in_it_and_nothing_they_remember_is_kept():
    acts = Acts()
    with opened({"babu": FineTune(), "acts": acts}) as engine:
        result = work(engine, 1)
    assert set(acts.seen) == {("tune", 0)}
    assert result.private["acts.count"]["value"] == 0


@dataclass(frozen=True, kw_only=True)
class FailsInTheTest(Component):
    during: tuple[str, ...] = ("tune",)

    def loss(self, step):
        raise ArithmeticError("planned")


def test_an_error_while_tuning_names_its_phase():
    with pytest.raises(ClientError, match=r"round 1, client \d, phase 'tune': ArithmeticError: planned"):
        play({"babu": FineTune(), "f": FailsInTheTest()})


def test_a_straggler_is_tuned_in_full(monkeypatch):
    steps = {}
    fit = Fitter.fit

    def watched(self, ask):
        fitted = fit(self, ask)
        steps[ask.phase.name] = fitted.steps
        return fitted

    monkeypatch.setattr(Fitter, "fit", watched)
    with opened({"babu": FineTune()}) as engine:
        (job,) = jobs_of(engine, [1])
        worker_of(engine).work(replace(job, share=0.5))
    assert steps == {"local": 3, "tune": 6}
