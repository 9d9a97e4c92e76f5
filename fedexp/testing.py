"""The conformance battery: what every algorithm must do, ours or yours. Each check raises AssertionError.

from fedexp.testing import CHECKS
for check in CHECKS.values():
    check({"mine": MyComponent()})
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from fedexp.client.faults import RAISE, Faults
from fedexp.client.loops import FabricLoop, Loop, TrainerLoop
from fedexp.client.messages import Local
from fedexp.client.network import add_modules, classify, layout_of, tensors
from fedexp.client.optim import Sgd
from fedexp.core.algorithm import Algorithm, Components
from fedexp.core.component import Component
from fedexp.core.seeding import numpy_rng, seeded
from fedexp.core.state import Message, digest, snapshot
from fedexp.core.views import Facts
from fedexp.data.federated import FederatedData
from fedexp.data.source import DataSpec, Samples
from fedexp.display import SilentDisplay
from fedexp.engine import Engine, Every
from fedexp.errors import PlanError
from fedexp.evaluate.protocols import MapProtocol
from fedexp.evaluate.tester import BatchSpans
from fedexp.execute.base import Blueprint, Executor, SerialExecutor
from fedexp.execute.task import Task, TaskResult
from fedexp.models.split import SplitModel
from fedexp.partition.base import ClientSplit
from fedexp.runs.checkpoint import Checkpoint
from fedexp.runs.directory import RunDir
from fedexp.runs.plan import forecast
from fedexp.server.sampler import NO_DROPOUTS, ClientDropouts, UniformSampler
from fedexp.server.update import Weighting
from fedexp.system import scratch
from fedexp.track.base import NoTracker, RunCard

T = TypeVar("T")

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
    loop: Callable[..., Loop] = FabricLoop,
    executor: Callable[[Blueprint], Executor] = SerialExecutor,
    epochs: float = 2,
    batch_size: int = 4,
    optimizer: Sgd | None = None,
    fraction: float = 0.6,
    weighting: Weighting = "samples",
    hold: int | None = None,
    faults: Faults = RAISE,
    mishaps: ClientDropouts = NO_DROPOUTS,
) -> Engine:
    """An engine on tiny data, opened and ready to run."""
    data, net = tiny_data(), add_modules(tiny_net(norm=norm), components, 0, CLASSES)
    facts = Facts(
        seed=0, rounds=rounds, fraction=fraction, n_clients=CLIENTS, n_classes=CLASSES, feature_dim=net.feature_dim,
        layout=layout_of(net), counts=data.counts, initial=snapshot(tensors(net)),
    )  # fmt: skip
    algorithm = Algorithm.compile(components, facts)
    optimizer = optimizer or Sgd(lr=0.1, momentum=0.9, weight_decay=1e-3)
    local = Local(epochs=epochs, batch_size=batch_size)
    blueprint = Blueprint(net, data, components, facts, loop, optimizer, local, faults)
    engine = Engine(
        algorithm=algorithm, executor=executor(blueprint), classify=partial(classify, net),
        tests=BatchSpans(len(data.test.y), 15), sampler=UniformSampler(0, CLIENTS, fraction), mishaps=mishaps,
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
def components_are_values(components: Components) -> None:
    """I1: components are frozen, pickle, and are the same after a run."""
    before = pickle.dumps(dict(components))
    play(components)
    _demand(pickle.dumps(dict(components)) == before, "a component is not the same after a run: state must be in slots")
    _demand(_copied(dict(components)) == dict(components), "a component does not survive pickling")


def order_does_not_matter(components: Components) -> None:
    """I4, I6: jobs in another order, through pickle, give the same server and the same clients."""
    shuffled = play(components, executor=Shuffled)
    _equal(play(components), shuffled, "another execution order")


def resume_is_exact(components: Components) -> None:
    """I2: a run that stops and is taken up from its files ends like one that never stopped; slots may be on disk."""
    with scratch.folder() as folder:
        first = trial(components, folder, rounds=3, hold=0)
        first.rounds = 1
        first.run(card(first))
        second = trial(components, folder, rounds=3)
        _demand(second.progress.state.round == 1, "the checkpoint was not taken up")
        second.run(card(second))
    _equal(play(components, rounds=3), second, "resuming")


def loops_agree(components: Components) -> None:
    """Trainer and Fabric give the same weights, bit for bit, also with batch norm."""
    for norm in (False, True):
        _equal(play(components, norm=norm), play(components, norm=norm, loop=TrainerLoop), "the Trainer")


def executors_agree(components: Components, executor: Executor) -> None:
    """Another executor gives the same server and the same clients, bit for bit, also with batch norm.

    Not one of ``CHECKS``: starting an executor takes seconds, so that one is started for many algorithms.
    """

    def used(blueprint: Blueprint) -> Executor:
        executor.use(blueprint)
        return executor

    for norm in (False, True):
        _equal(play(components, norm=norm), play(components, norm=norm, executor=used), "another executor")


def nothing_given_is_changed(components: Components) -> None:
    """I3: received weights and slots are read only."""
    play(components, executor=Watching)


def bytes_are_as_declared(components: Components) -> None:
    """I7: what is declared is what is sent."""
    engine = play(components)
    down, up = forecast(engine.algorithm)
    calls = engine.sampler.size * engine.rounds
    _demand(engine.ledger.down == calls * sum(down.values()), "the downlink is not what the plan says")
    _demand(engine.ledger.up <= calls * sum(up.values()), "the uplink is more than the plan says")
    _demand(engine.ledger.up > 0 or not up, "nothing was sent up")


def newcomers_can_be_tested(components: Components) -> None:
    """Clients that never took part have a personal model too."""
    engine = trial_after(components, rounds=1, fraction=0.2)
    scores = engine.test_clients(range(CLIENTS))
    _demand(all(s is not None and s.n > 0 for s in scores.values()), "a client could not be tested")


def one_client_is_enough(components: Components) -> None:
    """A cohort of one, a client of one class, a client of one sample."""
    for client in range(CLIENTS):
        engine = trial_after(components, rounds=0)
        result = engine.visit([client])[client]
        _demand(result.error is None, str(result.error))
        _demand(all(np.isfinite(v) for v in result.terms.values()), f"client {client}: a loss is not finite")


def neutral_is_fedavg(components: Components) -> None:
    """Where every component has a neutral setting, the server's model is FedAvg's, bit for bit."""
    neutral: dict[str, Component] = {}
    for key, component in components.items():
        still = component.neutral()
        if still is None:
            return
        neutral[key] = still
    ours, plain = play(neutral), play({})
    same = digest({"": ours.progress.state.model}) == digest({"": plain.progress.state.model})
    _demand(same, "the neutral setting is not FedAvg")


def slots_begin_alike(components: Components) -> None:
    """Initial values depend on the seed alone."""
    one, two = trial_after(components, rounds=0), trial_after(components, rounds=0)
    for name in one.algorithm.slots:
        first, second = (e.algorithm.slots[name].init(e.algorithm.init(name)) for e in (one, two))
        _demand(digest({name: first}) == digest({name: second}), f"slot {name} does not begin the same twice")


def composes_or_says_why(components: Components) -> None:
    """Together with restricted softmax and control variates: it runs, or a PlanError explains."""
    from fedexp.algos.fedrs import RestrictedSoftmax
    from fedexp.algos.scaffold import Scaffold

    try:
        play({"extra_rs": RestrictedSoftmax(alpha=0.5), **components}, rounds=1)
        play({**components, "extra_scaffold": Scaffold()}, rounds=1)
    except PlanError as error:
        _demand(len(str(error)) > 20, "a PlanError that explains nothing")


def trial_after(components: Components, *, rounds: int, **options: object) -> Engine:
    """A trial after some rounds."""
    with scratch.folder() as folder:
        engine = trial(components, folder, rounds=max(rounds, 1), **options)  # type: ignore[arg-type]
        if rounds:
            engine.run(card(engine))
    return engine


CHECKS: Mapping[str, Callable[[Components], None]] = {
    check.__name__: check
    for check in (
        components_are_values, order_does_not_matter, resume_is_exact, loops_agree, nothing_given_is_changed,
        bytes_are_as_declared, newcomers_can_be_tested, one_client_is_enough, neutral_is_fedavg, slots_begin_alike,
        composes_or_says_why,
    )
}  # fmt: skip


def _equal(one: Engine, two: Engine, what: str) -> None:
    for kind, value in one.digests().items():
        _demand(two.digests()[kind] == value, f"{what} gives another {kind}")
    slots = [digest({**e.progress.state.slots, **_mail(e)}) for e in (one, two)]
    _demand(slots[0] == slots[1], f"{what} gives other server slots")


def _mail(engine: Engine) -> dict[str, dict[str, torch.Tensor]]:
    boxes = engine.progress.state.mailboxes
    return {f"{name}/{client}": tree for name, box in boxes.items() for client, tree in box.items()}


def _demand(holds: bool, otherwise: str) -> None:  # noqa: FBT001
    if not holds:
        raise AssertionError(otherwise)
