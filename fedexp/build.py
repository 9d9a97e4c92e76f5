"""From a plain configuration to the objects of a run.

The objects themselves never see it: they are given values. Around them, the commands (api, cli, sweep, data show) read
single settings of it, and the plan and trackers describe the run by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedexp.client.batched.reasons import stackable
from fedexp.client.faults import Faults
from fedexp.client.loops import accelerators, first_device
from fedexp.client.messages import Local
from fedexp.client.network import add_modules, layout_of, tensors
from fedexp.client.optim import kept_per_parameter, misfits
from fedexp.config.compose import Config, federation
from fedexp.config.identity import run_id
from fedexp.config.make import make
from fedexp.config.settings import Every
from fedexp.core.algorithm import Algorithm
from fedexp.core.seeding import numpy_rng, seeded
from fedexp.core.state import nbytes, snapshot
from fedexp.core.views import Facts
from fedexp.data.federated import FederatedData
from fedexp.data.source import Loaded, Samples, Source, identified
from fedexp.display import Display
from fedexp.engine import Engine
from fedexp.errors import ConfigError, PartitionError, PlanError
from fedexp.evaluate.protocol import EvaluationProtocol
from fedexp.evaluate.tester import BatchSpans, batch_size
from fedexp.execute.base import Blueprint, Say, quiet
from fedexp.models.split import SplitModel, check_network
from fedexp.partition.base import ClientSplit, split
from fedexp.partition.union import union
from fedexp.parts import make_optimizer, parts
from fedexp.probes.base import Probe
from fedexp.probes.observer import ServerObserver
from fedexp.runs import notes
from fedexp.runs.checkpoint import Checkpoint
from fedexp.runs.directory import RunDir
from fedexp.runs.plan import Plan, describe, forecast, slot_bytes
from fedexp.runs.storage_estimate import SLOT_MEMORY_BYTES, Capacity, Demand, StorageEstimate
from fedexp.server.network import ServerNetwork
from fedexp.server.sampler import ClientDropouts, UniformSampler, cohort_size
from fedexp.system.memory import afford
from fedexp.system.versions import commit
from fedexp.terminal.numbers import count
from fedexp.track import RunCard, Trackers


@dataclass(frozen=True)
class Experiment:
    """Everything a run is made of, before anything is trained."""

    config: Config
    data: FederatedData
    splits: list[ClientSplit]
    net: SplitModel
    algorithm: Algorithm
    protocol: EvaluationProtocol
    plan: Plan
    hold: int | None  # bytes of clients' slots in memory; None for all
    public: Samples | None = None  # the server's own
    probes: Mapping[str, Probe] = field(default_factory=dict)

    def engine(self, rundir: RunDir, display: Display) -> Engine:
        """The engine, with its worker, executor and tracker."""
        config = self.config
        blueprint = Blueprint(
            net=self.net,
            data=self.data,
            components=self.algorithm.components,
            facts=self.algorithm.facts,
            loop=make({**config["loop"], "_partial_": True}),
            optimizer=make_optimizer(config["optim"]),
            local=Local(**config["local"], schedule=make(config["schedule"])),
            faults=Faults(config["faults"], config["limit"]),
            devices=accelerators(config["loop"]["accelerator"]),
            probes=self.probes,
            group=config["loop"].get("group"),
        )
        network = ServerNetwork(self.net, first_device(config["loop"]["accelerator"]))
        trackers = {name: make(node) for name, node in config["tracker"].items()}
        test = self.data.test
        return Engine(
            algorithm=self.algorithm,
            executor=make(config["executor"], blueprint=blueprint, say=display.note),
            network=network,
            public=self.public,
            test_spans=BatchSpans(len(test.y), batch_size(math.prod(test.x.shape[1:]))),
            sampler=_sampler(config),
            mishaps=ClientDropouts(config["seed"], **config["mishaps"]),
            weighting=config["weighting"],
            rounds=config["rounds"],
            every=Every(**config["every"]),
            protocol=self.protocol,
            group=blueprint.group,
            plain=replace(blueprint, components={}, probes={}),
            probes=ServerObserver(self.probes, self.algorithm.facts, network.features, test) if self.probes else None,
            probe_settings=config.get("probe", {}),
            rundir=rundir,
            checkpoint=Checkpoint(rundir.path / "checkpoint", self.plan.digest, hold=self.hold),
            tracker=Trackers(trackers, display.note),
            display=display,
        )

    @property
    def tests_clients(self) -> bool:
        """Whether any client has a test set of its own."""
        return any(len(s.test) for s in self.splits)

    def card(self, rundir: RunDir) -> RunCard:
        """The run as a tracker is told of it."""
        return RunCard(
            run=run_id(self.config),
            name=self.config["name"],
            config=self.config,
            plan=self.plan.content,
            path=rundir.path,
            rounds=self.config["rounds"],
            commit=commit(Path.cwd()),
        )


def build(config: Config, stage: Say = quiet) -> Experiment:
    """Makes the parts of a run and checks that they fit. ``stage`` is told what takes its time.

    Raises:
        ConfigError: With every problem found.
        DataError: If the data set is not to be had.
    """
    data_source, components, protocol = parts(config)
    problems: list[str] = []
    stage(f"reading {config.get('choices', {}).get('data', 'data')}")
    loaded, public = _set_aside(_loaded(data_source), config["public"], config["seed"])
    loaded = _pool(loaded, config["pool"])
    splits: list[ClientSplit] = []
    try:
        loaded, splits = _partitioned(config, loaded)
    except PartitionError as error:
        problems.append(f"partition: {error}")
    try:
        net = _network(config, loaded)
    except ConfigError as error:
        raise ConfigError("\n".join([*problems, f"model: {error}"])) from error
    data = FederatedData(loaded.spec, loaded.train, loaded.test, splits, loaded.augment)
    try:
        add_modules(net, components, config["seed"], loaded.spec.n_classes)
        algorithm = Algorithm.compile(components, _facts(config, loaded, net, data))
        problems += misfits(algorithm, make_optimizer(config["optim"]))
        probes = {key: make(node) for key, node in config.get("probe", {}).items()}
        problems += [f"probe.{k}: {why}" for k, probe in probes.items() for why in probe.problems(algorithm.facts)]
        if not len(data.test) and (algorithm.global_view or protocol.tests_clients_globally(algorithm)):
            problems.append("data: it has no test set; pool=all makes one of what clients hold out")
    except PlanError as error:
        problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    room = Capacity.of(Path(config["out"]))
    footprint = StorageEstimate.of(_demand(config, algorithm, loaded, public), config["store"], room)
    caveats = [
        *notes.of_components(algorithm), *notes.unlike_the_paper(algorithm, config["weighting"], protocol),
        *notes.centralized(config, algorithm, data),
    ]  # fmt: skip
    can_stack = partial(stackable, algorithm, net, loaded.train.x, make_optimizer(config["optim"]))
    said = [
        *notes.nothing_to_measure(algorithm, splits), *notes.missing_classes(config, protocol, data),
        *notes.after_the_last_round(config, algorithm, protocol, splits), *footprint.notes(room, config["store"]),
        *notes.stacking(config, algorithm, net, can_stack, first_device(config["loop"]["accelerator"])),
    ]  # fmt: skip
    plan = describe(algorithm, config, net, splits, loaded, footprint, caveats, said)
    hold = SLOT_MEMORY_BYTES if footprint.store == "disk" else None
    return Experiment(config, data, splits, net, algorithm, protocol, plan, hold, public, probes)


def _sampler(config: Config) -> UniformSampler:
    cohort = config["cohort"]
    seed = config["seed"] if cohort["seed"] is None else cohort["seed"]
    return UniformSampler(seed, *federation(config))


def _loaded(source: Source) -> Loaded:
    try:
        return identified(source.load())
    except (MemoryError, OverflowError) as cause:
        raise ConfigError(f"data: the data set does not fit into memory ({cause}). Make it smaller.") from cause


def _set_aside(loaded: Loaded, count: int, seed: int) -> tuple[Loaded, Samples | None]:
    """Draws the server's own samples, and takes them out of the test set before anybody gets one of it."""
    if not count:
        return loaded, None
    there = len(loaded.test)
    if count >= there:
        raise ConfigError(
            f"public={count} takes samples out of the test set, which has {there:,}. Use {there - 1} or fewer."
        )
    drawn = torch.from_numpy(numpy_rng(seed, "public").permutation(there))
    aside, rest = drawn[:count].sort().values, drawn[count:].sort().values
    owners = None if loaded.test_owners is None else loaded.test_owners[rest]
    return replace(loaded, test=loaded.test.select(rest), test_owners=owners), loaded.test.select(aside)


def _pool(loaded: Loaded, pool: str) -> Loaded:
    """``all``: training and test samples are dealt out together, as FedReMa does."""
    if pool == "train":
        return loaded
    train = Samples(torch.cat([loaded.train.x, loaded.test.x]), torch.cat([loaded.train.y, loaded.test.y]))
    owners = loaded.owners  # too few where nobody knows whose the test samples are, which partition=natural says
    if owners is not None and loaded.test_owners is not None:
        owners = torch.cat([owners, loaded.test_owners])
    return replace(loaded, train=train, owners=owners, test_owners=None)


def _partitioned(config: Config, loaded: Loaded) -> tuple[Loaded, list[ClientSplit]]:
    partition = make(config["partition"])
    seed = config["seed"] if partition.seed is None else partition.seed
    splits = split(
        partition,
        loaded.train.y.numpy(),
        loaded.test.y.numpy(),
        config["cohort"]["clients"],
        loaded.spec.n_classes,
        numpy_rng(seed, "partition"),
        owners=None if loaded.owners is None else loaded.owners.numpy(),
        owners_test=None if loaded.test_owners is None else loaded.test_owners.numpy(),
    )
    if config["pool"] == "all":  # the global test set must not be among the clients' training samples
        if any(s.test_from == "test" or not len(s.test) for s in splits):
            raise PartitionError(
                "pool=all needs clients that hold out samples of their own (partition.test=holdout): "
                "they make up its global test set"
            )
        held = np.unique(np.concatenate([s.test for s in splits]))
        if both := np.intersect1d(held, np.concatenate([s.train for s in splits])).size:
            raise PartitionError(
                "pool=all would test the server's model on samples that clients train on: "
                f"{count(both, 'sample')}. Use a partition whose clients' test samples are nobody's training samples"
            )
        loaded = replace(loaded, test=loaded.train.select(torch.from_numpy(held)))
    return loaded, [union(splits)] if config["centralized"] else splits


def _network(config: Config, loaded: Loaded) -> SplitModel:
    shape, classes = loaded.spec.shape, loaded.spec.n_classes
    network = make({**config["model"], "_partial_": True})
    try:
        with seeded(config["seed"], "size"), torch.device("meta"):  # to be counted, without a number in it
            size = sum(t.nbytes for t in network(shape, classes).state_dict().values())
        kept = kept_per_parameter(make_optimizer(config["optim"]))
        many = min(config["loop"].get("group", 1), cohort_size(*federation(config)))
        stack = f" of each of {many} clients (loop.group)" if many > 1 else ""
        what = f"training {size // 4:,} numbers{stack} (weights, gradients, {kept} of the optimizer's)"
        afford((2 + kept) * size * many, what)
        with seeded(config["seed"], "network"):
            net: SplitModel = network(shape, classes)
            check_network(net, loaded.train.x[:2], classes)
    except (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, AttributeError) as cause:
        first = (str(cause).splitlines() or [""])[0]
        raise ConfigError(f"{config['model']['_target_']} cannot be made of these settings ({first}).") from cause
    return net


def _facts(config: Config, loaded: Loaded, net: SplitModel, data: FederatedData) -> Facts:
    clients, fraction = federation(config)
    return Facts(
        seed=config["seed"],
        rounds=config["rounds"],
        fraction=fraction,
        n_clients=clients,
        n_classes=loaded.spec.n_classes,
        feature_dim=net.feature_dim,
        layout=layout_of(net),
        counts=data.counts,
        initial=snapshot(tensors(net)),
        public=config["public"],
    )


def _demand(config: Config, algorithm: Algorithm, loaded: Loaded, public: Samples | None) -> Demand:
    """The memory and disk that the run needs."""
    held = [loaded.train, loaded.test, *([] if public is None else [public])]
    clients, fraction = federation(config)
    cohort = cohort_size(clients, fraction)
    up, kept = forecast(algorithm)[1], algorithm.keeps()
    return Demand(
        data=sum(t.nbytes for samples in held for t in (samples.x, samples.y)),
        server=nbytes(algorithm.facts.initial) + slot_bytes(algorithm, "server"),
        kept=slot_bytes(algorithm, "client"),
        mail=slot_bytes(algorithm, "mailbox"),
        up=sum(up.values()),
        up_kept=sum(size for name, size in up.items() if name in kept),
        keepers=min(clients, cohort * config["rounds"]),
        cohort=cohort,
        between=min(clients, cohort * min(config["every"]["checkpoint"], config["rounds"])),
    )
