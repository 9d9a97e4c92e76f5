"""``loop=batched`` is the serial loop to rounding; within it, stops, order and workers change no bit.

That this holds for every algorithm is a check of the battery (``fedexp.testing.batched_agrees``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch

from fedexp.algos import fedmr
from fedexp.algos.ditto import Ditto
from fedexp.algos.fedmr import ManifoldReshape
from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.inherited import InheritedPrivateModel
from fedexp.algos.moon import ModelContrast
from fedexp.algos.prototypes import ClassMeans
from fedexp.algos.scaffold import Scaffold
from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.faults import Faults
from fedexp.client.loops import FabricLoop
from fedexp.client.optim import Sgd, TorchOptimizer
from fedexp.client.worker import Worker
from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Component
from fedexp.core.state import Slot, number
from fedexp.errors import ClientError, PlanError
from fedexp.server.sampler import ClientDropouts
from fedexp.system import scratch
from fedexp.testing import CLIENTS, Shuffled, card, play, tiny_net, trial
from fedexp.testing.agreement import demand_close, demand_equal, double_precision
from fedexp.testing.checks import batched_agrees

MAP = {"rs": RestrictedSoftmax(), "hpm": InheritedPrivateModel(weight=0.3)}
SEVERAL = {
    "fedavg": {},
    "map": MAP,
    "fedphp, mmd": {"hpm": InheritedPrivateModel(weight=0.3, transfer="mmd", during=("local",))},
    "moon": {"moon": ModelContrast(projection=4)},
    "fedmr": {"means": ClassMeans(), "mr": ManifoldReshape(intra=0.01)},
    "scaffold": {"scaffold": Scaffold()},
}
TWOS = {"loop": partial(BatchedLoop, accelerator="cpu", group=2), "group": 2, "fraction": 1.0}


@pytest.fixture(params=SEVERAL)
def components(request):
    return SEVERAL[request.param]


def both(components, **options):
    with double_precision():
        return [play(components, loop=loop, group=CLIENTS, **options) for loop in (FabricLoop, BatchedLoop)]


# ---------------------------------------------------------------- equal to rounding
def biased_net(*, norm: bool = False):
    """Batch norm of a client with one sample makes zeros, whose sign rounding would decide at a ReLU."""
    net = tiny_net(norm=norm)
    with torch.no_grad():
        for layer in net.features:
            if isinstance(layer, torch.nn.BatchNorm1d):
                layer.bias += 0.1
    return net


def test_batch_norm_is_that_of_each_client(components):
    demand_close(*both(components, net=biased_net, norm=True), "loop=batched")


def test_fedmr_with_batches_that_are_taken_apart_by_class_one_by_one(monkeypatch):
    made = []
    by_class = fedmr._covariance_squares
    monkeypatch.setattr(fedmr, "GRAM", 0)
    monkeypatch.setattr(fedmr, "_covariance_squares", lambda *given: made.append(len(given[0])) or by_class(*given))
    one, many = both(SEVERAL["fedmr"], batch_size=100)
    assert min(made) > 8  # features
    demand_close(one, many, "loop=batched")


@pytest.mark.parametrize(
    "optimizer",
    [
        Sgd(lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True),
        Sgd(lr=0.1, momentum=0.9, weight_decay=1e-2, fused=False),
        TorchOptimizer(torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
        TorchOptimizer(torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
    ],
    ids=str,
)
@pytest.mark.parametrize("stragglers", [0.0, 0.5])
def test_optimizers_of_stacked_parameters(optimizer, stragglers):
    mishaps = ClientDropouts(stragglers=stragglers, slow=0.3, seed=0)
    for method in ({}, MAP):
        demand_close(*both(method, optimizer=optimizer, mishaps=mishaps), "loop=batched")


def test_norms_are_clipped_for_each_client():
    ends = []
    with double_precision():
        for loop in (FabricLoop, BatchedLoop):
            with scratch.folder() as folder:
                engine = trial({}, folder, loop=loop, fraction=1.0, group=CLIENTS)
                for fitter in (engine.executor._worker.fitter,):
                    fitter.local = type(fitter.local)(epochs=2, batch_size=4, clip=0.3)
                    fitter._modules.clear()
                engine.play(2)
                ends.append(engine)
        free = play({}, loop=BatchedLoop, fraction=1.0, rounds=2, group=CLIENTS)
    demand_close(*ends, "loop=batched")
    with pytest.raises(AssertionError):
        demand_close(ends[0], free, "no limit")


def test_augmented_samples_are_those_of_each_client(monkeypatch):
    from fedexp import testing

    def noisy():
        data = plain()
        data.augment = lambda x, generator: x + torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return data

    plain = testing.tiny_data
    without = play({}, loop=FabricLoop)
    monkeypatch.setattr(testing, "tiny_data", noisy)
    one, many = both({})
    demand_close(one, many, "loop=batched")
    assert without.digests() != one.digests()


# ---------------------------------------------------------------- equal bit for bit
def test_a_stop_changes_nothing(components):
    with scratch.folder() as folder:
        first = trial(components, folder, rounds=3, hold=0, **TWOS)
        first.rounds = 1
        first.run(card(first))
        second = trial(components, folder, rounds=3, **TWOS)
        assert second.progress.state.round == 1
        second.run(card(second))
    demand_equal(play(components, rounds=3, **TWOS), second, "resuming")


def test_the_order_of_groups_changes_nothing(components):
    demand_equal(play(components, **TWOS), play(components, executor=Shuffled, **TWOS), "another order")


def test_clients_are_stacked_as_the_group_says(monkeypatch):
    seen = []
    fit = Worker.train
    monkeypatch.setattr(Worker, "train", lambda self, jobs: seen.append(len(jobs)) or fit(self, jobs))
    engine = play({}, rounds=1, **TWOS)
    assert sorted(seen) == [1, 2, 2]
    tested = engine.measurement.test_clients(range(CLIENTS))
    again = engine.measurement.train_once_more(range(CLIENTS))
    assert sorted(tested) == sorted(again) == list(range(CLIENTS))
    assert not any(result.error for result in again.values())


def test_what_a_client_keeps_does_not_hold_the_stack_in_memory():
    engine = play({"ditto": Ditto()}, rounds=1, fraction=1.0, loop=BatchedLoop, group=CLIENTS)
    kept = [t for c in range(CLIENTS) for tree in engine.progress.store.get(c).values() for t in tree.values()]
    assert kept
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in kept)


# ---------------------------------------------------------------- declarations
@pytest.mark.parametrize("name", ["fedgen", "pfedme", "fedmr_lite"])
def test_what_is_not_batched_could_not_be(name, monkeypatch):
    parts = {key: make(node) for key, node in composed([f"algo={name}", *LITE.get(name, ())])["algo"].items()}
    for component in parts.values():
        if component.unbatched:
            monkeypatch.setattr(type(component), "unbatched", None)
    with pytest.raises(PlanError, match=r"loop=batched: phase 'local' cannot be done for many clients at once \("):
        play(parts, loop=BatchedLoop, fraction=1.0, group=CLIENTS)


LITE = {"fedmr_lite": ["algo.mr.lite=2"]}


@dataclass(frozen=True, kw_only=True)
class CountsOnPadding(Component):
    """Says that it treats samples one by one, and takes a mean over them."""

    padded: ClassVar[bool] = True

    def loss(self, step):
        return step.h.square().mean()


@dataclass(frozen=True, kw_only=True)
class ChangesWhatItMadeOnce(Component):
    """Counts its steps in a value that is the same for all of them."""

    def loss(self, step):
        count = step.once("count", lambda: [0])
        count[0] += 1
        return step.ce * 0.1 * count[0]


@dataclass(frozen=True, kw_only=True)
class Remembers(Component):
    """Keeps a value from inside a step."""

    def slots(self):
        return (Slot("last", "client", number(0.0)),)

    def grads(self, grads, step):
        step.remember("last", {"value": step.ce})
        return grads


def test_what_a_step_remembers_is_not_lost_without_a_word():
    with pytest.raises(PlanError, match=r"step\.remember cannot be batched"):
        play({"r": Remembers()}, loop=BatchedLoop, group=CLIENTS)


@pytest.mark.parametrize("component", [CountsOnPadding(), ChangesWhatItMadeOnce()])
def test_the_battery_finds_what_is_batched_wrongly(component):
    with pytest.raises(AssertionError, match="loop=batched gives another"):
        batched_agrees({"c": component})


# ---------------------------------------------------------------- faults
@dataclass(frozen=True, kw_only=True)
class FailsFor(Component):
    """Makes numbers that are not finite, or an error, for one client."""

    client: int = 2
    how: str = "nan"

    def loss(self, step):
        factor = step.once("factor", lambda: self._factor(step.info.client))
        return step.ce * factor

    def _factor(self, client):
        if client == self.client and self.how == "error":
            raise ArithmeticError("planned")
        return torch.tensor(float("nan") if client == self.client else 0.5)


@pytest.mark.parametrize(
    ("how", "said"), [("nan", "loss term 'ce' is not finite"), ("error", "ArithmeticError: planned")]
)
def test_a_fault_is_that_of_its_client(how, said):
    with pytest.raises(ClientError, match=rf"^round 1, client 2, phase 'local': {said}"):
        play({"f": FailsFor(how=how)}, loop=BatchedLoop, fraction=1.0, group=CLIENTS)


@pytest.mark.parametrize("how", ["nan", "error"])
def test_the_others_go_on_without_it(how):
    one, many = both({"f": FailsFor(how=how)}, faults=Faults("skip"), fraction=1.0)
    demand_close(one, many, "loop=batched")
    assert (many.progress.state.model["classifier.weight"] - many.algorithm.facts.initial["classifier.weight"]).any()


# ---------------------------------------------------------------- phases one by one
def test_a_phase_that_cannot_be_batched_shares_its_optimizer_with_none_that_can():
    from fedexp.client.batched.reasons import stackable

    @dataclass(frozen=True, kw_only=True)
    class Alone(Component):
        unbatched: ClassVar[str | None] = "does not want to"
        during: tuple[str, ...] = ("personal",)

        def logits(self, z, step):
            return z

    with scratch.folder() as folder:
        shared = trial({**MAP, "a": Alone()}, folder).algorithm
        apart = {"hpm": InheritedPrivateModel(fresh_optimizer=True), "a": Alone()}
        net, x = tiny_net(), torch.randn(3, 1, 4, 4)
        can = stackable(shared, net, x, Sgd())
        fresh = stackable(Algorithm.compile(apart, shared.facts), net, x, Sgd())
    assert can.one_by_one == {
        "personal": "component 'a' does not want to", "local": "it shares its optimizer with phase 'personal'"
    }  # fmt: skip
    assert fresh.one_by_one == {"personal": "component 'a' does not want to"}
    demand_close(*both({**MAP, "a": Alone()}), "loop=batched")
