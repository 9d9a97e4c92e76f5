"""Small runs on tiny data, in which checks and tests watch a method."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedexp.client.faults import RAISE, Faults
from fedexp.client.loops import FabricLoop, Loop
from fedexp.client.messages import Local
from fedexp.client.network import add_modules, layout_of, tensors
from fedexp.client.optim import OptimizerFactory, Sgd
from fedexp.client.schedules import ConstantRate, Schedule
from fedexp.config.settings import Every
from fedexp.core.algorithm import Algorithm, Components
from fedexp.core.devices import CPU
from fedexp.core.seeding import numpy_rng, seeded
from fedexp.core.state import snapshot
from fedexp.core.views import Facts
from fedexp.data.federated import FederatedData
from fedexp.data.source import DataSpec, Samples
from fedexp.display import SilentDisplay
from fedexp.engine import Engine
from fedexp.evaluate.map import MapProtocol
from fedexp.evaluate.protocol import EvaluationProtocol
from fedexp.evaluate.tester import BatchSpans
from fedexp.execute.base import Blueprint, Executor, SerialExecutor, quiet
from fedexp.models.split import SplitModel
from fedexp.partition.base import ClientSplit
from fedexp.probes.observer import NO_PROBES, Probes, ServerObserver
from fedexp.runs.checkpoint import Checkpoint
from fedexp.runs.directory import RunDir
from fedexp.server.network import ServerNetwork
from fedexp.server.sampler import NO_DROPOUTS, ClientDropouts, UniformSampler
from fedexp.server.update import Weighting
from fedexp.system import scratch
from fedexp.track import RunCard, Trackers

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
        return Samples(_images(x), torch.as_tensor(labels))

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
    return Samples(_images(x), torch.as_tensor(y))


def _images(x: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Tensor:
    return torch.tensor(x, dtype=torch.get_default_dtype()).view(-1, 1, SIDE, SIDE)


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
    group: int | None = None,
    hold: int | None = None,
    faults: Faults = RAISE,
    mishaps: ClientDropouts = NO_DROPOUTS,
    probes: Probes = NO_PROBES,
    protocol: EvaluationProtocol = MapProtocol(),  # noqa: B008 - frozen
    device: torch.device = CPU,
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
    blueprint = Blueprint(made, data, components, facts, loop, optimizer, local, faults, probes=probes, group=group)
    network = ServerNetwork(made, device)
    engine = Engine(
        algorithm=algorithm, executor=executor(blueprint), network=network, public=public,
        test_spans=BatchByBatch(len(data.test.y), 15), sampler=UniformSampler(0, CLIENTS, fraction), mishaps=mishaps,
        weighting=weighting, rounds=rounds, every=Every(1, 1), group=group,
        protocol=protocol, rundir=RunDir(folder), checkpoint=Checkpoint(folder / "checkpoint", "trial", hold=hold),
        tracker=Trackers({}, quiet), display=SilentDisplay(),
        probes=ServerObserver(probes, facts, network.features, data.test) if probes else None,
        probe_settings=json.loads(json.dumps({name: asdict(probe) for name, probe in probes.items()})),
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
    return RunCard("trial", "trial", {}, {}, engine.rundir.path, engine.rounds)


class BatchByBatch(BatchSpans):
    """Every batch is a task, whatever the number of workers: a worker would put small batches together otherwise."""

    def __call__(self, parts: int) -> list[tuple[int, int]]:  # noqa: ARG002
        """As many stretches as there are batches."""
        return super().__call__(self.samples)


def trial_after(components: Components, *, rounds: int, **options: object) -> Engine:
    """A trial after some rounds."""
    with scratch.folder() as folder:
        engine = trial(components, folder, rounds=max(rounds, 1), **options)  # type: ignore[arg-type]
        if rounds:
            engine.run(card(engine))
    return engine
