"""Measures of missing classes: counted by hand, and written again from the models of small runs."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedexp.algos.ditto import Ditto
from fedexp.algos.private import PrivatePart
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.network import load
from fedexp.core.component import Component
from fedexp.core.state import digest, snapshot
from fedexp.data.source import Samples
from fedexp.evaluate.missing import MEASURES, measures, rare_classes, sample
from fedexp.evaluate.summary import summarise
from fedexp.evaluate.tester import Score
from fedexp.evaluate.tester import Tester as Examiner  # pytest takes Test… for tests
from fedexp.testing import CLIENTS, OWNED, tiny_net
from tests.helpers import jobs_of, opened, played, round_of, worker_of
from tests.miniatures import FineTune

RARE = [False, False, False, True]  # of the battery's classes: the last has one owner, the others have three


# ---------------------------------------------------------------- by hand
def score(correct: tuple[int, ...], total: tuple[int, ...], restricted: int = 0, predicted_owned: int = 0) -> Score:
    return Score(correct, total, restricted, total[0] + total[2], 0.0, predicted_owned)


def test_measures_by_hand():
    """A client that owns classes 0 and 2; class 3 is rare."""
    before, after = score((1, 8, 1, 2), (4, 10, 4, 2)), score((3, 1, 2, 1), (4, 10, 4, 2), 7, 15)
    got = measures(before, after, [True, False, True, False], RARE)
    assert tuple(got) == MEASURES
    assert got == {
        "accuracy": 7 / 20, "owned": 5 / 8, "owned_restricted": 7 / 8, "absent": 2 / 12, "rare": 1 / 2,
        "forgotten": 10 / 12 - 2 / 12, "predicted_owned": 15 / 20,
    }  # fmt: skip


def test_what_cannot_be_measured_is_absent():
    everything = score((1, 1, 1, 1), (2, 2, 2, 2))
    assert {"absent", "rare", "forgotten"}.isdisjoint(measures(everything, everything, [True] * 4, [False] * 4))
    not_tested = score((0, 1, 0, 1), (0, 2, 0, 2))
    got = measures(None, not_tested, [True, False, True, False], RARE)
    assert {"owned", "owned_restricted", "forgotten"}.isdisjoint(got)
    assert (got["absent"], got["rare"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("counts", "rare"),
    [([[5, 5], [5, 5]], [0, 0]),
     ([[5, 5, 0], [5, 5, 9], [5, 5, 0]], [0, 0, 1]),  # owners 3, 3, 1: at most half of 7/3; samples are alike
     ([[5, 5, 0], [5, 5, 6], [5, 5, 6]], [0, 0, 0]),  # owners 3, 3, 2
     ([[9, 9, 1], [9, 9, 1]], [0, 0, 1]),  # samples 18, 18, 2: at most half of 38/3; owners are alike
     ([[4, 0], [4, 0]], [0, 1])],  # a class that nobody owns
)  # fmt: skip
def test_rare_classes_by_hand(counts, rare):
    assert rare_classes(torch.tensor(counts, dtype=torch.float32)) == [bool(r) for r in rare]


# ---------------------------------------------------------------- the sample
@pytest.mark.parametrize("count", [1, 7, 10, 99, 150, 199])
def test_each_class_has_its_share_of_the_sample(count):
    y = torch.tensor([0] * 100 + [1] * 60 + [2] * 39 + [3])[torch.randperm(200, generator=torch.Generator())]
    drawn = sample(Samples(torch.arange(200.0)[:, None], y), count, seed=3)
    rows = drawn.x[:, 0].long()
    assert len(set(rows.tolist())) == len(drawn) == count
    assert torch.equal(y[rows], drawn.y)
    shares = torch.bincount(y, minlength=4) * count / 200
    assert ((torch.bincount(drawn.y, minlength=4) - shares).abs() < 1).all()


def test_the_seed_draws_the_sample():
    test = Samples(torch.arange(200.0)[:, None], torch.arange(200) % 10)
    draws = [sample(test, 50, seed).x[:, 0].tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert sample(test, 200, 0) is sample(test, 999, 0) is test


# ---------------------------------------------------------------- written again
def predictions(net, weights, x) -> np.ndarray:
    load(net, weights)
    with torch.no_grad():
        return net.eval()(x).numpy()


def again(download: np.ndarray, trained: np.ndarray, y: np.ndarray, owned: tuple[int, ...]) -> dict[str, float]:
    """The measures from the logits of both models."""
    mine, rare = np.isin(y, owned), y == 3
    absent, right = ~mine, trained.argmax(1) == y
    only = np.where(np.isin(np.arange(4), owned), trained, -np.inf).argmax(1)
    known = (download.argmax(1) == y)[absent].mean()
    return {
        "accuracy": right.mean(), "owned": right[mine].mean(), "owned_restricted": (only == y)[mine].mean(),
        "absent": right[absent].mean(), "rare": right[rare].mean(), "forgotten": known - right[absent].mean(),
        "predicted_owned": np.isin(trained.argmax(1), owned).mean(),
    }  # fmt: skip


def measured_and_again(components, client: int, loop, norm: bool, tested) -> None:
    """Compares a client's measures in round 4 with those of the two models; ``tested`` picks the personal one."""
    with opened(components, loop=loop, norm=norm, rounds=4) as engine:
        for _ in range(3):
            round_of(engine)
        worker = worker_of(engine)
        (job,) = jobs_of(engine, [client])
        result = worker.work(replace(job, missing=20))
        part = sample(worker.data.test, 20, engine.algorithm.facts.seed)
        received = {**engine.algorithm.facts.initial, **engine.progress.state.model}
    net, y = tiny_net(norm=norm), part.y.numpy()
    logits = [predictions(net, weights, part.x) for weights in (received, tested(result))]
    assert result.missing == pytest.approx(again(*logits, y, OWNED[client]))
    assert not np.array_equal(logits[0].argmax(1), logits[1].argmax(1))


@pytest.mark.parametrize("loop", [FabricLoop, TrainerLoop])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("client", [0, 2, 3])
def test_the_downloaded_and_the_trained_model_are_compared(client, norm, loop):
    measured_and_again({}, client, loop, norm, lambda result: result.uplink["model"])


def test_it_is_the_personal_model_that_is_measured():
    measured_and_again({"ditto": Ditto()}, 1, FabricLoop, False, lambda result: result.private["ditto.model"])


def test_phases_before_a_test_run_before_this_one_too():
    with opened({"babu": FineTune()}) as engine:
        (job,) = jobs_of(engine, [1])
        result = worker_of(engine).work(replace(job, missing=True, test_globally=True))
    assert result.missing["accuracy"] == result.globally.accuracy
    assert result.missing["owned"] == result.globally.accuracy_on([False, True, True, False])


# ---------------------------------------------------------------- when, and how often
def test_it_is_measured_where_a_test_is_due_and_asked_for():
    with opened({}) as engine:
        (job,), worker = jobs_of(engine, [0]), worker_of(engine)
        asked = [replace(job, missing=missing, due=due) for missing in (True, 7, False) for due in (True, False)]
        assert [bool(worker.work(each).missing) for each in asked] == [True, False, True, False, False, False]


def test_clients_without_a_test_set_are_measured_too(tmp_path):
    engine = played(tmp_path / "run", "partition.test=none")
    assert "personalization" not in engine.records[-1]
    assert {"owned", "absent", "forgotten"} <= set(engine.records[-1]["missing"])
    assert all(row["missing/owned"] for row in engine.rundir.rows("clients.csv"))


class Counting:
    """Counts the tests of sets of so many samples, and the weights that were tested."""

    def __init__(self, monkeypatch, samples: int) -> None:
        self.tested: list[str] = []
        original = Examiner.score

        def score(tester, weights, tests, *args):
            if len(tests) == samples:
                self.tested.append(digest({"": snapshot(weights)}))
            return original(tester, weights, tests, *args)

        monkeypatch.setattr(Examiner, "score", score)


@pytest.mark.parametrize(
    ("components", "shared"),
    [({}, True), ({"ditto": Ditto()}, True), ({"own": PrivatePart(part="classifier")}, False)],
)  # fmt: skip
def test_a_model_that_all_clients_download_is_tested_once_a_round(components, shared, monkeypatch):
    count = Counting(monkeypatch, 30)
    with opened(components, rounds=3) as engine:
        engine.protocol = replace(engine.protocol, missing=30)
        cohort = engine.sampler.size
        for done in range(1, 4):
            round_of(engine)
            assert len(count.tested) == done * (cohort + (1 if shared else cohort))
    assert cohort > 1
    if shared:  # and it is that of the round, not of an earlier one
        assert max(Counter(count.tested).values()) == 1


@pytest.mark.parametrize("missing", [True, 40])
def test_a_test_on_the_whole_test_set_serves_both(missing, monkeypatch):
    count = Counting(monkeypatch, 40)
    with opened({}) as engine:
        (job,) = jobs_of(engine, [0])
        result = worker_of(engine).work(replace(job, missing=missing, test_globally=True))
    assert len(count.tested) == 2  # the downloaded model, and the trained one
    assert result.missing["accuracy"] == result.globally.accuracy


class OwnClasses(Component):
    """Answers depend on the client: its own classes only."""

    def logits(self, z, step):
        return z if step.info is None else z.masked_fill(~step.info.owned, -1e9)


def test_answers_that_depend_on_the_client_are_counted_for_each(monkeypatch):
    count = Counting(monkeypatch, 40)
    with opened({"own": OwnClasses(during=("eval",))}) as engine:
        worker = worker_of(engine)
        results = [worker.work(replace(job, missing=True)) for job in jobs_of(engine, range(CLIENTS))]
    assert len(count.tested) == 2 * CLIENTS
    assert all(r.missing["absent"] == r.missing["forgotten"] == 0 for r in results)
    assert all(r.missing["predicted_owned"] == 1 for r in results)


# ---------------------------------------------------------------- in the files of a run
def but_missing(engine):
    """The records and rows of a run without the measures of missing classes, and without seconds."""
    records = [{k: v for k, v in r.items() if k not in ("missing", "seconds")} for r in engine.records]
    rows = [{k: v for k, v in r.items() if not k.startswith("missing/")} for r in engine.rundir.rows("clients.csv")]
    return engine.digests(), records, rows


@pytest.mark.parametrize("evaluate", ["map", "fedgela", "fedrema"])
@pytest.mark.parametrize("algo", ["fedavg", "map", "fedper", "fedbabu_ft"])
def test_other_numbers_are_the_same_with_and_without(algo, evaluate, tmp_path):
    more = (f"algo={algo}", f"evaluate={evaluate}", "rounds=3")
    runs = [played(tmp_path / m, *more, f"evaluate.missing={m}") for m in ("50", "false")]
    assert but_missing(runs[0]) == but_missing(runs[1])
    assert all("missing" in record for record in runs[0].records)
    assert not any("missing" in record for record in runs[1].records)


def test_some_clients_of_a_large_cohort_are_measured(tmp_path):
    more = ("algo=fedavg", "rounds=3", "cohort.fraction=1", "evaluate.missing=50")
    some, all_ = (played(tmp_path / n, *more, f"evaluate.missing_clients={n}") for n in ("2", "true"))
    assert but_missing(some) == but_missing(all_)
    drawn = {}
    for row, whole in zip(some.rundir.rows("clients.csv"), all_.rundir.rows("clients.csv"), strict=True):
        assert whole["missing/owned"]
        if row["missing/owned"]:
            assert row == whole
            drawn.setdefault(row["round"], set()).add(row["client"])
    assert [len(clients) for clients in drawn.values()] == [2, 2, 2]
    assert len(set.union(*drawn.values())) > 2  # others in another round


def test_records_have_the_means_over_clients_and_the_result_those_over_rounds(tmp_path):
    engine = played(tmp_path / "run", "algo=map", "rounds=3", "evaluate.missing=100", "evaluate.window=2")
    with (tmp_path / "run" / "clients.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "ok"]
    means = []
    for number, record in enumerate(engine.records, 1):
        mine = [row for row in rows if row["round"] == str(number)]
        columns = {name: [float(v) for row in mine if (v := row[f"missing/{name}"])] for name in MEASURES}
        means.append({name: np.mean(values) for name, values in columns.items() if values})
        assert record["missing"] == pytest.approx(means[-1])
    late = {name: np.mean([m[name] for m in means[-2:]]) for name in means[-1]}
    assert summarise(engine.records, 2)["missing"] == pytest.approx({**late, "window": 2})


def test_every_protocol_measures_the_same(tmp_path):
    runs = [played(tmp_path / e, "algo=fedper", f"evaluate={e}") for e in ("map", "fedgela", "fedrema")]
    first, *others = ([record["missing"] for record in run.records] for run in runs)
    assert [others[0], others[1]] == [first, first]


def test_all_clients_after_the_last_round(tmp_path):
    engine = played(tmp_path / "run", "evaluate.all_clients=true", "evaluate.missing=60")
    detail = engine.protocol.conclude(engine.measurement)["personalization"]["all_clients_detail"]
    each = engine.measurement.train_once_more(range(6))
    assert detail["missing"] == pytest.approx(
        {n: np.mean([r.missing[n] for r in each.values() if n in r.missing]) for n in detail["missing"]}
    )
    assert set(detail["missing"]) >= {"owned", "absent", "forgotten"}
