"""The conformance battery: what every algorithm must do, ours or yours. Each check raises AssertionError.

In a test file of yours, one line makes a test of each check:

test_mine = fedexp.testing.battery({"mine": MyComponent()})
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from fedexp.client.faults import RAISE, Faults
from fedexp.client.loops import FabricLoop, Loop, TrainerLoop
from fedexp.client.messages import Local
from fedexp.client.network import add_modules, layout_of, tensors
from fedexp.client.optim import OptimizerFactory, Sgd
from fedexp.client.schedules import ConstantRate, Schedule
from fedexp.config.settings import Every
from fedexp.core.algorithm import Algorithm, Components
from fedexp.core.component import Component
from fedexp.core.record import Record
from fedexp.core.seeding import numpy_rng, seeded
from fedexp.core.state import Message, ServerState, digest, snapshot
from fedexp.core.views import Facts
from fedexp.data.federated import FederatedData
from fedexp.data.source import DataSpec, Samples
from fedexp.display import SilentDisplay
from fedexp.engine import Engine
from fedexp.errors import PlanError
from fedexp.evaluate.map import MapProtocol
from fedexp.evaluate.tester import BatchSpans
from fedexp.execute.base import Blueprint, Executor, SerialExecutor
from fedexp.execute.task import Task, TaskResult
from fedexp.models.split import SplitModel
from fedexp.partition.base import ClientSplit
from fedexp.runs.checkpoint import Checkpoint
from fedexp.runs.directory import RunDir
from fedexp.runs.plan import forecast
from fedexp.server.aggregate import is_finite
from fedexp.server.network import ServerNetwork
from fedexp.server.sampler import NO_DROPOUTS, ClientDropouts, UniformSampler
from fedexp.server.update import Weighting
from fedexp.system import scratch
from fedexp.track.base import NoTracker, RunCard

T = TypeVar("T")
Net = Callable[..., SplitModel]  # ``net(norm=True)``: a network for 4 × 4 images of 4 classes, with batch norm or not

CLASSES, CLIENTS, SIDE = 4, 5, 4
OWNED = ((0, 1), (1, 2), (2, 3), (0,), (0, 1, 2))  # client 3 has one class; class 3 has one owner
SIZES = (9, 14, 8, 5, 2)  # client 4 has a single sample to train on


def tiny_data(seed: int = 0) -> FederatedData:
    """Blobs of four classes as 4 × 4 images, over five clients with few classes each."""
    rng = numpy_rng(seed, "tiny")
    centres = rng.normal(size=(CLASSES, SIDE * SIDE))
    y = np.concatenate([rng.choice(owned, size) for owned, size in zip(OWNED, SIZES, strict=True)])
    test_y = np.repeat(np.arange(CLASSES), 10)

    def samples(labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Samples:
        x = centres[labels] + 0.7 * rng.normal(size=(len(labels), SIDE * SIDE))
        return Samples(torch.tensor(x, dtype=torch.float32).view(-1, 1, SIDE, SIDE), torch.as_tensor(labels))

    edges = np.cumsum((0, *SIZES))
    own = [np.arange(a, b) for a, b in pairwise(edges)]
    splits = [ClientSplit(rows[1:] if len(rows) < 5 else rows[2:], rows[: len(rows) - 1][:2], "train") for rows in own]
    return FederatedData(DataSpec((1, SIDE, SIDE), CLASSES), samples(y), samples(test_y), splits)


def tiny_public(seed: int = 0) -> Samples:
    """More of the same blobs, for the server."""
    centres = numpy_rng(seed, "tiny").normal(size=(CLASSES, SIDE * SIDE))
    rng = numpy_rng(seed, "tiny public")
    y = np.arange(2 * CLASSES) % CLASSES
    x = centres[y] + 0.7 * rng.normal(size=(len(y), SIDE * SIDE))
    return Samples(torch.tensor(x, dtype=torch.float32).view(-1, 1, SIDE, SIDE), torch.as_tensor(y))


def tiny_net(*, norm: bool = False) -> SplitModel:
    """A network of two small layers, with batch norm if asked for."""
    with seeded(0, "tiny net"):
        layers = [nn.Flatten(), nn.Linear(SIDE * SIDE, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU()]
        return SplitModel(nn.Sequential(*layers), nn.Linear(8, CLASSES, bias=False), 8)


def trial(
    components: Components,
    folder: Path,
    *,
    rounds: int = 3,
    norm: bool = False,
    net: Net = tiny_net,
    loop: Callable[..., Loop] = FabricLoop,
    executor: Callable[[Blueprint], Executor] = SerialExecutor,
    epochs: float = 2,
    batch_size: int = 4,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule = ConstantRate(),  # noqa: B008 - frozen
    fraction: float = 0.6,
    weighting: Weighting = "samples",
    hold: int | None = None,
    faults: Faults = RAISE,
    mishaps: ClientDropouts = NO_DROPOUTS,
) -> Engine:
    """An engine on tiny data, opened and ready to run."""
    data, made, public = tiny_data(), add_modules(net(norm=norm), components, 0, CLASSES), tiny_public()
    facts = Facts(
        seed=0, rounds=rounds, fraction=fraction, n_clients=CLIENTS, n_classes=CLASSES, feature_dim=made.feature_dim,
        layout=layout_of(made), counts=data.counts, initial=snapshot(tensors(made)), public=len(public),
    )  # fmt: skip
    algorithm = Algorithm.compile(components, facts)
    optimizer = optimizer or Sgd(lr=0.1, momentum=0.9, weight_decay=1e-3)
    local = Local(epochs=epochs, batch_size=batch_size, clip=None, schedule=schedule)
    blueprint = Blueprint(made, data, components, facts, loop, optimizer, local, faults)
    engine = Engine(
        algorithm=algorithm, executor=executor(blueprint), network=ServerNetwork(made), public=public,
        test_spans=BatchByBatch(len(data.test.y), 15), sampler=UniformSampler(0, CLIENTS, fraction), mishaps=mishaps,
        weighting=weighting, rounds=rounds, every=Every(1, 1),
        protocol=MapProtocol(), rundir=RunDir(folder), checkpoint=Checkpoint(folder / "checkpoint", "trial", hold=hold),
        tracker=NoTracker(), display=SilentDisplay(),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    engine.open()
    return engine


def play(components: Components, **options: object) -> Engine:
    """Runs a trial to its end in a temporary folder."""
    with scratch.folder() as folder:
        engine = trial(components, folder, **options)  # type: ignore[arg-type]
        engine.run(card(engine))
    return engine


def card(engine: Engine) -> RunCard:
    """A tracker's card for a trial."""
    return RunCard("trial", "trial", {}, {}, [], engine.rundir.path, engine.rounds)


class BatchByBatch(BatchSpans):
    """Every batch is a task, whatever the number of workers: a worker would put small batches together otherwise."""

    def __call__(self, parts: int) -> list[tuple[int, int]]:  # noqa: ARG002
        """As many stretches as there are batches."""
        return super().__call__(self.samples)


class Shuffled(SerialExecutor):
    """Sends jobs and results through pickle and runs them in another order."""

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]:
        """The answers, of which that to the last task was found first."""
        todo = list(tasks)
        assert len(todo) < 2 or todo[::-1] != todo  # noqa: S101 - else the check would check nothing
        done = [_copied(_copied(task).by(self._worker, broadcast)) for task in todo[::-1]]
        return iter(done[::-1])


class Watching(SerialExecutor):
    """Checks that nobody writes into what the server sent."""

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]:
        """The answers, one by one."""
        for task in tasks:
            given = [broadcast, *(m for j in task.jobs for m in (j.downlink, j.private))]
            before = [digest(m) for m in given]
            answer = task.by(self._worker, broadcast)
            _demand(before == [digest(m) for m in given], "a component changed what it was given")
            yield answer


def _copied(value: T) -> T:
    copied: T = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes
    return copied


# ---------------------------------------------------------------- the checks
def components_are_values(components: Components, net: Net = tiny_net) -> None:
    """I1: components are frozen, pickle, and are the same after a run."""
    before = pickle.dumps(dict(components))
    play(components, net=net)
    _demand(pickle.dumps(dict(components)) == before, "a component is not the same after a run: state must be in slots")
    _demand(_copied(dict(components)) == dict(components), "a component does not survive pickling")


def order_does_not_matter(components: Components, net: Net = tiny_net) -> None:
    """I4, I6: jobs in another order, through pickle, give the same server, clients and records."""
    shuffled = play(components, net=net, executor=Shuffled)
    _equal(play(components, net=net), shuffled, "another execution order")


def resume_is_exact(components: Components, net: Net = tiny_net) -> None:
    """I2: a run that stops and is taken up from its files ends like one that never stopped; slots may be on disk."""
    with scratch.folder() as folder:
        first = trial(components, folder, net=net, rounds=3, hold=0)
        first.rounds = 1
        first.run(card(first))
        second = trial(components, folder, net=net, rounds=3)
        _demand(second.progress.state.round == 1, "the checkpoint was not taken up")
        second.run(card(second))
    _equal(play(components, net=net, rounds=3), second, "resuming")


def loops_agree(components: Components, net: Net = tiny_net) -> None:
    """Trainer and Fabric give the same weights and records, bit for bit, also with batch norm."""
    for norm in (False, True):
        fabric, trainer = (play(components, net=net, norm=norm, loop=loop) for loop in (FabricLoop, TrainerLoop))
        _equal(fabric, trainer, "the Trainer")


def executors_agree(components: Components, executor: Executor, net: Net = tiny_net) -> None:
    """Another executor gives the same server, clients and records, bit for bit, also with batch norm.

    Not one of ``CHECKS``: starting an executor takes seconds, so that one is started for many algorithms.
    """

    def used(blueprint: Blueprint) -> Executor:
        executor.use(blueprint)
        return executor

    for norm in (False, True):
        here, there = (play(components, net=net, norm=norm, executor=e) for e in (SerialExecutor, used))
        _equal(here, there, "another executor")


def nothing_given_is_changed(components: Components, net: Net = tiny_net) -> None:
    """I3: received weights and slots are read only, and so is the server's state before a round."""
    with scratch.folder() as folder:
        engine = trial(components, folder, net=net, norm=True, executor=Watching)
        for done in range(engine.rounds):
            state = engine.progress.state
            before = _state_digest(state)
            engine.play(done + 1)
            _demand(before == _state_digest(state), "a component wrote into the server's state")


def bytes_are_as_declared(components: Components, net: Net = tiny_net) -> None:
    """I7: what is declared is what is sent."""
    engine = play(components, net=net)
    down, up = forecast(engine.algorithm)
    calls = engine.sampler.size * engine.rounds
    _demand(engine.ledger.down == calls * sum(down.values()), "the downlink is not what the plan says")
    _demand(engine.ledger.up <= calls * sum(up.values()), "the uplink is more than the plan says")
    _demand(engine.ledger.up > 0 or not sum(up.values()), "nothing was sent up")


def newcomers_can_be_tested(components: Components, net: Net = tiny_net) -> None:
    """Clients that never took part have a personal model too."""
    engine = trial_after(components, rounds=1, fraction=0.2, net=net)
    scores = engine.measurement.test_clients(range(CLIENTS))
    _demand(len(scores) == CLIENTS and all(s.n > 0 for s in scores.values()), "a client could not be tested")


def released_model_is_whole(components: Components, net: Net = tiny_net) -> None:
    """The model that is tested and saved has every tensor of the network, finite, and is the same each time."""
    engine = trial_after(components, rounds=2, net=net, norm=True)
    state, algorithm = engine.progress.state, engine.algorithm
    first, second = (algorithm.released(state) for _ in range(2))
    shapes = [{n: v.shape for n, v in tree.items()} for tree in (first, state.model)]
    _demand(shapes[0] == shapes[1], "the released model has other tensors than the server's")
    _demand(is_finite(first), "the released model has a value that is not finite")
    _demand(digest({"": first}) == digest({"": second}), "the released model is not the same twice")


def one_client_is_enough(components: Components, net: Net = tiny_net) -> None:
    """A cohort of one, a client of one class, a client of one sample."""
    for client in range(CLIENTS):
        engine = trial_after(components, rounds=0, net=net)
        result = engine.measurement.train_once_more([client])[client]
        _demand(result.error is None, str(result.error))
        _demand(all(np.isfinite(v) for v in result.terms.values()), f"client {client}: a loss is not finite")


def neutral_is_fedavg(components: Components, net: Net = tiny_net) -> None:
    """Where every component has a neutral setting, the server's model is FedAvg's, bit for bit."""
    neutral: dict[str, Component] = {}
    for key, component in components.items():
        still = component.neutral()
        if still is None:
            return
        neutral[key] = still
    ours, plain = play(neutral, net=net), play({}, net=net)
    same = digest({"": ours.progress.state.model}) == digest({"": plain.progress.state.model})
    _demand(same, "the neutral setting is not FedAvg")


def slots_begin_alike(components: Components, net: Net = tiny_net) -> None:
    """Initial values depend on the seed alone."""
    one, two = trial_after(components, rounds=0, net=net), trial_after(components, rounds=0, net=net)
    for name in one.algorithm.slots:
        first, second = (e.algorithm.slots[name].init(e.algorithm.init(name)) for e in (one, two))
        _demand(digest({name: first}) == digest({name: second}), f"slot {name} does not begin the same twice")


def composes_or_says_why(components: Components, net: Net = tiny_net) -> None:
    """Together with restricted softmax and control variates: it runs, or a PlanError explains."""
    from fedexp.algos.fedrs import RestrictedSoftmax
    from fedexp.algos.scaffold import Scaffold

    try:
        play({"extra_rs": RestrictedSoftmax(alpha=0.5), **components}, rounds=1, net=net)
        play({**components, "extra_scaffold": Scaffold()}, rounds=1, net=net)
    except PlanError as error:
        _demand(len(str(error)) > 20, "a PlanError that explains nothing")


def trial_after(components: Components, *, rounds: int, **options: object) -> Engine:
    """A trial after some rounds."""
    with scratch.folder() as folder:
        engine = trial(components, folder, rounds=max(rounds, 1), **options)  # type: ignore[arg-type]
        if rounds:
            engine.run(card(engine))
    return engine


Check = Callable[..., None]  # check(components), or check(components, net) with a network of yours


def _on_a_network_it_takes(check: Check) -> Check:
    @wraps(check)
    def checked(components: Components, net: Net = tiny_net) -> None:
        try:
            trial_after(components, rounds=0, net=net)
        except PlanError as error:
            raise PlanError(
                f"the method refuses the battery's small network or data: {error}\n"
                "Give the check a network that it takes as a second argument: net(norm=True) makes one for 4 × 4 "
                "images of 4 classes."
            ) from error
        check(components, net)

    return checked


CHECKS: Mapping[str, Check] = {
    check.__name__: _on_a_network_it_takes(check)
    for check in (
        components_are_values, order_does_not_matter, resume_is_exact, loops_agree, nothing_given_is_changed,
        bytes_are_as_declared, newcomers_can_be_tested, released_model_is_whole, one_client_is_enough,
        neutral_is_fedavg, slots_begin_alike, composes_or_says_why,
    )
}  # fmt: skip


def battery(components: Components, net: Net = tiny_net) -> Callable[[str], None]:
    """Makes a pytest test of each check; its name in the test file must begin with ``test_``."""
    import pytest

    @pytest.mark.parametrize("check", CHECKS)
    def conforms(check: str) -> None:
        CHECKS[check](components, net)

    return conforms


def _equal(one: Engine, two: Engine, what: str) -> None:
    for kind, value in one.digests().items():
        _demand(two.digests()[kind] == value, f"{what} gives another {kind}")
    slots = [_state_digest(e.progress.state) for e in (one, two)]
    _demand(slots[0] == slots[1], f"{what} gives other server slots")
    _demand(len(one.records) == len(two.records), f"{what} gives another number of records")
    for ours, theirs in zip(_measured(one), _measured(two), strict=True):
        different = [k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k)]
        _demand(not different, f"{what} gives another {different} in the record of round {ours['round']}")


def _state_digest(state: ServerState) -> str:
    mail = {f"{name}/{client}": tree for name, box in state.mailboxes.items() for client, tree in box.items()}
    return digest({"model": state.model, **state.slots, **mail})


def _measured(engine: Engine) -> list[Record]:
    """The records as they are on file, without what depends on the clock."""
    records: list[Record] = json.loads(json.dumps(engine.records))
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def _demand(holds: bool, otherwise: str) -> None:  # noqa: FBT001
    if not holds:
        raise AssertionError(otherwise)
