"""What a client's round measures: loss terms, numbers of components, and scores before and after training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.ditto import Ditto
from fedexp.client.network import load
from fedexp.core.component import Component
from fedexp.core.state import Out
from fedexp.engine import client_columns
from fedexp.errors import ClientError
from fedexp.testing import play, tiny_net
from tests.helpers import opened, work, worker_of


# ---------------------------------------------------------------- several terms
@dataclass(frozen=True, kw_only=True)
class Several(Component):
    """Two terms that are both wanted, and one that never is."""

    terms: ClassVar[tuple[str, ...]] = ("flat", "small", "never")

    def loss(self, step):
        return {"flat": 0.1 * step.z.square().mean(), "small": 0.2 * step.h.square().mean()}


@dataclass(frozen=True, kw_only=True)
class AsOne(Component):
    """The same as one term."""

    def loss(self, step):
        return 0.1 * step.z.square().mean() + 0.2 * step.h.square().mean()


def test_all_terms_of_a_component_are_summed_and_each_is_recorded():
    results = {}
    for name, component in (("several", Several()), ("one", AsOne())):
        with opened({"c": component}) as engine:
            results[name] = work(engine, 1)
    terms = results["several"].terms
    assert list(terms) == ["local/ce", "local/c.flat", "local/c.small"]
    assert terms["local/c.flat"] + terms["local/c.small"] == pytest.approx(results["one"].terms["local/c"], rel=1e-5)
    for name, value in results["one"].uplink["model"].items():
        torch.testing.assert_close(results["several"].uplink["model"][name], value)


def test_the_columns_are_those_of_the_declared_terms():
    with opened({"c": Several(), "one": AsOne()}) as engine:
        assert engine.algorithm.term_names("local") == ["ce", "c.flat", "c.small", "c.never", "one"]
        assert engine.algorithm.term_names("eval") == ["ce"]
        columns = client_columns(engine.algorithm)
    assert [c for c in columns if c.startswith("loss/")] == [
        "loss/local/ce", "loss/local/c.flat", "loss/local/c.small", "loss/local/c.never", "loss/local/one",
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Undeclared(Several):
    terms: ClassVar[tuple[str, ...]] = ("flat",)


@dataclass(frozen=True, kw_only=True)
class Single(AsOne):
    terms: ClassVar[tuple[str, ...]] = ("flat", "small")


@pytest.mark.parametrize(
    ("component", "words"),
    [(Undeclared(), r"returned the terms \['flat', 'small'\], but its class declares terms = \('flat',\)"),
     (Single(), r"returned one tensor, but its class declares terms = \('flat', 'small'\)")],
)  # fmt: skip
def test_terms_that_are_not_those_declared_are_refused(component, words):
    with pytest.raises(ClientError, match=r"client \d, phase 'local': loss of component 'c' " + words):
        play({"c": component})


# ---------------------------------------------------------------- numbers
@dataclass(frozen=True, kw_only=True)
class Measures(Component):
    value: float = 0.5

    def finish(self, local):
        local.record("moved", torch.tensor(self.value, requires_grad=True))
        local.record("steps", local.steps["local"])
        return Out()


def test_a_component_hands_back_numbers_under_its_key():
    with opened({"a": Measures(), "b": Measures(value=2.0)}) as engine:
        assert work(engine, 1).numbers == {"a.moved": 0.5, "a.steps": 6.0, "b.moved": 2.0, "b.steps": 6.0}


@dataclass(frozen=True, kw_only=True)
class NotFinite(Component):
    def finish(self, local):
        local.record("moved", float("nan"))
        return Out()


def test_a_number_that_is_not_finite_is_a_fault():
    with pytest.raises(ClientError, match=r"client \d: the recorded number 'a\.moved' is not finite"):
        play({"a": NotFinite()})


# ---------------------------------------------------------------- scores
def loss_of(weights, samples) -> float:
    net = tiny_net().eval()
    load(net, weights)
    return F.cross_entropy(net(samples.x), samples.y, reduction="sum").item()


def test_before_is_the_downloaded_model_also_where_there_is_a_personal_one():
    with opened({"ditto": Ditto()}, rounds=3) as engine:
        engine.play(3)
        client = engine.sampler(0)[0]
        result = work(engine, client)
        own = worker_of(engine).data.own_test(client)
        private = engine.progress.store.get(client)["ditto.model"]
        assert result.before.loss == pytest.approx(loss_of(engine.progress.state.model, own), rel=1e-5)
        assert result.personal_before.loss == pytest.approx(loss_of(private, own), rel=1e-5)
        assert result.after.loss == pytest.approx(loss_of(result.private["ditto.model"], own), rel=1e-5)
    assert len({result.before.loss, result.personal_before.loss, result.after.loss}) == 3


def test_without_a_personal_model_there_is_no_score_of_it():
    with opened({}) as engine:
        result = work(engine, 1)
    assert result.before is not None
    assert (result.personal_before, result.unadapted) == (None, None)
