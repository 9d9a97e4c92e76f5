"""The papers' protocols against explicit computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.build import build
from fedexp.client.network import load
from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.core.seeding import derive
from fedexp.core.state import digest
from fedexp.display import SilentDisplay
from fedexp.engine import Engine
from fedexp.evaluate.summary import summarise
from fedexp.evaluate.tester import Score
from fedexp.runs.directory import RunDir


def record(number: int, aggregation: float | None = None, personal: float | None = None) -> dict:
    goals = {"aggregation": aggregation, "personalization": personal}
    return {"round": number, **{k: {"accuracy": v} for k, v in goals.items() if v is not None}}


@pytest.fixture
def played(configured, tmp_path):
    """An engine after its last round, and the experiment it came from."""

    def play(*overrides: str, until: int | None = None):
        experiment = build(configured(*overrides))
        rundir = RunDir(tmp_path / "run")
        rundir.path.mkdir(exist_ok=True)
        engine = experiment.engine(rundir, SilentDisplay())
        engine.open()
        if until is None:
            engine.run(experiment.card(rundir))
        else:
            engine.play(until)
        return engine, experiment

    return play


def accuracy(net, weights, samples) -> float:
    load(net, weights)
    net.eval()
    with torch.no_grad():
        return (net(samples.x).argmax(1) == samples.y).double().mean().item()


# ---------------------------------------------------------------- the summary
def test_summary_by_hand():
    records = [record(1, 0.1, 0.9), record(2, 0.5, 0.2), record(3, 0.3, 0.4)]
    got = summarise(records, 2)
    assert got["aggregation"] == {
        "last": 0.3, "best": 0.5, "mean": pytest.approx(0.4), "std": pytest.approx(0.1), "window": 2,
    }  # fmt: skip
    assert got["personalization"] == {
        "last": 0.4, "best": 0.9, "mean": pytest.approx(0.3), "std": pytest.approx(0.1), "window": 2,
    }  # fmt: skip


def test_summary_of_fewer_rounds_than_the_window():
    got = summarise([record(1, 0.1), record(2, 0.2), record(3, 0.6)], 10)["aggregation"]
    assert got["window"] == 3
    assert got["mean"] == pytest.approx(0.3)
    assert got["std"] == pytest.approx(np.sqrt((0.04 + 0.01 + 0.09) / 3))


def test_what_was_not_measured_is_absent():
    assert set(summarise([record(1, None, 0.5)], 3)) == {"personalization"}
    assert summarise([], 3) == {}


# ---------------------------------------------------------------- MAP
def test_map_counts_models_right_after_training(played):
    """Without a personal model, that is the locally trained copy of the server's."""
    engine, experiment = played("rounds=1")
    cohort = engine.sampler(0)
    net, data = experiment.net, experiment.data
    after = []
    for client in cohort:
        load(net, experiment.algorithm.facts.initial)
        train(net, data, client, epochs=1, size=32, path=(0, client, "local"))
        after.append(accuracy(net, {}, data.own_test(client)))
    (got,) = engine.records
    assert got["personalization"]["clients"] == pytest.approx(after)
    assert got["personalization"]["accuracy"] == pytest.approx(np.mean(after))
    before = [accuracy(net, experiment.algorithm.facts.initial, data.own_test(c)) for c in cohort]
    assert got["personalization"]["before"] == pytest.approx(np.mean(before))


def train(net, data, client: int, *, epochs: int, size: int, path) -> None:
    """Plain local training with the run's default optimizer, written again."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-5)
    net.train().requires_grad_(requires_grad=True)
    steps = epochs * data.steps_per_epoch(client, size)
    for x, y in data.batches(client, size=size, begin=0, end=steps, seed=derive(0, "batches", *path)):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("algo", ["fedavg", "map"])
def test_all_clients_are_trained_and_tested_once_more_and_nothing_is_kept(played, algo):
    engine, _ = played(f"algo={algo}", "rounds=2", "evaluate.all_clients=true")
    before = engine.digests(), engine.ledger.up, len(list(engine.rundir.rows("clients.csv")))
    got = engine.protocol.conclude(engine.measurement)
    assert (engine.digests(), engine.ledger.up, len(list(engine.rundir.rows("clients.csv")))) == before
    detail = got["personalization"]["all_clients_detail"]
    assert len(detail["clients"]) == 6
    assert got["personalization"]["all_clients"] == pytest.approx(np.mean(detail["clients"]))
    assert engine.protocol.conclude(engine.measurement) == got


def test_all_clients_and_window_have_the_protocols_defaults():
    def protocol(*overrides):
        chosen = make(composed(overrides)["evaluate"])
        return type(chosen).__name__, chosen.window, chosen.all_clients

    assert protocol() == ("MapProtocol", 10, True)
    assert protocol("evaluate=fedrema") == ("FedRemaProtocol", 5, False)
    assert protocol("evaluate=fedgela") == ("FedGelaProtocol", 10, True)
    assert protocol("evaluate=fedrema", "evaluate.window=3", "evaluate.all_clients=7") == ("FedRemaProtocol", 3, 7)


# ---------------------------------------------------------------- FedReMa
def test_fedrema_counts_models_after_aggregation(played):
    engine, experiment = played("rounds=2", "evaluate=fedrema")
    model = engine.progress.state.model
    expected = [accuracy(experiment.net, model, experiment.data.own_test(c)) for c in engine.sampler(1)]
    assert engine.records[-1]["personalization"]["clients"] == pytest.approx(expected)
    trained = [float(r["after"]) for r in engine.rundir.rows("clients.csv") if r["round"] == "2"]
    assert trained != pytest.approx(expected)  # else the two protocols could not be told apart here


def test_fedrema_adapts_what_the_server_sends(played):
    """A step that is too short to matter: with and without it, the model is the same."""
    overrides = ("partition.max_classes=3", "local.epochs=4", "rounds=3", "evaluate=fedrema")
    engine, _ = played("algo=perfedavg", "algo.meta.alpha=1.0e-9", *overrides)
    for record in engine.records:
        assert record["personalization"]["unadapted"] == pytest.approx(record["personalization"]["accuracy"])


def test_fedrema_counts_the_classifier_in_the_mailbox(played):
    engine, experiment = played("algo=fedrema", "rounds=2", "evaluate=fedrema", "cohort.fraction=0.7")
    state = engine.progress.state
    expected = [
        accuracy(experiment.net, {**state.model, **state.mailboxes["heads.head"][c]}, experiment.data.own_test(c))
        for c in engine.sampler(1)
    ]
    assert engine.records[-1]["personalization"]["clients"] == pytest.approx(expected)
    assert all("aggregation" not in r for r in engine.records)  # the server's model has no classifier


# ---------------------------------------------------------------- FedGELA
GELA = ("evaluate=fedgela", "evaluate.finetune_epochs=2")


def test_fedgela_finetunes_the_best_server_model(played):
    engine, experiment = played(*GELA, "rounds=4", "optim.lr=0.03")
    got = engine.protocol.conclude(engine.measurement)
    accuracies = [r["aggregation"]["accuracy"] for r in engine.records]
    assert got["aggregation"]["GA"] == max(accuracies)
    data, net = experiment.data, experiment.net
    best = engine.progress.best
    assert accuracy(net, best, data.test) == pytest.approx(max(accuracies))
    scores = []
    for client in range(6):
        load(net, best)
        train(net, data, client, epochs=2, size=32, path=(0, client, "local"))
        scores.append(accuracy(net, {}, data.own_test(client)))
    assert got["personalization"]["PA"] == pytest.approx(np.mean(scores))
    assert digest({"": engine.progress.best}) == digest({"": best})


def test_the_best_model_is_that_of_the_best_round(played, monkeypatch):
    """Accuracies are planted: the third round is the best, the fourth only equals it."""
    planted = iter([1, 3, 7, 7, 2])
    models = []

    def score(engine, answers):
        assert list(answers)
        models.append(engine.progress.state.model)
        return Score((next(planted),), (10,), 0, 0, 0.0, 0)

    monkeypatch.setattr(Engine, "pooled", score)
    engine, _ = played(*GELA, "rounds=5", "partition.test=none")
    assert digest({"": engine.progress.best}) == digest({"": models[2]})
    assert digest({"": engine.progress.best}) != digest({"": models[3]})
    assert engine.checkpoint.load().best.keys() == models[2].keys()  # a resumed run needs it


def test_fedgela_of_methods_with_personal_models_takes_the_best_round(played):
    engine, _ = played("algo=ditto", *GELA, "rounds=3")
    got = engine.protocol.conclude(engine.measurement)
    assert got["personalization"]["PA"] == max(r["personalization"]["accuracy"] for r in engine.records)


@pytest.mark.parametrize("stopped", [False, True])
def test_fedgela_averages_over_all_clients_each_with_its_latest_score(played, stopped):
    """Who has not taken part yet counts with the model it would receive; who was not drawn again, with its last one."""
    if stopped:
        first, _ = played("algo=ditto", *GELA, "rounds=4", "cohort.fraction=0.34", "every.checkpoint=1", until=2)
        assert len(first.records) == 2
    engine, experiment = played("algo=ditto", *GELA, "rounds=4", "cohort.fraction=0.34", "every.checkpoint=1")
    rows = [*engine.rundir.rows("clients.csv")]
    seen: dict[int, float] = {}
    for t, got in enumerate(engine.records):
        seen |= {int(r["client"]): float(r["after"]) for r in rows if int(r["round"]) == t + 1}
        assert len(got["personalization"]["clients"]) == 6
        assert {c: got["personalization"]["clients"][c] for c in seen} == seen
        assert got["personalization"]["accuracy"] == pytest.approx(np.mean(got["personalization"]["clients"]))
    assert 2 < len(seen) < 6  # else nothing was tested here
    new = sorted(set(range(6)) - set(seen))
    received = [
        accuracy(experiment.net, engine.progress.state.model, experiment.data.own_test(client)) for client in new
    ]
    assert [engine.records[-1]["personalization"]["clients"][c] for c in new] == pytest.approx(received)
    pa = engine.protocol.conclude(engine.measurement)["personalization"]["PA"]
    assert pa == max(r["personalization"]["accuracy"] for r in engine.records)


def test_fedgela_of_methods_without_a_server_model(played):
    """GA is the mean over clients of the global accuracy of their best model, best by their own test."""
    engine, _ = played("algo=fedrema", *GELA, "rounds=4")
    got = engine.protocol.conclude(engine.measurement)
    best: dict[str, tuple[float, float]] = {}
    for row in engine.rundir.rows("clients.csv"):
        own, globally = float(row["after"]), float(row["globally"])
        if row["client"] not in best or own > best[row["client"]][0]:
            best[row["client"]] = own, globally
    assert got["aggregation"]["GA"] == pytest.approx(np.mean([g for _, g in best.values()]))
    assert {float(r["globally"]) for r in engine.rundir.rows("clients.csv")} != {0.0}


@pytest.mark.parametrize("algo", ["fedavg", "map", "fedrema"])
def test_fedgela_without_clients_tests(played, algo):
    """Nothing can be said about personal models, and a long run must not fail on that at its end."""
    engine, _ = played(f"algo={algo}", *GELA, "rounds=1", "partition.test=none")
    got = engine.protocol.conclude(engine.measurement)
    assert "personalization" not in got
    assert ("aggregation" in got) == (algo != "fedrema")


def test_fedgela_where_no_client_of_a_round_could_be_tested(played):
    """Those that have not taken part are tested, with the model that they begin with."""
    engine, _ = played("algo=fedper", *GELA, "rounds=1", "optim.lr=1.0e+30", "faults=skip")
    assert "personalization" in engine.records[-1]
    assert "aggregation" not in engine.protocol.conclude(engine.measurement)


def test_a_round_without_clients_tests_has_no_personal_block(played):
    for protocol in ("map", "fedrema"):
        engine, _ = played("rounds=1", "partition.test=none", f"evaluate={protocol}")
        assert "personalization" not in engine.records[-1]
        assert engine.protocol.conclude(engine.measurement) == {}
