"""Clients that fail: who is left out, what is written down, and that nobody else's numbers are touched."""

from __future__ import annotations

import csv
import math
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import fedexp
from fedexp.algos.fedrema import RelativityHeads
from fedexp.algos.scaffold import Scaffold
from fedexp.client.faults import Faults, time_limit
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.messages import Job
from fedexp.client.module import ClientModule
from fedexp.config.identity import run_path
from fedexp.core.component import Component
from fedexp.core.state import Out, Slot, Upload, digest
from fedexp.display import SilentDisplay
from fedexp.errors import ClientError, ConfigError
from fedexp.evaluate.fedgela import FedGelaProtocol
from fedexp.evaluate.fedrema import FedRemaProtocol
from fedexp.runs.names import ERROR
from fedexp.runs.plan import forecast
from fedexp.runs.rows import client_columns
from fedexp.server.sampler import ClientDropouts
from fedexp.testing import CLIENTS, card, play, trial
from tests.helpers import Recorder, array, batches_of, opened, round_of, work, worker_of

SKIP = Faults("skip")
LOOPS = [FabricLoop, TrainerLoop]


@dataclass(frozen=True, kw_only=True)
class Fails(Component):
    """Goes wrong at some clients, in some rounds (none given: in all), in a certain way."""

    how: str = "exception"
    clients: tuple[int, ...] = (1,)
    rounds: tuple[int, ...] = ()

    def _is_due(self, round_: int, client: int) -> bool:
        return client in self.clients and (not self.rounds or round_ in self.rounds)

    def start(self, weights, view):
        if self.how == "start" and view.info.client in self.clients:
            raise KeyError("first")
        return weights

    def loss(self, step):
        round_, client, _ = step.frame.rng_path
        if not self._is_due(round_, client):
            return None
        if self.how == "exception":
            raise LookupError("planned\nwith a second line")
        if self.how == "loss":
            return step.z.sum() * math.nan
        if self.how == "slow":
            time.sleep(60)
        return None

    def uplink(self, weights, local):
        if self.how == "uplink" and self._is_due(local.round, local.client):
            raise KeyError("third")
        if self.how == "update" and self._is_due(local.round, local.client):
            return {k: v * math.inf for k, v in weights.items()}
        return weights

    def finish(self, local):
        if self.how == "finish" and self._is_due(local.round, local.client):
            raise ZeroDivisionError("second")
        return Out()


@dataclass(frozen=True, kw_only=True)
class Keeps(Component):
    """Counts a client's rounds in a private slot, and sends each way of reducing something by client."""

    spoilt: tuple[int, ...] = ()
    seen: ClassVar[list[dict[str, torch.Tensor]]] = []

    def slots(self):
        return (Slot("count", "client", lambda _: {"n": torch.zeros(2)}),)

    def uploads(self):
        like = lambda _: {"v": torch.zeros(3)}  # noqa: E731
        return tuple(Upload(how, like, how) for how in ("weighted", "uniform", "sum", "keep"))

    def finish(self, local):
        value = {"v": torch.full((3,), float(local.client + 1))}
        step = math.nan if local.client in self.spoilt else 1.0
        return Out(
            slots={"count": {"n": local.views["keeps"]["count"]["n"] + step}},
            uploads=dict.fromkeys(("weighted", "uniform", "sum", "keep"), value),
        )

    def serve(self, server):
        self.seen.append(
            {**{k: v["v"] for k, v in server.reduced.items()}, "kept": server.kept["keep"], "weights": server.weights}
        )
        return {}


class Notes(SilentDisplay):
    """Remembers what it is told."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def rows(folder, name):
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def ran(components, folder, **options):
    engine = trial(components, folder, **options)
    engine.display = Notes()
    engine.run(card(engine))
    return engine


# ---------------------------------------------------------------- raise: round, client, phase and cause
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exception", r"round 1, client 1, phase 'local': LookupError: planned$"),
        ("loss", r"round 1, client 1, phase 'local': loss term 'ce' is not finite\. Lower optim\.lr"),
        ("update", r"round 1, client 1: upload 'model' has a value that is not finite\. Lower optim\.lr"),
        ("start", r"round 1, client 1: KeyError: 'first'$"),
        ("finish", r"round 1, client 1: ZeroDivisionError: second$"),
        ("uplink", r"round 1, client 1: KeyError: 'third'$"),
    ],
)
def test_raise_names_round_client_phase_and_cause(how, words):
    with pytest.raises(ClientError, match=words) as failure:
        play({"x": Fails(how=how)}, fraction=1.0)
    assert ("Traceback" in failure.value.details) == (how not in ("loss", "update"))


# ---------------------------------------------------------------- skip
@pytest.mark.parametrize(
    ("how", "loop"),
    [*((how, FabricLoop) for how in ("exception", "loss", "update", "start", "finish", "uplink")),
     ("exception", TrainerLoop)],
)  # fmt: skip
def test_skip_leaves_the_client_out_and_says_so(how, loop, tmp_path):
    rounds = (1,) if how != "start" else (0, 1, 2)
    engine = ran({"x": Fails(how=how, rounds=(1,))}, tmp_path, faults=SKIP, loop=loop, fraction=1.0)
    status = {(int(r["round"]) - 1, int(r["client"])): r["status"] for r in rows(tmp_path, "clients.csv")}
    bad = {(t, 1) for t in rounds}
    assert {key for key, s in status.items() if s != "ok"} == bad
    assert len(status) == 3 * CLIENTS
    assert all(f"round {t + 1}, client {c}" in status[t, c] for t, c in bad)
    ups = {(int(r["round"]) - 1, int(r["client"])): (r["name"], r["bytes"]) for r in rows(tmp_path, "ledger.csv")
           if r["direction"] == "up"}  # fmt: skip
    assert {key for key, up in ups.items() if up == ("failed", "0")} == bad
    assert len([r for r in rows(tmp_path, "ledger.csv") if r["direction"] == "down"]) == 3 * CLIENTS
    assert len([n for n in engine.display.notes if n.startswith("left out: round ")]) == len(bad)
    assert engine.progress.state.round == 3
    assert all(bool(v.isfinite().all()) for v in engine.progress.state.model.values())


@pytest.mark.parametrize("how", ["exception", "loss", "update", "finish"])
def test_nobody_elses_numbers_are_touched(how, tmp_path):
    """What the others send is what they would have sent; the mean is over them alone."""
    bad = 1
    with opened({"x": Fails(how=how, clients=(bad,))}, faults=SKIP, fraction=1.0) as engine:
        others = {c: work(engine, c).uplink["model"] for c in range(CLIENTS) if c != bad}
        counts = engine.algorithm.facts.counts
        state = round_of(engine)
    sizes = {c: float(counts[c].sum()) for c in others}
    for name in state.model:
        expected = sum(sizes[c] * array(t[name]) for c, t in others.items()) / sum(sizes.values())
        np.testing.assert_allclose(array(state.model[name]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weights_are_renormalised_over_those_who_answered(weighting):
    Keeps.seen.clear()
    with opened({"x": Fails(clients=(0, 3)), "keeps": Keeps()}, faults=SKIP, weighting=weighting, fraction=1.0) as e:
        counts = array(e.algorithm.facts.counts)
        round_of(e)
    (seen,) = Keeps.seen
    there = [1, 2, 4]
    sizes = np.array([counts[c].sum() if weighting == "samples" else 1.0 for c in there])
    values = np.array(there) + 1.0
    np.testing.assert_allclose(array(seen["weighted"]), np.full(3, (sizes * values).sum() / sizes.sum()), rtol=1e-6)
    np.testing.assert_allclose(array(seen["uniform"]), np.full(3, values.mean()), rtol=1e-6)
    np.testing.assert_allclose(array(seen["sum"]), np.full(3, values.sum()), rtol=1e-6)
    assert {c: float(t["v"][0]) for c, t in seen["kept"].items()} == {1: 2.0, 2: 3.0, 4: 5.0}
    assert seen["weights"] == pytest.approx(dict(zip(there, sizes / sizes.sum(), strict=True)))
    assert sum(seen["weights"].values()) == pytest.approx(1, abs=1e-12)


def test_fedrema_mixes_the_classifiers_of_those_who_answered():
    with opened({"x": Fails(clients=(0, 3)), "heads": RelativityHeads()}, faults=SKIP, fraction=1.0) as engine:
        state = round_of(engine)
        assert set(state.mailboxes["heads.head"]) == {1, 2, 4}
        chosen = state.slots["heads.chosen"]["value"]
    assert {int(c) for c in chosen.nonzero().flatten()} == {1, 2, 4}


@pytest.mark.parametrize("how", ["exception", "loss", "update", "finish"])
def test_a_failed_clients_slots_stay_as_they_were(how):
    parts = {"x": Fails(how=how, clients=(2,), rounds=(1,)), "scaffold": Scaffold(), "keeps": Keeps()}
    with opened(parts, faults=SKIP, fraction=1.0) as engine:
        round_of(engine)
        before = {c: digest(engine.progress.store.get(c)) for c in range(CLIENTS)}
        round_of(engine)
        after = {c: digest(engine.progress.store.get(c)) for c in range(CLIENTS)}
        assert {c for c in before if before[c] == after[c]} == {2}
        assert float(engine.progress.store.get(2)["keeps.count"]["n"][0]) == 1.0


def test_a_slot_that_is_not_finite_is_a_fault():
    """It would make its client fail in every round to come."""
    with opened({"keeps": Keeps(spoilt=(2,))}, faults=SKIP, fraction=1.0) as engine:
        round_of(engine)
        assert engine.progress.store.get(2) == {}
        assert engine.progress.store.get(1) != {}
    with pytest.raises(ClientError, match=r"client 2: its slot 'keeps\.count' has a value that is not finite"):
        play({"keeps": Keeps(spoilt=(2,))}, fraction=1.0)


@pytest.mark.parametrize("mishap", ["fault", "dropout"])
def test_a_round_in_which_all_fail_leaves_the_model_and_counts(mishap, tmp_path):
    everybody = tuple(range(CLIENTS))
    if mishap == "fault":
        options = {"faults": SKIP}
        parts = {"x": Fails(clients=everybody, rounds=(1,)), "scaffold": Scaffold()}
    else:
        options = {"mishaps": ClientDropouts(0, dropout=1.0)}
        parts = {"scaffold": Scaffold()}
    engine = trial(parts, tmp_path, rounds=3, fraction=1.0, **options)
    states = [engine.progress.state, *(round_of(engine) for _ in range(3))]
    assert [s.round for s in states] == [0, 1, 2, 3]
    kept = [digest({"": s.model, **s.slots}) for s in states]
    assert kept[1] == kept[2]
    assert (kept[2] != kept[3]) == (mishap == "fault")
    assert len(rows(tmp_path, "clients.csv")) == 3 * CLIENTS
    records = engine.records
    assert ("personalization" in records[1], "aggregation" in records[1]) == (False, True)


# ---------------------------------------------------------------- dropouts and stragglers
def test_who_drops_out_got_the_message_and_sent_nothing(tmp_path):
    mishaps = ClientDropouts(3, dropout=0.4)
    engine = ran({"scaffold": Scaffold()}, tmp_path, mishaps=mishaps, fraction=1.0)
    out = {(t, c) for t in range(3) for c in mishaps.dropped(t, range(CLIENTS))}
    assert 0 < len(out) < 3 * CLIENTS
    status = {(int(r["round"]) - 1, int(r["client"])): r["status"] for r in rows(tmp_path, "clients.csv")}
    assert status == {(t, c): "dropped out" if (t, c) in out else "ok" for t in range(3) for c in range(CLIENTS)}
    ledger = rows(tmp_path, "ledger.csv")
    heard = {(int(r["round"]) - 1, int(r["client"])) for r in ledger if r["direction"] == "up"}
    told = {(int(r["round"]) - 1, int(r["client"])) for r in ledger if r["direction"] == "down"}
    assert (heard, told) == (set(status) - out, set(status))
    down, up = forecast(engine.algorithm)
    assert engine.ledger.down == len(status) * sum(down.values())
    assert engine.ledger.up == len(heard) * sum(up.values())
    assert engine.display.notes == []  # simulated trouble is no news


def test_a_dropout_is_a_client_that_was_left_out(tmp_path):
    mishaps = ClientDropouts(3, dropout=0.4)
    gone = mishaps.dropped(0, range(CLIENTS))
    dropped = ran({}, tmp_path / "a", rounds=1, mishaps=mishaps, fraction=1.0)
    failed = ran({"x": Fails(clients=tuple(gone))}, tmp_path / "b", rounds=1, faults=SKIP, fraction=1.0)
    assert dropped.digests() == failed.digests()


@pytest.mark.parametrize("slow", [0.0, 0.01, 0.34, 0.5, 1.0])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_straggler_takes_its_share_of_steps_and_at_least_one(slow, loop):
    seen = Recorder()
    with opened(
        {"seen": seen}, mishaps=ClientDropouts(0, stragglers=1.0, slow=slow), loop=loop, fraction=1.0
    ) as engine:
        data = worker_of(engine).data
        round_of(engine)
    assert len(seen.rounds) == CLIENTS
    for local in seen.rounds:
        whole = 2 * data.steps_per_epoch(local.client, 4)
        assert local.steps == {"local": max(math.floor(slow * whole + 1e-9), 1)}


def test_a_straggler_takes_the_first_of_its_steps():
    """It sees the batches that it would have seen anyway."""
    with opened({}, fraction=1.0) as engine:
        job = Job(0, 1, {}, {})
        whole = batches_of(engine, job, "local")
        part = batches_of(engine, replace(job, share=0.5), "local")
    assert len(part) == len(whole) // 2 > 0
    assert all(torch.equal(a[0], b[0]) for a, b in zip(part, whole, strict=False))


# ---------------------------------------------------------------- the same numbers, stopped or not
@pytest.mark.parametrize("how", ["exception", "update"])
def test_resume_with_skip_and_mishaps_is_exact(how, tmp_path):
    parts = {"x": Fails(how=how, clients=(1, 4)), "scaffold": Scaffold()}
    options = {"faults": SKIP, "mishaps": ClientDropouts(3, dropout=0.3, stragglers=0.5, slow=0.4), "fraction": 1.0}
    whole = ran(parts, tmp_path / "whole", rounds=4, **options)
    first = trial(parts, tmp_path / "cut", rounds=4, **options)
    first.rounds = 2
    first.run(card(first))
    second = ran(parts, tmp_path / "cut", rounds=4, **options)
    assert second.digests() == whole.digests()
    for name in ("clients.csv", "ledger.csv"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert (second.ledger.up, second.ledger.down) == (whole.ledger.up, whole.ledger.down)


def test_an_error_with_odd_characters_stays_in_its_row(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Odd(Component):
        def finish(self, local):
            if local.client == 1:
                raise ValueError('a, "b"\r\x0b\u2028c, d')
            return Out()

    engine = ran({"x": Odd()}, tmp_path, faults=SKIP, fraction=1.0)
    cells = rows(tmp_path, "clients.csv")
    assert {len(r) for r in cells} == {len(client_columns(engine.algorithm))}
    assert cells[1]["status"] == 'round 1, client 1: ValueError: a, "b"'


# ---------------------------------------------------------------- protocols
@pytest.mark.parametrize("how", ["exception", "start", "update"])
@pytest.mark.parametrize("kind", ["map", "fedgela", "fedrema"])
def test_a_client_that_always_fails_does_not_spoil_the_end(kind, how, tmp_path):
    engine = trial({"x": Fails(how=how)}, tmp_path, faults=SKIP, fraction=1.0)
    engine.display = Notes()
    if kind != "map":
        found = []
        trial({"x": Fails(how=how)}, tmp_path / "other", faults=SKIP, executor=found.append)
        (blueprint,) = found
        engine.protocol = FedGelaProtocol() if kind == "fedgela" else FedRemaProtocol(all_clients=True)
        engine.plain = blueprint
    engine.run(card(engine))
    engine.display.notes.clear()
    block = engine.protocol.conclude(engine.measurement)["personalization"]
    assert list(block["all_clients_detail"]["failed"]) == ["1"]
    assert block["all_clients_detail"]["failed"]["1"].startswith("after the last round, client 1")
    assert len(block["all_clients_detail"]["clients"]) == CLIENTS - 1
    assert math.isfinite(block["all_clients"])
    assert ("PA" in block) == (kind == "fedgela")
    assert len([n for n in engine.display.notes if "client 1" in n]) == (2 if kind == "fedgela" else 1)


def test_nobody_can_be_tested_at_the_end(tmp_path):
    everybody = tuple(range(CLIENTS))
    engine = ran({"x": Fails(clients=everybody, rounds=(2, 3))}, tmp_path, rounds=3, faults=SKIP, fraction=1.0)
    block = engine.protocol.conclude(engine.measurement)["personalization"]
    assert list(block) == ["all_clients_detail"]
    assert [*map(int, block["all_clients_detail"]["failed"])] == block["all_clients_detail"]["asked"] == [*everybody]
    assert "personalization" in engine.records[0]


# ---------------------------------------------------------------- the time limit
@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_takes_too_long(loop, tmp_path):
    parts = {"x": Fails(how="slow", clients=(1,), rounds=(0,))}
    before = signal.getsignal(signal.SIGALRM)
    engine = ran(parts, tmp_path, rounds=2, faults=Faults("skip", 2.0), loop=loop, fraction=1.0)
    status = {(r["round"], r["client"]): r["status"] for r in rows(tmp_path, "clients.csv")}
    assert {k: s for k, s in status.items() if s != "ok"} == {
        ("1", "1"): "round 1, client 1: not done after 2 s (limit)"
    }
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    same = ran({"x": Fails(clients=(1,), rounds=(0,))}, tmp_path / "b", rounds=2, faults=SKIP, loop=loop, fraction=1.0)
    assert engine.digests() == same.digests()  # the others' numbers are as if it had failed in another way
    with pytest.raises(ClientError, match=r"round 1, client 1: not done after 0\.5 s"):
        play(parts, faults=Faults("raise", 0.5), loop=loop, fraction=1.0)


def test_the_time_is_up_again_if_the_first_word_is_lost():
    def busy():
        with time_limit(0.05, Job(0, 7, {}, {})):
            with suppress(ClientError):  # as Python does in a destructor
                time.sleep(60)
            time.sleep(60)

    with pytest.raises(ClientError, match="round 1, client 7: not done"):
        busy()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


HOOKS = ("on_fit_start", "on_train_epoch_start", "on_train_batch_end", "on_train_epoch_end", "on_train_end", "teardown")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_trainer_stopped_anywhere_trains_the_next_client_as_ever(hook, monkeypatch):
    """One that is stopped after its epoch takes no step in the next fit, and blames a client that did nothing."""

    def late(*_, **__):
        raise ClientError("the time is up")

    with opened({}, loop=TrainerLoop, fraction=1.0) as engine:
        expected = work(engine, 2)
        with monkeypatch.context() as patch:
            patch.setattr(ClientModule, hook, late)
            with pytest.raises(ClientError, match="the time is up"):
                work(engine, 1)
        assert digest(work(engine, 2).uplink) == digest(expected.uplink)


def test_a_limit_in_another_thread_is_refused_at_the_start(configured):
    caught: list[BaseException] = []

    def run(*more):
        try:
            fedexp.run(configured("rounds=1", *more))
        except BaseException as error:
            caught.append(error)

    for more in (("limit=60",), ()):
        thread = threading.Thread(target=run, args=more)
        thread.start()
        thread.join()
    (error,) = caught  # without a limit all is well
    assert isinstance(error, ConfigError)
    assert "main thread" in str(error)
    assert "executor=processes" in str(error)


# ---------------------------------------------------------------- for the user
def test_the_traceback_of_a_failure_is_on_file(configured, monkeypatch):
    config = configured("algo=scaffold", "rounds=1")

    def broken(self, local):
        raise KeyError("no such slot")

    with monkeypatch.context() as patch:
        patch.setattr(Scaffold, "finish", broken)
        with pytest.raises(ClientError, match=r"round 1, client \d: KeyError: 'no such slot' \(traceback: ") as failure:
            fedexp.run(config)
    path = run_path(config) / ERROR
    assert f"(traceback: {path})" in str(failure.value)
    assert "\n" not in str(failure.value)
    assert "in broken" in path.read_text()
    fedexp.run(config)
    assert not path.exists()  # it was about a failure that is no more


def test_a_run_that_can_measure_nothing_says_so(configured):
    from fedexp.build import build

    def notes(*more):
        return [n for n in build(configured(*more)).plan.content["notes"] if n.startswith("no accuracy")]

    (note,) = notes("algo=fedrema", "partition.test=none")
    assert "partition.test=holdout" in note
    assert notes("algo=fedrema") == notes("algo=fedavg", "partition.test=none") == []


def test_a_limit_that_is_up_at_once_leaves_no_alarm_behind():
    handler = signal.getsignal(signal.SIGALRM)
    for _ in range(200):  # the alarm comes at any place, also before the block begins
        with pytest.raises(ClientError, match="limit"), time_limit(1e-6, Job(0, 7, {}, {})):
            time.sleep(5)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is handler
