"""The server's side of a round: weights, means, statistics, slots and mailboxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedexp.client.network import layout_of, tensors
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Component
from fedexp.core.state import Message, Out, Slot, Upload, digest, number, snapshot
from fedexp.core.views import Facts
from fedexp.errors import PlanError
from fedexp.execute.task import TaskResult, complete
from fedexp.server.aggregate import Mean
from fedexp.server.network import ServerNetwork
from fedexp.server.update import advance, cohort_weights
from fedexp.testing import CLASSES, CLIENTS, play, tiny_data, tiny_net
from tests.helpers import folded

COHORT = (0, 2, 3)


def compiled(components: dict[str, Component] | None = None, *, norm: bool = False) -> Algorithm:
    data, net = tiny_data(), tiny_net(norm=norm)
    facts = Facts(
        seed=0, rounds=4, fraction=0.6, n_clients=CLIENTS, n_classes=CLASSES, feature_dim=net.feature_dim,
        layout=layout_of(net), counts=data.counts, initial=snapshot(tensors(net)),
    )  # fmt: skip
    return Algorithm.compile(components or {}, facts)


def uplinks(algorithm: Algorithm, cohort=COHORT, **more: Message) -> dict[int, Message]:
    """Random models, as clients might send them."""
    messages = {}
    for client in cohort:
        rng = torch.Generator().manual_seed(100 + client)
        model = {
            n: torch.randn(v.shape, generator=rng) if v.is_floating_point() else v + 10 + client
            for n, v in algorithm.facts.initial.items()
            if n in algorithm.travelling
        }
        messages[client] = {"model": model}
    return messages


def step(algorithm, weights, messages, state=None):
    state = state or algorithm.fresh_state()
    return advance(algorithm, state, weights, folded(algorithm, weights, messages), ServerNetwork(tiny_net())).state


# ---------------------------------------------------------------- Mean
TREES = [
    {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "n": torch.tensor(5)},
    {"w": torch.tensor([[-1.0, 0.5], [2.0, 8.0]]), "n": torch.tensor(9)},
    {"w": torch.tensor([[0.0, 0.0], [7.0, -4.0]]), "n": torch.tensor(2)},
]
WEIGHTS = [0.5, 0.3, 0.2]


@pytest.mark.parametrize(
    ("how", "formula"),
    [
        ("weighted", lambda x: np.tensordot(WEIGHTS, x, 1)),
        ("uniform", lambda x: x.mean(0)),
        ("sum", lambda x: x.sum(0)),
    ],
)
def test_mean_against_numpy(how, formula):
    mean = Mean(how)
    for tree, weight in zip(TREES, WEIGHTS, strict=True):
        mean.feed(tree, weight)
    result = mean.result()
    np.testing.assert_allclose(result["w"], formula(np.stack([t["w"].numpy() for t in TREES])), rtol=1e-6)
    assert result["n"].dtype == torch.int64
    assert result["n"] == 5  # a counter is not averaged


@pytest.mark.parametrize("how", ["weighted", "uniform", "sum"])
def test_mean_of_nothing_is_empty(how):
    assert Mean(how).result() == {}


def test_mean_does_not_write_into_what_it_is_fed():
    before = digest({str(i): t for i, t in enumerate(TREES)})
    mean = Mean("sum")
    for tree in TREES:
        mean.feed(tree, 1.0)
    assert digest({str(i): t for i, t in enumerate(TREES)}) == before


# ---------------------------------------------------------------- weights
def test_uniform_and_samples_weights():
    algorithm = compiled()
    n = algorithm.facts.counts.sum(1)
    assert cohort_weights(algorithm, "uniform", COHORT) == {c: pytest.approx(1 / 3) for c in COHORT}
    expected = {c: pytest.approx(float(n[c] / n[list(COHORT)].sum())) for c in COHORT}
    assert cohort_weights(algorithm, "samples", COHORT) == expected
    assert len(set(cohort_weights(algorithm, "samples", COHORT).values())) > 1


@dataclass(frozen=True, kw_only=True)
class ByClasses(Component):
    """Weighs clients by the number of their classes."""

    def weigh(self, counts):
        return (counts > 0).sum(1).float()


def test_a_component_may_weigh():
    algorithm = compiled({"by": ByClasses()})
    owned = [(algorithm.facts.counts[c] > 0).sum().item() for c in COHORT]
    for weighting in ("uniform", "samples"):
        weights = cohort_weights(algorithm, weighting, COHORT)
        assert list(weights.values()) == pytest.approx([k / sum(owned) for k in owned])


# ---------------------------------------------------------------- a round
def test_the_model_is_the_weighted_mean():
    algorithm = compiled()
    messages = uplinks(algorithm)
    weights = cohort_weights(algorithm, "samples", COHORT)
    new = step(algorithm, weights, messages)
    assert new.round == 1
    for name in algorithm.facts.layout.parameters:
        expected = sum(weights[c] * messages[c]["model"][name].double() for c in COHORT)
        np.testing.assert_allclose(new.model[name], expected, atol=1e-6)


def test_statistics_are_plain_means_and_counters_those_of_the_first():
    """Running statistics do not go through ``update``: a server step size must not scale a variance."""

    @dataclass(frozen=True, kw_only=True)
    class HalfStep(Component):
        def update(self, delta, server):
            assert not set(delta) & set(server.facts.layout.buffers)
            return {n: 0.5 * d for n, d in delta.items()}

    algorithm = compiled({"half": HalfStep()}, norm=True)
    messages = uplinks(algorithm)
    weights = cohort_weights(algorithm, "uniform", COHORT)
    new = step(algorithm, weights, messages)
    mean, var, seen = (f"features.2.{n}" for n in ("running_mean", "running_var", "num_batches_tracked"))
    assert {mean, var, seen} <= set(new.model)
    for name in (mean, var):
        expected = np.mean([messages[c]["model"][name].numpy() for c in COHORT], axis=0)
        np.testing.assert_allclose(new.model[name], expected, atol=1e-6)
    assert new.model[seen].dtype == torch.int64
    assert new.model[seen] == messages[COHORT[0]]["model"][seen]
    weight = "features.2.weight"
    half = 0.5 * (
        algorithm.facts.initial[weight].numpy() + np.mean([messages[c]["model"][weight].numpy() for c in COHORT], 0)
    )
    np.testing.assert_allclose(new.model[weight], half, atol=1e-6)


def test_the_old_state_is_not_changed():
    algorithm = compiled(norm=True)
    state = algorithm.fresh_state()
    before = digest({"model": state.model})
    step(algorithm, cohort_weights(algorithm, "uniform", COHORT), uplinks(algorithm), state)
    assert digest({"model": state.model}) == before
    assert digest({"model": algorithm.facts.initial}) == before
    assert state.round == 0


@dataclass(frozen=True, kw_only=True)
class Sometimes(Component):
    """Declares three uploads and a mailbox; remembers what the server saw of them."""

    def slots(self):
        return Slot("total", "server", number(-1)), Slot("post", "mailbox", number(0), down=True)

    def uploads(self):
        return (
            Upload("always", number(0), "sum"),
            Upload("some", number(0), "uniform"),
            Upload("all", number(0), "keep"),
        )

    def serve(self, server):
        out = {"post": {c: {"value": t["value"] * 10} for c, t in server.kept["all"].items()}}
        if "some" in server.reduced:
            out["total"] = server.reduced["some"]
        return out


def test_missing_uploads_are_absent_and_the_mean_is_over_those_that_sent():
    algorithm = compiled({"s": Sometimes()})
    weights = cohort_weights(algorithm, "uniform", COHORT)
    messages = uplinks(algorithm)
    assert step(algorithm, weights, messages).slots["s.total"]["value"] == -1  # nobody sent
    messages[0]["s.some"] = {"value": torch.tensor(4.0)}
    messages[3]["s.some"] = {"value": torch.tensor(8.0)}
    assert step(algorithm, weights, messages).slots["s.total"]["value"] == 6


def test_no_model_from_anyone_leaves_the_model():
    algorithm = compiled(norm=True)
    state = algorithm.fresh_state()
    new = step(algorithm, cohort_weights(algorithm, "uniform", COHORT), {c: {} for c in COHORT}, state)
    assert digest({"": new.model}) == digest({"": state.model})


def test_mailboxes_are_filled_by_id_and_others_keep_their_mail():
    algorithm = compiled({"s": Sometimes()})
    state = algorithm.fresh_state()
    for cohort in ((0, 2), (2, 4)):
        weights = cohort_weights(algorithm, "uniform", cohort)
        messages = uplinks(algorithm, cohort)
        for c in cohort:
            messages[c]["s.all"] = {"value": torch.tensor(float(c + state.round))}
        state = step(algorithm, weights, messages, state)
    assert {c: t["value"].item() for c, t in state.mailboxes["s.post"].items()} == {0: 0, 2: 30, 4: 50}
    assert algorithm.downlink(state, 4)["s.post"]["value"] == 50
    assert algorithm.downlink(state, 1)["s.post"]["value"] == 0  # none yet: its initial value


def test_serving_something_undeclared_is_an_error():
    @dataclass(frozen=True, kw_only=True)
    class Stray(Component):
        def serve(self, server):
            return {"nowhere": {"value": torch.zeros(1)}}

    algorithm = compiled({"x": Stray()})
    with pytest.raises(PlanError, match=r"component 'x' sets 'nowhere', .*slots and mailboxes \(none\). Declare it"):
        step(algorithm, cohort_weights(algorithm, "uniform", COHORT), uplinks(algorithm))


def test_needs_are_served_first_and_seen():
    @dataclass(frozen=True, kw_only=True)
    class First(Component):
        def slots(self):
            return (Slot("v", "server", number(0)),)

        def serve(self, server):
            return {"v": {"value": server.mine["v"]["value"] + 1}}

    @dataclass(frozen=True, kw_only=True)
    class Second(First):
        needs = ("one",)

        def serve(self, server):
            return {"v": {"value": 100 * server.of("one")["v"]["value"]}}

    algorithm = compiled({"two": Second(), "one": First()})
    new = step(algorithm, cohort_weights(algorithm, "uniform", COHORT), uplinks(algorithm))
    assert new.slots["two.v"]["value"] == 100


# ---------------------------------------------------------------- the order of answers
def test_the_order_of_uploads_is_in_the_last_bits():
    """Else nothing that shows their order to be kept would show anything."""
    algorithm = compiled(norm=True)
    weights = cohort_weights(algorithm, "samples", COHORT)
    messages = uplinks(algorithm)
    there = step(algorithm, weights, messages)
    back = step(algorithm, weights, dict(reversed(messages.items())))
    assert digest({"": there.model}) != digest({"": back.model})


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ((0, 2), "the answer to task 2 came where that to task 1 was due"),
        ((1, 0, 2), "the answer to task 1 came where that to task 0 was due"),
        ((0, 1), "no answer came back for task 2 of 3"),
    ],
)
def test_an_executor_that_loses_or_mixes_answers_is_found_out(indices, words):
    assert [a.index for a in complete(map(TaskResult, range(3)), 3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match=words):
        list(complete(map(TaskResult, indices), 3))


# ---------------------------------------------------------------- through the engine
@dataclass(frozen=True, kw_only=True)
class Counter(Component):
    """Counts participations on the client and sums client ids on the server."""

    def slots(self):
        return Slot("seen", "client", number(0)), Slot("ids", "server", number(0.0))

    def uploads(self):
        return (Upload("id", number(0.0), "sum"),)

    def finish(self, local):
        return Out(
            slots={"seen": {"value": local.mine["seen"]["value"] + 1}},
            uploads={"id": {"value": torch.tensor(float(local.client))}},
        )

    def serve(self, server):
        return {"ids": {"value": server.mine["ids"]["value"] + server.reduced["id"]["value"]}}


def test_a_run_counts_who_took_part():
    engine = play({"counter": Counter()}, rounds=4)
    cohorts = [engine.sampler(t) for t in range(4)]
    assert engine.progress.state.slots["counter.ids"]["value"] == sum(map(sum, cohorts))
    for client in range(CLIENTS):
        times = sum(client in cohort for cohort in cohorts)
        private = engine.progress.store.get(client)
        assert (private["counter.seen"]["value"].item() if private else 0) == times
