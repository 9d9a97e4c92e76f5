"""What a job will take: counted where that can be, else timed on a few steps or taken from runs of the same kind."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedexp.build import Experiment, build
from fedexp.client.messages import ClientResult, Job, Local
from fedexp.config.compose import Config
from fedexp.config.identity import relevant, run_path
from fedexp.core.algorithm import Algorithm
from fedexp.data.federated import FederatedData
from fedexp.display import SilentDisplay
from fedexp.engine import Engine
from fedexp.errors import ClientError, DamagedError, FedexpError
from fedexp.execute.task import MeasureServer, Visit
from fedexp.runs.directory import RunDir
from fedexp.runs.sweep_manifest import rounds_done, work
from fedexp.sweep.listing import Amount, Cost
from fedexp.system import scratch

MEASURED_SECONDS = 0.5  # of local steps, enough for a measurement
SLOW_SECONDS = 3.0  # a first step or test that takes longer is not repeated
SERIAL = "fedexp.execute.base.SerialExecutor"


@dataclass(frozen=True)
class Rates:
    """Seconds of a local step, of the tests around a client's training, and of a test of the server's model."""

    step: float
    tests: float
    server: float


@dataclass(frozen=True)
class Effort:
    """What some rounds ask of clients and server."""

    steps: int
    visits: int
    answers: int  # of clients that did not drop out
    server_tests: int

    def seconds(self, rates: Rates) -> float:
        """How long it takes in one process."""
        return self.steps * rates.step + self.visits * rates.tests + self.server_tests * rates.server


class Steps:
    """The local steps of clients' rounds."""

    def __init__(self, data: FederatedData, algorithm: Algorithm, local: Local) -> None:
        self._data, self._phases, self._local = data, algorithm.phases, local
        self._known: dict[tuple[int, float], int] = {}

    def __call__(self, client: int, share: float = 1.0) -> int:
        """The steps of one round of a client that does a share of them."""
        if (client, share) not in self._known:
            per_epoch = self._data.steps_per_epoch(client, self._local.batch_size)
            spans = (self._local.steps(phase, per_epoch, share) for phase in self._phases)
            self._known[client, share] = sum(len(span) for span in spans)
        return self._known[client, share]


def cost(config: Config) -> Cost:
    """Counts what a job takes, and times what cannot be counted. Nothing is written where runs are.

    Raises:
        FedexpError: If the job cannot run, or its result is damaged.
    """
    if not config["force"]:
        RunDir(run_path(config)).result()
    experiment = build(config)
    with scratch.folder() as folder:
        engine = _engine(experiment, folder)
        steps = Steps(experiment.data, experiment.algorithm, Local(**config["local"]))
        content, found = experiment.plan.content, rounds_done(config)
        done = config["rounds"] if found is None else found
        whole, left = (_effort(engine, steps, first) for first in (0, done))
        bytes_ = content["bytes_per_client_and_round"]
        counted = Cost(
            state="done" if found is None else "partial" if found else "missing",
            done=done,
            rounds=config["rounds"],
            clients=content["cohort"]["per_round"],
            parameters=content["parameters"]["total"],
            disk=sum(content["footprint"]["disk"].values()),
            whole=_amount(whole, bytes_),
            left=_amount(left, bytes_),
        )
        if found is None:
            return counted
        tested = any(len(split.test) for split in experiment.splits)
        return _with_seconds(counted, config, engine, steps, [left, _final(engine, steps)] if tested else [left])


def _engine(experiment: Experiment, folder: Path) -> Engine:
    """The job's engine as it is before the first round, in this process, in a folder of its own."""
    threads = experiment.config["executor"]["threads"]
    here = {"executor": {"_target_": SERIAL, "threads": threads}, "tracker": {}}
    engine = replace(experiment, config={**experiment.config, **here}).engine(RunDir(folder), SilentDisplay())
    engine.open()
    return engine


def _effort(engine: Engine, steps: Steps, first: int) -> Effort:
    """What the rounds from ``first`` on take."""
    taken = visits = answers = tests = 0
    for t in range(first, engine.rounds):
        cohort = engine.sampler(t)
        gone = engine.mishaps.dropped(t, cohort)
        there = [client for client in cohort if client not in gone]
        taken += sum(steps(client, engine.mishaps.share(t, client)) for client in there)
        visits += len(cohort)
        answers += len(there)
        tests += engine.is_due(t)
    return Effort(taken, visits, answers, tests if engine.algorithm.global_view else 0)


def _final(engine: Engine, steps: Steps) -> Effort:
    """What the pass over all clients after the last round takes."""
    clients = engine.protocol.final_clients(engine.algorithm.facts)
    return Effort(sum(map(steps, clients)), len(clients), len(clients), 0)


def _amount(effort: Effort, bytes_: dict[str, int]) -> Amount:
    return Amount(effort.steps, effort.answers * bytes_["up"], effort.visits * bytes_["down"])


# ---------------------------------------------------------------- seconds
def _with_seconds(counted: Cost, config: Config, engine: Engine, steps: Steps, efforts: Sequence[Effort]) -> Cost:
    """The cost with the seconds of what is still to be done."""
    kind = kind_of(config)
    pace = paces(run_path(config).parent).get(kind)
    if pace is not None:
        return replace(counted, seconds=pace * work(config, counted.done), basis="runs")
    try:
        if kind not in _timed:
            _timed[kind] = _time(engine, steps)
    except FedexpError as error:
        return replace(counted, note=str(error).partition("\n")[0])
    return replace(counted, seconds=sum(effort.seconds(_timed[kind]) for effort in efforts), basis="timed")


_timed: dict[str, Rates] = {}  # by kind


def kind_of(config: Config) -> str:
    """Jobs of one kind differ only in how often they do the same: rounds, cohorts, seeds."""
    kind = relevant(config)
    for key in ("seed", "rounds", "every", "mishaps", "faults", "limit", "weighting"):
        kind.pop(key, None)
    kind["cohort"] = kind["cohort"]["clients"]
    kind["partition"].pop("seed", None)
    return json.dumps(kind, sort_keys=True)


@cache
def paces(folder: Path) -> dict[str, float]:
    """Seconds per work of the finished runs in a folder, by kind."""
    sums: dict[str, list[float]] = {}
    for file in folder.glob("*/result.json"):
        found = _seconds(RunDir(file.parent))
        if found is not None:
            kind, seconds, done = found
            total = sums.setdefault(kind, [0.0, 0.0])
            total[0] += seconds
            total[1] += done
    return {kind: seconds / done for kind, (seconds, done) in sums.items() if done}


def _seconds(rundir: RunDir) -> tuple[str, float, float] | None:
    """The kind of a finished run, the seconds that its work took, and how much work it was."""
    try:
        config, result = rundir.config(), rundir.result()
        spent: dict[str, Any] = (result or {})["seconds"]
        seconds = sum(value for kind, value in spent.items() if kind not in ("setup", "elapsed"))
        return (kind_of(config), seconds, work(config)) if config else None
    except (DamagedError, KeyError, TypeError, AttributeError):  # of another version, or damaged
        return None


def _time(engine: Engine, steps: Steps) -> Rates:
    """Times a client of middling size: a first step, which is slow, another, then as many as make a measurement."""
    cohort = sorted(engine.sampler(0), key=lambda c: (float(engine.algorithm.facts.counts[c].sum()), c))
    client = cohort[len(cohort) // 2]
    share, result = 0.0, _visit(engine, client, 0.0)
    if result.seconds["train"] < SLOW_SECONDS:
        result = _visit(engine, client, 0.0)
    while share < 1.0 and result.seconds["train"] < MEASURED_SECONDS / 2:
        per_step = result.seconds["train"] / steps(client, share)
        share = min(1.0, max(MEASURED_SECONDS / (per_step * steps(client)), 2 * share))
        result = _visit(engine, client, share)
    step = result.seconds["train"] / steps(client, share)
    return Rates(step, result.seconds["evaluate"], _server_test(engine))


def _visit(engine: Engine, client: int, share: float) -> ClientResult:
    state = engine.progress.state
    globally = engine.protocol.tests_clients_globally(engine.algorithm)
    mail, private = engine.algorithm.mail(state, client), engine.progress.store.get(client)
    job = Job(0, client, mail, private, share=share, test_globally=globally, missing=engine.protocol.missing)
    (answer,) = engine.executor.map([Visit(0, (job,))], engine.algorithm.broadcast(state))
    (result,) = answer.results
    if result.error is not None:
        raise ClientError(result.error)
    return result


def _server_test(engine: Engine) -> float:
    """Seconds of a test of the server's model, by those of one batch."""
    if not engine.algorithm.global_view:
        return 0.0
    samples, batch = engine.test_spans.samples, min(engine.test_spans.batch, engine.test_spans.samples)
    best = math.inf
    for _ in range(3):  # the first is slow
        (answer,) = engine.executor.map([MeasureServer(0, span=(0, batch))], engine.progress.state.message)
        best = min(best, answer.seconds)
        if answer.seconds >= SLOW_SECONDS:
            break
    return best * samples / batch
