"""From a plain configuration to the objects of a run. Nobody else reads configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedexp.client.faults import Faults, unfit_optimizer
from fedexp.client.loops import accelerators, available
from fedexp.client.messages import Local
from fedexp.client.network import add_modules, classify, layout_of, tensors
from fedexp.config import targets
from fedexp.config.compose import Config, checked, run_id, title
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Component
from fedexp.core.seeding import numpy_rng, seeded
from fedexp.core.state import nbytes, snapshot
from fedexp.core.views import Facts
from fedexp.data.federated import FederatedData
from fedexp.data.source import Loaded, Samples, Source, identified
from fedexp.display import Display
from fedexp.engine import Engine, Every
from fedexp.errors import ConfigError, FedexpError, PartitionError, PlanError
from fedexp.evaluate.protocols import FedGelaProtocol, FedRemaProtocol, MapProtocol
from fedexp.evaluate.tester import BatchSpans, batch_size
from fedexp.execute.base import Blueprint, Say, quiet
from fedexp.models.split import SplitModel
from fedexp.partition.base import ClientSplit, split
from fedexp.runs.checkpoint import Checkpoint
from fedexp.runs.directory import RunDir
from fedexp.runs.plan import Plan, describe, forecast, slot_bytes
from fedexp.runs.storage_estimate import HOLD, Capacity, Demand, StorageEstimate
from fedexp.server.sampler import ClientDropouts, UniformSampler, cohort_size
from fedexp.system.memory import afford
from fedexp.track.base import RunCard, Tracker

LARGE_FINAL = 0.25  # share of all training after the last round, above which the user is told
CHEAP = ("data", "partition", "optim", "tracker")  # made in no time
TRIED = (*CHEAP, "algo", "loop")  # what ``parts`` looks at


@dataclass(frozen=True)
class Experiment:
    """Everything a run is made of, before anything is trained."""

    config: Config
    data: FederatedData
    splits: list[ClientSplit]
    net: SplitModel
    algorithm: Algorithm
    plan: Plan
    hold: int | None  # bytes of clients' slots in memory; None for all

    def engine(self, rundir: RunDir, display: Display) -> Engine:
        """The engine, with its worker, executor and tracker."""
        config = self.config
        blueprint = Blueprint(
            net=self.net,
            data=self.data,
            components=self.algorithm.components,
            facts=self.algorithm.facts,
            loop=make({**config["loop"], "_partial_": True}),
            optimizer=make(config["optim"]),
            local=Local(**config["local"]),
            faults=Faults(config["faults"], config["limit"]),
            devices=accelerators(config["loop"]["accelerator"]),
        )
        tuning = replace(blueprint.local, epochs=config["evaluate"]["finetune_epochs"])
        tracker: Tracker = make(config["tracker"])
        test = self.data.test
        return Engine(
            algorithm=self.algorithm,
            executor=make(config["executor"], blueprint=blueprint, say=display.note),
            classify=partial(classify, self.net),
            tests=BatchSpans(len(test.y), batch_size(test.x[0].numel())),
            sampler=_sampler(config),
            mishaps=ClientDropouts(config["seed"], **config["mishaps"]),
            weighting=config["weighting"],
            rounds=config["rounds"],
            every=Every(**config["every"]),
            protocol=protocol(config["evaluate"]),
            plain=replace(blueprint, components={}, local=tuning),
            rundir=rundir,
            checkpoint=Checkpoint(rundir.path / "checkpoint", self.plan.digest, hold=self.hold),
            tracker=tracker,
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
            partition=self.data.counts.int().tolist(),
            path=rundir.path,
            rounds=self.config["rounds"],
        )


def build(config: Config, stage: Say = quiet) -> Experiment:
    """Makes the parts of a run and checks that they fit. ``stage`` is told what takes its time.

    Raises:
        ConfigError: With every problem found.
        DataError: If the data set is not to be had.
    """
    data_source, components = parts(config)
    problems: list[str] = []
    stage(f"reading {config.get('choices', {}).get('data', 'data')}")
    loaded: Loaded = _pool(_loaded(data_source), config["pool"])
    splits: list[ClientSplit] = []
    try:
        loaded, splits = _deal(config, loaded)
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
        problems += unfit_optimizer(algorithm, make(config["optim"]))
    except PlanError as error:
        problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    room = Capacity.of(Path(config["out"]))
    footprint = StorageEstimate.of(_load(config, algorithm, loaded), config["store"], room)
    notes = [
        *_nothing_to_measure(algorithm, splits), *_after_the_last_round(config, algorithm, splits),
        *footprint.notes(room, config["store"]),
    ]  # fmt: skip
    plan = describe(algorithm, config, net, splits, loaded, footprint, notes)
    return Experiment(config, data, splits, net, algorithm, plan, HOLD if footprint.store == "disk" else None)


def parts(config: Config) -> tuple[Source, dict[str, Component]]:
    """The data set, not loaded, and the components, after checking all that can be checked without data.

    Raises:
        ConfigError: With every problem found.
    """
    checked(config)
    problems: list[str] = []
    if not available(config["loop"]["accelerator"]):
        problems.append(f"loop.accelerator={config['loop']['accelerator']} is not on this machine. Use auto or cpu.")
    made: dict[str, Any] = {}
    nodes = {**{f"algo.{k}": node for k, node in config["algo"].items()}, **{k: config[k] for k in CHEAP}}
    for where, node in nodes.items():
        try:
            made[where] = make(node)
        except ConfigError as error:
            problems.append(str(error))
        except (TypeError, ValueError) as error:
            problems.append(f"{where}: {node['_target_']} does not take these settings ({error}).")
    if problems:
        raise ConfigError("\n".join(problems))
    return made["data"], {key: made[f"algo.{key}"] for key in config["algo"]}


def make(node: Mapping[str, Any], **given: Any) -> Any:
    """Calls a node's ``_target_`` with its settings; lists become tuples, so that nothing can change later.

    Raises:
        ConfigError: If it cannot be imported.
    """
    target = targets.load(node["_target_"])
    settings = {k: _frozen(v) for k, v in node.items() if not k.startswith("_")}
    if node.get("_partial_"):
        return partial(target, **settings, **given)
    return target(**settings, **given)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


# ---------------------------------------------------------------- parts
def _sampler(config: Config) -> UniformSampler:
    cohort = config["cohort"]
    seed = config["seed"] if cohort["seed"] is None else cohort["seed"]
    return UniformSampler(seed, cohort["clients"], cohort["fraction"])


def _loaded(source: Source) -> Loaded:
    try:
        return identified(source.load())
    except (MemoryError, OverflowError) as cause:
        raise ConfigError(f"data: the data set does not fit into memory ({cause}). Make it smaller.") from cause


def _pool(loaded: Loaded, pool: str) -> Loaded:
    """``all``: training and test samples are dealt out together, as FedReMa does."""
    if pool == "train":
        return loaded
    train = Samples(torch.cat([loaded.train.x, loaded.test.x]), torch.cat([loaded.train.y, loaded.test.y]))
    owners = None
    if loaded.owners is not None and loaded.test_owners is not None:
        owners = torch.cat([loaded.owners, loaded.test_owners])
    return replace(loaded, train=train, owners=owners, test_owners=None)


def _deal(config: Config, loaded: Loaded) -> tuple[Loaded, list[ClientSplit]]:
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
        held = np.sort(np.concatenate([s.test for s in splits]))
        loaded = replace(loaded, test=loaded.train.select(torch.from_numpy(held)))
    return loaded, splits


def _network(config: Config, loaded: Loaded) -> SplitModel:
    shape, classes = loaded.spec.shape, loaded.spec.n_classes
    network = make({**config["model"], "_partial_": True})
    try:
        with seeded(config["seed"], "size"), torch.device("meta"):  # to be counted, without a number in it
            size = sum(t.nbytes for t in network(shape, classes).state_dict().values())
        afford(3 * size, f"training {size // 4:,} numbers (weights, gradients, momentum)")
        with seeded(config["seed"], "network"):
            net: SplitModel = network(shape, classes)
    except (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as cause:
        first = (str(cause).splitlines() or [""])[0]
        raise ConfigError(f"{config['model']['_target_']} cannot be made of these settings ({first}).") from cause
    return net


def _facts(config: Config, loaded: Loaded, net: SplitModel, data: FederatedData) -> Facts:
    return Facts(
        seed=config["seed"],
        rounds=config["rounds"],
        fraction=config["cohort"]["fraction"],
        n_clients=config["cohort"]["clients"],
        n_classes=loaded.spec.n_classes,
        feature_dim=net.feature_dim,
        layout=layout_of(net),
        counts=data.counts,
        initial=snapshot(tensors(net)),
    )


def _load(config: Config, algorithm: Algorithm, loaded: Loaded) -> Demand:
    """What the run will carry."""
    clients = config["cohort"]["clients"]
    cohort = cohort_size(clients, config["cohort"]["fraction"])
    up, kept = forecast(algorithm)[1], algorithm.keeps()
    return Demand(
        data=sum(t.nbytes for samples in (loaded.train, loaded.test) for t in (samples.x, samples.y)),
        server=nbytes(algorithm.facts.initial) + slot_bytes(algorithm, "server"),
        kept=slot_bytes(algorithm, "client"),
        mail=slot_bytes(algorithm, "mailbox"),
        up=sum(up.values()),
        up_kept=sum(size for name, size in up.items() if name in kept),
        keepers=min(clients, cohort * config["rounds"]),
        cohort=cohort,
        between=min(clients, cohort * min(config["every"]["checkpoint"], config["rounds"])),
    )


def _nothing_to_measure(algorithm: Algorithm, splits: Sequence[ClientSplit]) -> Iterator[str]:
    if not algorithm.global_view and not any(len(s.test) for s in splits):
        yield (
            "no accuracy will be measured: the method has no global model to test, and no client has a test set. "
            "partition.test=holdout gives each one."
        )


def _after_the_last_round(config: Config, algorithm: Algorithm, splits: Sequence[ClientSplit]) -> Iterator[str]:
    """Says so if much of the work comes after the rounds."""
    if not any(len(s.test) for s in splits):
        return
    chosen = protocol(config["evaluate"])
    again = len(chosen.final_clients(algorithm.facts))
    more = again + chosen.passes(algorithm) * len(splits)
    rounds = config["rounds"] * cohort_size(config["cohort"]["clients"], config["cohort"]["fraction"])
    if again > LARGE_FINAL * (rounds + more):
        fewer = ", and evaluate.all_clients=100 takes 100 of them" if again > 100 else ""
        yield (
            f"evaluate: clients trained and tested once more after the last round: {again:,}, which is about "
            f"{100 * again / (rounds + more):.0f} % of all training. evaluate.all_clients=false leaves that out{fewer}."
        )
    if more - again > LARGE_FINAL * (rounds + more):
        yield (
            f"evaluate: clients fine-tuned after the last round: {more - again:,}, each for evaluate.finetune_epochs="
            f"{config['evaluate']['finetune_epochs']:g}."
        )


def protocol(settings: Mapping[str, Any]) -> MapProtocol:
    """The evaluation protocol of the settings of ``evaluate``."""
    chosen = {k: v for k, v in settings.items() if k in ("window", "all_clients") and v is not None}
    makers: dict[str, Callable[..., MapProtocol]] = {
        "map": MapProtocol, "fedgela": FedGelaProtocol, "fedrema": FedRemaProtocol,
    }  # fmt: skip
    return makers[settings["protocol"]](**chosen)


__all__ = ["Experiment", "FedexpError", "build", "make", "title"]
