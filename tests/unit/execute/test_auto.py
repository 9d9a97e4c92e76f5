"""The executor that finds out, with times that the test makes up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedexp.client.messages import Job
from fedexp.errors import ConfigError
from fedexp.execute import auto, base
from fedexp.execute.auto import AutoExecutor
from fedexp.execute.base import Blueprint
from fedexp.execute.task import Measure, TaskResult, Train

SAMPLES = [10] * 100  # by client


class Clock:
    """Time that passes only when something is done."""

    def __init__(self, start: float) -> None:
        self.now, self._start = 100.0, start

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self._start


class Stub:
    """An executor that takes so many seconds for a client with ten samples."""

    made: list[Stub]

    def __init__(self, blueprint, clock, seconds, workers, cold=0.0) -> None:
        self.cold = cold  # seconds that the first task takes longer
        self.blueprint, self.workers, self.done, self.closed = blueprint, workers, [], False
        self._clock, self._seconds = clock, seconds

    def map(self, tasks, broadcast):
        for task in tasks:
            self._clock.now += sum(self._seconds * SAMPLES[job.client] / 10 for job in task.jobs) + self.cold
            self.cold = 0.0
            self.done.append(task.index)
            yield TaskResult(task.index)

    def use(self, blueprint):
        self.blueprint = blueprint

    def close(self):
        self.closed = True


def blueprint(*, rounds, clients, fraction, devices) -> Blueprint:
    """One that nobody works by."""
    facts = SimpleNamespace(
        n_clients=clients, fraction=fraction, rounds=rounds, counts=torch.tensor([SAMPLES[:clients]]).T
    )
    unused = dict.fromkeys(("net", "data", "components", "loop", "optimizer", "local"))
    return Blueprint(**unused, facts=facts, devices=devices)


@pytest.fixture
def run(monkeypatch):
    """Plays rounds with so many seconds per client; returns the executor, both stubs and what was said."""

    def play(*, seconds, rounds, clients=10, fraction=1.0, cores=4, start=3.0, devices=0, threads=1, processes=None,
             cold=0.0):  # fmt: skip
        clock, said, made = Clock(start), [], []

        def serial(blueprint, **_):
            made.append(Stub(blueprint, clock, seconds, 1, cold))
            return made[-1]

        def pool(blueprint, *, workers, threads, say):
            made.append(Stub(blueprint, clock, seconds / workers, workers))
            return made[-1]

        monkeypatch.setattr(auto, "time", clock)
        monkeypatch.setattr(auto, "SerialExecutor", serial)
        monkeypatch.setattr(auto, "ProcessExecutor", processes or pool)
        monkeypatch.setattr(base, "cores", lambda: cores)
        given = blueprint(rounds=rounds, clients=clients, fraction=fraction, devices=devices)
        executor = AutoExecutor(given, threads=threads, say=said.append)
        for t in range(rounds):
            tasks = [Train(i, (Job(t, i, {}, {}),)) for i in range(max(int(clients * fraction), 1))]
            assert sorted(a.index for a in executor.map(tasks, {})) == [task.index for task in tasks]
        return SimpleNamespace(executor=executor, made=made, said=said)

    return play


def test_a_tiny_run_stays_in_its_process(run):
    got = run(seconds=0.001, rounds=50)  # half a second in all, and a start costs three
    assert len(got.made) == 1
    assert got.said == ["executor: this process alone; workers would not be worth their start"]
    assert got.executor.workers == 1


@pytest.mark.parametrize(("seconds", "switches"), [(0.0119, False), (0.0121, True)])
def test_it_switches_when_the_saving_is_worth_the_start(run, seconds, switches):
    """4 workers save 3/4 of 50 · 10 clients: that pays from 1.5 · 3 s / 375 = 0.012 s per client on."""
    assert (len(run(seconds=seconds, rounds=50).made) == 2) is switches


def test_it_switches_after_the_second_client_of_a_long_run_and_says_so(run):
    got = run(seconds=1.0, rounds=20)
    serial, pool = got.made
    assert serial.done == [0, 1]  # the first one is not measured
    assert pool.done[:8] == list(range(2, 10))  # the rest of the first round
    assert len(pool.done) == 198
    assert got.executor.workers == 4
    assert got.said == ["executor: 4 worker processes; one would need about 200 s more"]
    got.executor.close()
    assert pool.closed


def test_it_switches_after_the_first_client_if_that_takes_long(run):
    got = run(seconds=6.0, rounds=20)
    assert got.made[0].done == [0]
    assert got.said == ["executor: 4 worker processes; one would need about 1200 s more"]


def test_the_first_task_warms_up_and_is_no_measure(run):
    """By it, the run would take 4 s · 500 clients; it takes half a second."""
    got = run(seconds=0.001, rounds=50, cold=4.0)
    assert len(got.made) == 1


def test_large_clients_come_first_and_are_no_measure_of_the_others(run, monkeypatch):
    monkeypatch.setattr("tests.unit.execute.test_auto.SAMPLES", [1000, 1000, *[2] * 8])
    got = run(seconds=0.02, rounds=20)  # the first two take 2 s each, all ten of a round 4.03 s
    assert got.said == ["executor: 4 worker processes; one would need about 81 s more"]


def test_not_more_workers_than_clients_in_a_round_nor_cores(run):
    assert run(seconds=1.0, rounds=50, clients=20, fraction=0.1).executor.workers == 2
    assert run(seconds=1.0, rounds=50, threads=2).executor.workers == 2
    assert run(seconds=1.0, rounds=50, devices=3).executor.workers == 3


def test_it_stays_if_workers_cannot_do_the_work(run, monkeypatch):
    def refuse(*_, **__):
        raise ConfigError("Mine is defined in the script.")

    got = run(seconds=1.0, rounds=20, processes=refuse)
    assert got.executor.workers == 1
    assert len(got.made[0].done) == 200
    assert got.said == ["executor: this process alone. Mine is defined in the script."]


@pytest.mark.parametrize(
    ("settings", "cores", "crew"),
    [({"threads": 1}, 8, 8), ({"threads": 3}, 8, 2), ({"threads": 9}, 8, 1), ({"threads": 1}, 64, 10),
     ({"threads": 1, "devices": 2, "per_device": 3}, 64, 6), ({"threads": 1, "devices": 8, "per_device": 2}, 1, 10)],
)  # fmt: skip
def test_as_many_workers_as_there_is_room_and_work_for(monkeypatch, settings, cores, crew):
    """There are ten clients in a round."""
    monkeypatch.setattr(base, "cores", lambda: cores)
    assert (
        blueprint(rounds=1, clients=100, fraction=0.1, devices=settings.pop("devices", 0)).worker_count(**settings)
        == crew
    )


@pytest.mark.parametrize("setting", [{"cores": 1}, {"clients": 1}, {"cores": 4, "threads": 4}])
def test_one_worker_is_not_worth_a_process(run, setting):
    assert len(run(seconds=10.0, rounds=50, **setting).made) == 1


def test_near_the_end_it_does_not_begin(run):
    """The last client of a run that was quick until then: nothing is left to be saved."""
    got = run(seconds=0.011, rounds=50)
    executor = got.executor
    executor._learn(Train(0, (Job(49, 0, {}, {}),)), 10.0)  # one slow client; a round is left
    assert executor.workers == 1
    executor._learn(Train(0, (Job(0, 0, {}, {}),)), 10.0)  # the same with fifty left
    assert executor.workers == 4


def test_tests_of_the_server_are_no_measure(run):
    got = run(seconds=0.001, rounds=50)
    got.executor._learn(Measure(0, ()), 1e6)
    assert got.executor.workers == 1


def test_tests_of_clients_are_not_taken_for_quick_training(run):
    got = run(seconds=0.011, rounds=50)
    got.executor._learn(Measure(0, (Job(0, 0, {}, {}),) * 10_000), 0.01)
    got.executor._learn(Train(0, (Job(0, 0, {}, {}),)), 10.0)
    assert got.executor.workers == 4


def test_tests_before_any_training_say_nothing(run, monkeypatch):
    got = run(seconds=0.0, rounds=0)
    monkeypatch.setattr(got.executor, "_warm", True)
    monkeypatch.setattr(got.executor._blueprint.facts, "rounds", 50)
    got.executor._learn(Measure(0, (Job(0, 0, {}, {}),)), 0.01)
    assert got.executor.workers == 1
    got.executor._learn(Train(0, (Job(0, 0, {}, {}),)), 10.0)
    assert got.executor.workers == 4


def test_another_blueprint_reaches_whoever_works(run):
    got = run(seconds=1.0, rounds=20)
    got.executor.use("another")
    assert got.made[1].blueprint == "another"
