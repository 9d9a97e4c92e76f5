"""Fitting a phase: steps are really taken, in train mode, quietly, and the same way by both loops."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from fedexp.client.asks import Fit, Fitted
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.messages import Job, Local
from fedexp.client.network import layout_of, tensors
from fedexp.client.optim import Sgd
from fedexp.client.worker import Worker
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Component, Phase
from fedexp.core.seeding import seeded
from fedexp.core.state import digest, snapshot
from fedexp.core.views import Facts
from fedexp.errors import ClientError
from fedexp.models.split import SplitModel
from fedexp.testing import CLASSES, CLIENTS, SIDE, play, tiny_data, tiny_net

LOOPS = [TrainerLoop, FabricLoop]
STATISTICS = ("features.2.running_mean", "features.2.running_var", "features.2.num_batches_tracked")


def worker_of(loop, net: SplitModel | None = None, *, optimizer: Sgd | None = None, clip=None, **components) -> Worker:
    data, net = tiny_data(), net or tiny_net(norm=True)
    facts = Facts(
        seed=0, rounds=3, fraction=0.6, n_clients=CLIENTS, n_classes=CLASSES, feature_dim=net.feature_dim,
        layout=layout_of(net), counts=data.counts, initial=snapshot(tensors(net)),
    )  # fmt: skip
    local = Local(epochs=2, batch_size=4, clip=clip)
    return Worker(net, data, Algorithm.compile(components, facts), loop, optimizer or Sgd(lr=0.1), local)


def fit(worker: Worker, phase: Phase, *, client: int = 1, round_: int = 0) -> Fitted:
    job = Job(round_, client, worker.algorithm.downlink(worker.algorithm.fresh_state(), client), {})
    worker.fitter.algorithm = replace(worker.algorithm, phases=(phase,))
    session = worker._open(job)
    start = dict(tensors(worker.net)) if phase.start == "previous" else session.received
    return worker.fitter.fit(Fit(job, phase, session, start))


def changed(before, after) -> set[str]:
    return {n for n, v in before.items() if not torch.equal(v, after[n])}


@dataclass(frozen=True, kw_only=True)
class Trains(Component):
    """Trains a part only."""

    part: str = "classifier"

    def plan(self, phases):
        return [replace(p, train=self.part) for p in phases]


# ---------------------------------------------------------------- steps are taken
@pytest.mark.parametrize("loop", LOOPS)
def test_a_second_fit_really_trains(loop):
    """A Trainer that has reached its last epoch returns at once from another fit, without a word."""
    worker = worker_of(loop())
    for number in range(4):
        before = snapshot(tensors(worker.net))
        fitted = fit(worker, Phase("local", start="previous", uploads=True), round_=number)
        assert fitted.steps == 6  # two epochs of three batches
        moved = changed(before, tensors(worker.net))
        assert {"features.1.weight", "classifier.weight", *STATISTICS} <= moved


@pytest.mark.parametrize("loop", LOOPS)
def test_the_weights_are_those_of_plain_torch(loop):
    worker = worker_of(loop(), optimizer=Sgd(lr=0.05, momentum=0.9, weight_decay=0.01))
    plain = tiny_net(norm=True)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    phase = Phase("local", uploads=True)
    plain.train()
    for x, y in worker.fitter.batches(phase, (0, 1, "local"), worker.data.info(1)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
    fit(worker, phase)
    for name, value in tensors(worker.net).items():
        torch.testing.assert_close(value, tensors(plain)[name])


@pytest.mark.parametrize("loop", LOOPS)
def test_clipping_limits_the_step(loop):
    moved = {}
    for clip in (None, 1e-3):
        worker = worker_of(loop(), clip=clip, optimizer=Sgd(lr=1.0, momentum=0.0, weight_decay=0.0))
        fit(worker, Phase("local", end=1 / 6, uploads=True))
        initial = worker.algorithm.facts.initial
        names = worker.algorithm.facts.layout.parameters
        live = tensors(worker.net)
        moved[clip] = sum((live[n] - initial[n]).square().sum() for n in names).sqrt().item()
    assert moved[1e-3] == pytest.approx(1e-3, rel=1e-2)
    assert moved[None] > 0.1


class Lazy(FabricLoop):
    """Does what a finished Trainer does: nothing."""

    def fit(self, module, batches):
        module.configure_optimizers()


class Eager(FabricLoop):
    """Stops a step early."""

    def fit(self, module, batches):
        super().fit(module, list(batches)[:-1])


@pytest.mark.parametrize(("loop", "taken"), [(Lazy, 0), (Eager, 5)])
def test_a_loop_that_takes_other_steps_than_due_is_noticed(loop, taken):
    worker = worker_of(loop())
    with pytest.raises(RuntimeError, match=f"6 steps were due, but the loop took {taken}"):
        fit(worker, Phase("local", uploads=True))
    with pytest.raises(ClientError, match=r"round 1, client \d, phase 'local': RuntimeError: \d+ steps were due"):
        play({}, loop=loop)


@dataclass(frozen=True, kw_only=True)
class Fails(Component):
    def loss(self, step):
        raise ArithmeticError("planned")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_trains_again_after_a_fit_that_failed(loop):
    loop = loop()
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="planned"):
            fit(worker_of(loop, fails=Fails()), Phase("local", uploads=True))
    assert fit(worker_of(loop), Phase("local", uploads=True)).steps == 6


# ---------------------------------------------------------------- modes
@pytest.mark.parametrize("loop", LOOPS)
def test_training_is_in_train_mode_also_after_a_test(loop):
    worker = worker_of(loop())
    for number in range(2):
        list(worker.test_server({"model": worker.algorithm.facts.initial}, (0, 4)))  # leaves evaluation mode behind
        assert not worker.net.training
        before = snapshot(tensors(worker.net))
        fit(worker, Phase("local", uploads=True), round_=number)
        assert set(STATISTICS) <= changed(before, tensors(worker.net))


_seen: list[torch.Tensor] = []


@dataclass(frozen=True, kw_only=True)
class Looks(Component):
    """Writes down the features that a step sees."""

    def loss(self, step):
        _seen.append(step.h.detach().clone())


def dropping() -> SplitModel:
    with seeded(0, "dropping"):
        layers = nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.BatchNorm1d(32), nn.Sigmoid(), nn.Dropout(0.5)
        )
        return SplitModel(layers, nn.Linear(32, CLASSES, bias=False), 32)


@pytest.mark.parametrize("loop", LOOPS)
def test_dropout_is_active_and_new_in_every_step(loop):
    _seen.clear()
    fit(worker_of(loop(), dropping(), looks=Looks()), Phase("local", uploads=True))
    dropped = [h == 0 for h in _seen]
    assert len(dropped) == 6
    assert all(0.3 < d.float().mean() < 0.7 for d in dropped)
    assert not torch.equal(dropped[0], dropped[1])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("net", [dropping, lambda: tiny_net(norm=True)])
def test_a_frozen_part_stays_in_evaluation_mode_with_its_statistics(loop, net):
    _seen.clear()
    worker = worker_of(loop(), net(), only=Trains(part="classifier"), looks=Looks())
    (phase,) = worker.algorithm.phases
    for number in range(2):
        before = snapshot(tensors(worker.net))
        fitted = fit(worker, replace(phase, start="previous"), round_=number)
        assert changed(before, tensors(worker.net)) == {"classifier.weight"}
        assert not worker.net.features.training
        assert worker.net.classifier.training
        assert fitted.steps == 6
        assert all(p.grad is None for p in worker.net.features.parameters())
    if net is dropping:
        assert not any((h == 0).any() for h in _seen)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_frozen_classifier(loop):
    worker = worker_of(loop(), only=Trains(part="features"))
    before = snapshot(tensors(worker.net))
    fit(worker, worker.algorithm.phases[0])
    assert "classifier.weight" not in changed(before, tensors(worker.net))
    assert set(STATISTICS) <= changed(before, tensors(worker.net))
    fit(worker_of(loop()), Phase("local", uploads=True))


def test_what_was_frozen_is_trained_in_the_next_phase():
    worker = worker_of(FabricLoop())
    fit(worker, Phase("head", train="classifier"))
    before = snapshot(tensors(worker.net))
    fit(worker, Phase("local", start="previous", uploads=True))
    assert {"features.1.weight", *STATISTICS} <= changed(before, tensors(worker.net))


# ---------------------------------------------------------------- both loops agree
@pytest.mark.parametrize("net", [dropping, lambda: tiny_net(norm=True), tiny_net], ids=["dropout", "norm", "plain"])
def test_trainer_and_fabric_are_equal_bit_for_bit(net):
    ends = []
    for loop in LOOPS:
        worker = worker_of(loop(), net())
        fitted = [fit(worker, Phase("local", uploads=True), client=c, round_=c) for c in (0, 1, 2)]
        ends.append((digest({"": tensors(worker.net)}), [f.terms() for f in fitted]))
    assert ends[0] == ends[1]


# ---------------------------------------------------------------- optimizers
def test_a_continuing_phase_keeps_the_momentum_and_a_fresh_one_does_not():
    ends = {}
    for kind in ("whole", "continued", "fresh", "apart"):
        worker = worker_of(FabricLoop(), tiny_net())
        job = Job(0, 1, worker.algorithm.downlink(worker.algorithm.fresh_state(), 1), {})
        seat = worker._open(job)
        first = Phase("local", end=0.5, uploads=True)
        second = Phase(
            "second", start="previous", begin=0.5, continues=kind != "apart", fresh=kind == "fresh"
        )  # fmt: skip
        phases = (Phase("local", uploads=True),) if kind == "whole" else (first, second)
        worker.fitter.algorithm = replace(worker.algorithm, phases=phases)
        last = None
        for phase in phases:
            last = worker.fitter.fit(Fit(job, phase, seat, seat.received if last is None else last.end, last))
        ends[kind] = digest({"": tensors(worker.net)})
    assert ends["continued"] == ends["whole"]  # the same batches, the same optimizer: one training cut in two
    assert len(set(ends.values())) == 3


def test_a_phase_may_have_its_own_optimizer_settings():
    slow, plain = worker_of(FabricLoop()), worker_of(FabricLoop())
    fit(slow, Phase("local", optim={"lr": 0.0, "weight_decay": 0.0}, uploads=True))
    fit(plain, Phase("local", uploads=True))
    parameters = set(slow.algorithm.facts.layout.parameters)
    assert not changed(slow.algorithm.facts.initial, tensors(slow.net)) & parameters
    assert changed(plain.algorithm.facts.initial, tensors(plain.net)) >= parameters - {"features.1.bias"}


def test_received_weights_and_slots_are_not_touched_by_training():
    worker = worker_of(FabricLoop())
    job = Job(0, 1, worker.algorithm.downlink(worker.algorithm.fresh_state(), 1), {})
    before = digest(job.downlink), digest({"": worker.algorithm.facts.initial})
    worker.work(job)
    assert (digest(job.downlink), digest({"": worker.algorithm.facts.initial})) == before


# ---------------------------------------------------------------- quiet
@pytest.mark.parametrize("loop", LOOPS)
def test_lightning_says_nothing(loop, capfd, caplog):
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.INFO):
        warnings.simplefilter("always")
        worker = worker_of(loop())
        for number in range(2):
            fit(worker, Phase("local", uploads=True), round_=number)
    assert [str(w.message) for w in caught] == []
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert caplog.records == []


def test_nothing_is_left_on_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(worker_of(TrainerLoop()), Phase("local", uploads=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("end", "steps"), [(0.29, 29), (0.57, 57), (0.5, 50), (0.295, 29), (0.001, 1)])
def test_a_part_of_a_phase_is_as_long_as_an_epoch_of_that_length(end, steps):
    local = Local(epochs=1, batch_size=4)
    assert local.steps(Phase("local", end=end), 100) == range(steps)
    assert local.steps(Phase("rest", begin=end, end=1.0), 100).start == (steps if end > 0.01 else 0)
