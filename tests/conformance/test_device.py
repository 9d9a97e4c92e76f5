"""Runs on a pretended accelerator beyond the battery: the other loop, protocols, probes, and how often hosts wait."""

from __future__ import annotations

import copy
from collections import Counter
from functools import partial

import pytest
from torch import nn

from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.make import make
from fedexp.execute import base
from fedexp.models.split import SplitModel
from fedexp.testing import CLASSES, CLIENTS, SIDE, play
from fedexp.testing.agreement import demand_equal
from fedexp.testing.pretend_device import DEVICE, PretendDevice

SOME = ("fedavg", "fedgela", "fedgen", "fedrod", "map", "perfedavg")


def components_of(algo: str):
    return {key: make(node) for key, node in composed([f"algo={algo}"])["algo"].items()}


def on_device(components, loop=FabricLoop, **options):
    with PretendDevice() as device:
        engine = play(components, loop=device.loop(loop), device=DEVICE, norm=True, **options)
    return engine, device


@pytest.mark.parametrize(
    "algo", [a if a in SOME else pytest.param(a, marks=pytest.mark.slow) for a in choices_of("algo")]
)
def test_the_trainer_respects_the_device(algo):
    components = components_of(algo)
    engine, device = on_device(components, TrainerLoop, rounds=2)
    demand_equal(play(components, norm=True, rounds=2), engine, "a device")
    assert device.waits_in("step") == []


@pytest.mark.parametrize("name", choices_of("evaluate"))
@pytest.mark.parametrize("algo", ["fedgela", "fedbabu_ft"])
def test_every_protocol_respects_the_device(name, algo):
    components, protocol = components_of(algo), make(composed([f"evaluate={name}"])["evaluate"])
    engine, _ = on_device(components, rounds=2, protocol=protocol)
    demand_equal(play(components, norm=True, rounds=2, protocol=protocol), engine, "a device")


def three_features(*, norm: bool = False) -> SplitModel:
    """What the sphere needs."""
    norms = [nn.BatchNorm1d(3)] if norm else []
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 3), *norms), nn.Linear(3, CLASSES), 3)


@pytest.mark.parametrize("name", choices_of("probe"))
def test_every_probe_respects_the_device(name):
    config = composed(["algo=map", f"probe=[{name}]"])
    components, probes = ({k: make(v) for k, v in config[group].items()} for group in ("algo", "probe"))
    net = three_features(norm=True)
    engine, _ = on_device(components, rounds=2, probes=probes, net=lambda norm: copy.deepcopy(net))
    demand_equal(play(components, norm=True, rounds=2, net=lambda norm: copy.deepcopy(net)), engine, "a device")


@pytest.mark.parametrize("loop", [FabricLoop, BatchedLoop])
def test_data_that_do_not_fit_are_moved_batch_by_batch(monkeypatch, loop):
    options = {"rounds": 1, "loop": loop, "group": CLIENTS if loop is BatchedLoop else None}
    resident, moves = on_device({}, **options)
    monkeypatch.setattr(base, "free_memory", lambda _: 0)
    streamed, device = on_device({}, **options)
    demand_equal(resident, streamed, "streaming")
    assert loop is FabricLoop or not streamed.executor._worker._together.unstacked
    assert len(device.waits_in("step")) == 0
    assert len(device.waits_in("phase")) == len(moves.waits_in("phase"))
    assert device.moves["there"] > moves.moves["there"]


@pytest.mark.parametrize(("name", "per_step"), [("bf16-mixed", 0), ("bf16-true", 0), ("16-mixed", 1)])
def test_other_precisions_respect_the_device(name, per_step):
    components = components_of("map")
    with PretendDevice() as device:
        engine = play(components, loop=device.loop(FabricLoop, precision=name), device=DEVICE, rounds=1)
    demand_equal(play(components, rounds=1, loop=partial(FabricLoop, precision=name)), engine, "a device")
    steps = {wait.line for wait in device.waits_in("step")}
    assert len(steps) == per_step  # whether a scaled gradient has overflowed is asked in every step


@pytest.mark.parametrize("algo", ["fedavg", "fedrs", "map", "moon", "scaffold"])
def test_many_clients_at_once_respect_the_device(algo):
    components = components_of(algo)
    with PretendDevice() as device:
        engine = play(components, loop=device.loop(BatchedLoop), device=DEVICE, rounds=2)
    demand_equal(play(components, rounds=2, loop=partial(BatchedLoop, accelerator="cpu")), engine, "a device")
    longer = PretendDevice()
    with longer:
        play(components, loop=longer.loop(BatchedLoop), device=DEVICE, rounds=2, epochs=4)
    assert len(longer.waits) == len(device.waits)


# ---------------------------------------------------------------- how often the host waits
@pytest.mark.parametrize("algo", SOME)
@pytest.mark.parametrize("loop", [FabricLoop, TrainerLoop])
def test_longer_training_has_not_one_wait_more(algo, loop):
    counts = [
        Counter(wait.part for wait in on_device(components_of(algo), loop, rounds=1, epochs=epochs)[1].waits)
        for epochs in (1, 3)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("loop", "per_phase"), [(FabricLoop, 0), (TrainerLoop, 4)])  # a Trainer looks at its loader
def test_what_a_round_waits_for_is_a_fixed_small_number(loop, per_phase):
    engine, device = on_device({}, loop, rounds=1)
    clients = engine.sampler.size
    tests = 3 * clients + 1 + 3  # before, after, missing classes; these of the download; the server's in 3 tasks
    counts = Counter(wait.part for wait in device.waits)
    assert counts["step"] == counts["server"] == 0
    assert counts["phase"] == per_phase * clients
    assert counts["client"] == 2 * clients  # for the loss terms, and for what it sends
    assert counts["test"] == 2 * tests  # counts, and losses
