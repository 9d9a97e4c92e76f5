"""Learning rates by round: their formulas, and that a run really uses them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedexp.algos.alternate import Alternate
from fedexp.build import build
from fedexp.client.fit import continues
from fedexp.client.loops import TrainerLoop
from fedexp.client.optim import Sgd
from fedexp.client.schedules import ConstantRate, CosineDecay, ExponentialDecay, StepDecay
from fedexp.config.compose import composed
from fedexp.config.identity import run_id
from fedexp.config.make import make
from fedexp.core.component import Phase
from fedexp.core.state import digest
from fedexp.testing import card, play, trial
from tests.helpers import TINY, Recorder, jobs_of, opened, round_of, worker_of

ALL = [ConstantRate(), StepDecay(every=2, gamma=0.5), ExponentialDecay(gamma=0.9), CosineDecay(floor=0.1)]
DECAY = ExponentialDecay(gamma=0.5)


def test_formulas():
    assert [ConstantRate().factor(t, 5) for t in range(5)] == [1] * 5
    assert [StepDecay(every=2, gamma=0.1).factor(t, 5) for t in range(5)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert [ExponentialDecay(gamma=0.9).factor(t, 3) for t in range(3)] == pytest.approx([1, 0.9, 0.81])
    cosine = [CosineDecay(floor=0.2).factor(t, 4) for t in range(4)]
    assert cosine == pytest.approx([0.2 + 0.8 * math.cos(math.pi * t / 8) ** 2 for t in range(4)])
    assert min(CosineDecay().factor(t, 4) for t in range(4)) > 0


@pytest.mark.parametrize("name", ["constant", "step", "exponential", "cosine"])
def test_every_choice_begins_with_the_rate_of_the_optimizer(name):
    assert make(composed([f"schedule={name}"])["schedule"]).factor(0, 50) == 1


def test_two_rounds_are_those_of_optimizers_with_the_rates_written_out():
    with opened({}, rounds=2, optimizer=Sgd(lr=0.2), schedule=DECAY) as engine:
        for rate in (0.2, 0.1):
            ours, by_hand = [], []
            with opened({}, rounds=2, optimizer=Sgd(lr=rate)) as other:
                for job in jobs_of(engine, range(5)):
                    ours.append(digest(worker_of(engine).work(job).uplink))
                    by_hand.append(digest(worker_of(other).work(job).uplink))
            assert ours == by_hand
            round_of(engine)


def test_a_component_sees_the_rate_of_the_round_and_each_phase_has_its_own():
    recorder = Recorder()
    components = {"alternate": Alternate(lr=0.5), "seen": recorder}
    play(components, rounds=3, optimizer=Sgd(lr=0.2), schedule=DECAY)
    found = {(local.round, phase): lr for local in recorder.rounds for phase, lr in local.lr.items()}
    assert found == pytest.approx({(t, p): lr * 0.5**t for t in range(3) for p, lr in (("head", 0.5), ("local", 0.2))})


def test_what_is_trained_after_the_last_round_has_the_last_rounds_rate():
    recorder = Recorder()
    with opened({"seen": recorder}, rounds=2, optimizer=Sgd(lr=0.2), schedule=CosineDecay()) as engine:
        round_of(engine), round_of(engine)
        rates = {local.lr["local"] for local in recorder.rounds if local.round == 1}
        recorder.rounds.clear()
        engine.measurement.train_once_more([0])
    assert {local.lr["local"] for local in recorder.rounds} == rates
    assert list(rates) == pytest.approx([0.1])


def test_the_loops_agree():
    assert play({}, schedule=DECAY).digests() == play({}, schedule=DECAY, loop=TrainerLoop).digests()


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: type(s).__name__)
def test_a_run_that_is_taken_up_again_ends_the_same(schedule, tmp_path):
    first = trial({}, tmp_path, rounds=4, schedule=schedule)
    first.rounds = 2
    first.run(card(first))
    second = trial({}, tmp_path, rounds=4, schedule=schedule)
    assert second.progress.state.round == 2
    second.run(card(second))
    assert second.digests() == play({}, rounds=4, schedule=schedule).digests()
    assert (second.digests() == play({}, rounds=4).digests()) is isinstance(schedule, ConstantRate)


def test_ids_know_the_schedule_unless_it_is_constant():
    config = composed([])
    before = {k: v for k, v in config.items() if k != "schedule"}  # as runs were configured before
    assert run_id(config) == run_id(before)
    others = [run_id(composed(o)) for o in (["schedule=cosine"], ["schedule=step"], ["schedule=cosine", "rounds=49"])]
    assert len({run_id(config), *others}) == 4


def test_a_configuration_reaches_the_workers(tmp_path):
    from fedexp.display import SilentDisplay
    from fedexp.runs.directory import RunDir

    experiment = build(composed([*TINY, "schedule=exponential", "schedule.gamma=0.5"]))
    with RunDir(tmp_path) as rundir:
        assert worker_of(experiment.engine(rundir, SilentDisplay())).fitter.local.schedule == DECAY


def test_a_phase_with_another_schedule_does_not_go_on_with_the_optimizer():
    first, second = Phase("first"), Phase("second", continues=True)
    assert continues(first, second)
    assert not continues(first, replace(second, scheduled=False))
