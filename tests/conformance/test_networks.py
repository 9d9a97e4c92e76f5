"""Every network of conf/model through two rounds of the algorithms of conf/algo; both are found by glob.

Every network meets every algorithm with --slow, and a sample of them without; large ones with an eighth of their
channels, and one algorithm as they are.
A method may refuse a network; nothing here knows which, so that a new file in conf/ needs no edit.
The clients are the awkward ones: a single sample, a single class, and a single sample to be tested on.
"""

from __future__ import annotations

import copy
import re
from collections import deque
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.messages import ClientResult, Job, Local
from fedexp.client.network import add_modules, layout_of, tensors
from fedexp.client.optim import Sgd
from fedexp.client.worker import Worker
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.make import make
from fedexp.config.sources import conf_dir
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import overrides
from fedexp.core.seeding import seeded
from fedexp.core.state import ServerState, Tree, digest, nbytes, snapshot
from fedexp.core.views import Facts
from fedexp.data.federated import FederatedData
from fedexp.data.source import DataSpec, Samples
from fedexp.errors import ConfigError, PlanError
from fedexp.models.split import SplitModel
from fedexp.partition.base import ClientSplit
from fedexp.runs.plan import forecast
from fedexp.server.aggregate import is_finite
from fedexp.server.network import ServerNetwork
from fedexp.server.update import advance, cohort_weights
from tests.helpers import folded, sampled

CLASSES = 4
LABELS = ((0, 1, 2, 0), (1,), (3, 3))  # what each client trains on, in one batch
SHAPES = ((1, 8, 8), (1, 16, 16), (1, 32, 32), (12,), (1, 32))  # the first that a network takes is its input
LARGER = {"efficientnet_b0": (3, 40, 40)}  # below, its last maps are single pixels: nothing to normalise one sample by
LARGE = 800_000  # parameters


# ---------------------------------------------------------------- networks and data
@dataclass(frozen=True)
class Subject:
    """A network with its data and what is known of them before the first round."""

    net: SplitModel
    data: FederatedData
    facts: Facts

    def worker(self, algo: str, loop: type[FabricLoop | TrainerLoop] = FabricLoop) -> Worker:
        own, net, facts = components(algo), self.net, self.facts
        if any(overrides(component, "modules") for component in own.values()):
            net = add_modules(copy.deepcopy(net), own, 0, CLASSES)
            facts = replace(facts, layout=layout_of(net), initial=snapshot(tensors(net)))
        algorithm = Algorithm.compile(own, facts)
        return Worker(net, self.data, algorithm, loop(), Sgd(lr=0.01), Local(epochs=1, batch_size=4, clip=10.0))


@cache
def components(algo):
    return {key: make(node) for key, node in composed([f"algo={algo}"])["algo"].items()}


@cache
def facts_of(name):
    """The network's settings, the shape of its samples, and its size; nothing is computed."""
    config = OmegaConf.to_container(OmegaConf.load(conf_dir() / "model" / f"{name}.yaml"))
    for shape in (LARGER[name],) if name in LARGER else SHAPES:
        try:
            with torch.device("meta"):
                net = make(config)(shape, CLASSES)
        except ConfigError:
            continue
        return config, shape, sum(p.numel() for p in net.parameters())
    raise AssertionError(f"model={name} takes none of {SHAPES}")


def narrow(config):
    """The same layers with few channels."""
    less = {"widths": lambda widths: [max(w // 8, 4) for w in widths], "widen": lambda _: 1}
    return {key: less[key](value) if key in less else value for key, value in config.items()}


def samples(shape, labels):
    y = torch.tensor(labels)
    rng = torch.Generator().manual_seed(len(labels))
    size = (len(y), *shape)
    if len(shape) == 1:  # text
        return Samples(torch.randint(CLASSES, size, generator=rng), y)
    return Samples(torch.randn(size, generator=rng), y)


def federated(shape):
    """Each client's training samples, then one more of its first class to be tested on."""
    labels = [label for own in LABELS for label in (*own, own[0])]
    ends = np.cumsum([len(own) + 1 for own in LABELS])
    splits = [
        ClientSplit(np.arange(end - len(own) - 1, end - 1), np.array([end - 1]), "train")
        for own, end in zip(LABELS, ends, strict=True)
    ]
    test = samples(shape, list(range(CLASSES)))
    return FederatedData(DataSpec(shape, CLASSES), samples(shape, labels), test, splits)


@lru_cache(maxsize=1)  # the largest have 150 MB
def subject(name, *, whole=False):
    config, shape, size = facts_of(name)
    with seeded(0, "network"):
        net = make(config if whole or size < LARGE else narrow(config))(shape, CLASSES)
    data = federated(shape)
    facts = Facts(
        seed=0, rounds=2, fraction=1.0, n_clients=len(LABELS), n_classes=CLASSES, feature_dim=net.feature_dim,
        layout=layout_of(net), counts=data.counts, initial=snapshot(tensors(net)), public=CLASSES,
    )  # fmt: skip
    return Subject(net, data, facts)


NAMES = choices_of("model")
LARGE_ONES = [name for name in NAMES if facts_of(name)[2] >= LARGE]
SAMPLED = 3  # networks that each algorithm meets without --slow, other ones from algorithm to algorithm
STEP = max(len(NAMES) // SAMPLED, 1)


# ---------------------------------------------------------------- rounds
@pytest.mark.parametrize(("name", "algo"), sampled(NAMES, choices_of("algo"), step=STEP))
def test_a_network_goes_through_two_rounds(name, algo):
    """Or the method refuses it, with a sentence that names the component."""
    worker = worker_or_refusal(name, algo)
    if isinstance(worker, str):
        assert re.match(r"(algo\.|component )\S+ .{20}", worker)
        return
    state, results = a_round(worker, [1] if name in LARGE_ONES else [0, 1])
    # what the first leaves behind (a teacher, prototypes, peers, control variates) acts in the second
    again = worker.work(Job(1, 1, worker.algorithm.downlink(state, 1), results[1].private))
    check_upload(worker.algorithm, again)


def worker_or_refusal(name: str, algo: str) -> Worker | str:
    try:
        return subject(name).worker(algo)
    except (ConfigError, PlanError) as refusal:
        return str(refusal)


@pytest.mark.parametrize("algo", choices_of("algo"))
def test_an_algorithm_takes_the_network_of_the_default_run(algo):
    """Else one that refuses every network would pass."""
    subject(composed([])["choices"]["model"]).worker(algo)


@pytest.mark.parametrize("name", LARGE_ONES)
def test_a_large_network_goes_through_a_round_as_it_is(name):
    a_round(subject(name, whole=True).worker("map"), [2])


def a_round(worker: Worker, cohort: list[int]) -> tuple[ServerState, dict[int, ClientResult]]:
    """The first round of a run, checked."""
    algorithm = worker.algorithm
    state = algorithm.fresh_state()
    results = {c: worker.work(Job(0, c, algorithm.downlink(state, c), {})) for c in cohort}
    for result in results.values():
        check_upload(algorithm, result)
    weights = cohort_weights(algorithm, "samples", cohort)
    fold = folded(algorithm, weights, {c: r.uplink for c, r in results.items()})
    after = advance(algorithm, state, weights, fold, ServerNetwork(worker.net), public=worker.data.test).state
    check_alike(after.model, state.model)
    if algorithm.global_view:
        assert sum(s.n for s in worker.test_server(after.message, (0, CLASSES))) == CLASSES
    return after, results


def check_upload(algorithm: Algorithm, result: ClientResult) -> None:
    """What is sent is as declared and finite; each part of the network that was trained and is sent has moved."""
    assert result.before.n == result.after.n == 1
    forecast_up = forecast(algorithm)[1]
    assert set(result.uplink) <= set(forecast_up)
    for name, tree in result.uplink.items():
        assert is_finite(tree)
        assert nbytes(tree) == forecast_up[name]
    sent = {n: v for tree in result.uplink.values() for n, v in tree.items() if n in algorithm.travelling}
    for part in ("features", "classifier"):
        mine = [n for n in sent if n in trained(algorithm) & algorithm.facts.layout.parts[part]]
        moved = [n for n in mine if not torch.equal(sent[n], algorithm.facts.initial[n])]
        assert moved or not mine, f"the {part} did not learn"


def trained(algorithm: Algorithm) -> frozenset[str]:
    """The parameters that the phases up to the upload train."""
    path = deque[str]()
    for phase in algorithm.phases:
        if phase.start != "previous":
            path.clear()
        path.append(phase.train)
        if phase.uploads:
            break
    return frozenset().union(*(algorithm.facts.layout.trainable(part) for part in path))


def check_alike(model: Tree, initial: Tree) -> None:
    """The server's model is whole and finite, and counters stay whole numbers."""
    assert {n: (v.shape, v.dtype) for n, v in model.items()} == {n: (v.shape, v.dtype) for n, v in initial.items()}
    assert is_finite(model)


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_the_mean_and_counters_those_of_one_client(name):
    """With the empty algorithm: what components make of statistics is theirs to test."""
    worker = subject(name).worker("fedavg")
    algorithm = worker.algorithm
    state, results = a_round(worker, [0, 1])
    weights = cohort_weights(algorithm, "samples", [0, 1])
    for statistic in algorithm.facts.layout.statistics:
        sent = [results[c].uplink["model"][statistic] for c in (0, 1)]
        if statistic.endswith("num_batches_tracked"):
            assert [int(v) for v in (*sent, state.model[statistic])] == [1, 1, 1]
            continue
        torch.testing.assert_close(state.model[statistic], weights[0] * sent[0] + weights[1] * sent[1])
        assert not torch.equal(state.model[statistic], algorithm.facts.initial[statistic])


# ---------------------------------------------------------------- chance, loops
@pytest.mark.parametrize("name", NAMES)
def test_forward_and_dropout_repeat_bit_for_bit(name):
    worker = subject(name).worker("fedavg")
    job = Job(0, 2, worker.algorithm.downlink(worker.algorithm.fresh_state(), 2), {})
    assert digest(worker.work(job).uplink) == digest(worker.work(job).uplink)


@pytest.mark.parametrize("name", ["resnet20", "charlstm"])
def test_the_trainer_gives_the_same_bits(name):
    first, second = (
        digest(a_round(subject(name).worker("fedrema_af", loop), [0, 1])[1][1].uplink)
        for loop in (FabricLoop, TrainerLoop)
    )
    assert first == second
