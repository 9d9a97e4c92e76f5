"""Small experiments, played in a folder of the test; and single steps, with features that the test chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedexp.build import Experiment, build
from fedexp.client.messages import ClientResult, Job
from fedexp.client.worker import Worker
from fedexp.config.compose import composed
from fedexp.core.algorithm import Algorithm, Components
from fedexp.core.component import Component
from fedexp.core.state import Layout, Message, Out, ServerState, Tree, snapshot, zeros_like
from fedexp.core.views import Facts, Frame, LocalRound, Step
from fedexp.data.federated import Info
from fedexp.display import SilentDisplay
from fedexp.engine import Engine
from fedexp.runs.directory import RunDir
from fedexp.server.aggregate import Fold
from fedexp.server.update import Advanced, advance, cohort_weights
from fedexp.testing import trial_after

TINY = (
    "executor=serial",
    "algo=fedavg", "data=digits", "model=mlpnet", "model.hidden=[16]", "cohort.clients=6", "cohort.fraction=0.5",
    "rounds=2", "local.epochs=1", "local.batch_size=32", "loop=fabric", "evaluate.all_clients=false",
)  # fmt: skip


# ---------------------------------------------------------------- what is run without --slow
def sampled(first: Sequence[Any], second: Sequence[Any], *, step: int) -> list[Any]:
    """All pairs, of which every ``step``-th runs without --slow: for each of ``second`` other ones of ``first``.

    Those with the same of ``first`` follow each other, so that a fixture made of it is made once.
    """
    return [
        pytest.param(one, other, marks=[] if (i + j) % step == 0 else pytest.mark.slow)
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]


# ---------------------------------------------------------------- from overrides
def tiny(*overrides: str) -> Experiment:
    """An experiment of a second or less, from command-line overrides."""
    return build(composed([*TINY, *overrides]))


def played(folder: Path, *overrides: str) -> Engine:
    """The engine after such an experiment's last round."""
    experiment = tiny(*overrides)
    with RunDir(folder) as rundir:
        engine = experiment.engine(rundir, SilentDisplay())
        engine.open()
        engine.run(experiment.card(rundir))
    return engine


# ---------------------------------------------------------------- from components, on the battery's five clients
@contextmanager
def opened(components: Components, **options: Any) -> Iterator[Engine]:
    """A trial of ``fedexp.testing`` before its first round, to be played by hand with ``round_of``."""
    import tempfile

    from fedexp.testing import trial

    with tempfile.TemporaryDirectory(prefix="fedexp-terms-") as folder:
        yield trial(components, Path(folder), **options)


def round_of(engine: Engine) -> ServerState:
    """Plays one round and returns the state after it."""
    engine.play(engine.progress.state.round + 1)
    return engine.progress.state


def worker_of(engine: Engine) -> Worker:
    """The worker behind a trial's executor."""
    worker: Worker = engine.executor._worker  # type: ignore[attr-defined]
    return worker


def jobs_of(engine: Engine, clients: Sequence[int]) -> Iterator[Job]:
    """Complete jobs against the state as it stands."""
    state = engine.progress.state
    return (Job(state.round, c, engine.algorithm.downlink(state, c), engine.progress.store.get(c)) for c in clients)


def work(engine: Engine, client: int) -> ClientResult:
    """One client's round from the state as it stands."""
    (job,) = jobs_of(engine, [client])
    return worker_of(engine).work(job)


def batches_of(engine: Engine, job: Job, phase: str) -> list[tuple[Tensor, Tensor]]:
    """The batches that a client's phase sees in a round."""
    worker = worker_of(engine)
    named = next(p for p in engine.algorithm.phases if p.name == phase)
    path = (job.round, job.client, worker.fitter.stream(named))
    return list(worker.fitter.batches(named, path, worker.data.info(job.client), job.share))


def served(
    components: Components,
    uplinks: Mapping[int, Message],
    *,
    state: ServerState | None = None,
    engine: Engine | None = None,
) -> ServerState:
    """The server after a round with these uploads, in the order given."""
    return advanced(components, uplinks, state=state, engine=engine).state


def advanced(
    components: Components,
    uplinks: Mapping[int, Message],
    *,
    state: ServerState | None = None,
    engine: Engine | None = None,
) -> Advanced:
    """The same with the numbers that were recorded."""
    engine = engine or trial_after(components, rounds=0)
    weights = cohort_weights(engine.algorithm, "samples", list(uplinks))
    return advance(
        engine.algorithm, state or engine.progress.state, weights, folded(engine.algorithm, weights, uplinks),
        engine.network, public=engine.public,
    )  # fmt: skip


def folded(algorithm: Algorithm, weights: Mapping[int, float], uplinks: Mapping[int, Message]) -> Fold:
    """The uploads of a cohort, reduced in the order given."""
    fold = Fold.empty(algorithm)
    for client, message in uplinks.items():
        fold.feed(client, message, weights[client])
    return fold


@dataclass(frozen=True, kw_only=True)
class Recorder(Component):
    """Writes down what a component is shown, for tests to read."""

    rounds: list[LocalRound] = field(default_factory=list, compare=False)
    steps: list[Any] = field(default_factory=list, compare=False)
    during: tuple[str, ...] = ("*",)

    def finish(self, local: LocalRound) -> Out:
        self.rounds.append(replace(local, ends={n: snapshot(t) for n, t in local.ends.items()}))
        return Out()

    def loss(self, step: Step) -> Tensor | None:
        self.steps.append(self._look(step))
        return None

    def _look(self, step: Step) -> Any:
        return step.phase


# ---------------------------------------------------------------- by hand
def facts(n_classes: int = 4, feature_dim: int = 8, *, counts: Any = None, initial: Tree | None = None) -> Facts:
    """Facts of a run without a network."""
    table = torch.ones(3, n_classes) if counts is None else torch.as_tensor(counts, dtype=torch.float32)
    names = tuple(initial or ())
    parts = {"all": frozenset(names), "none": frozenset[str](), "features": frozenset(names),
             "classifier": frozenset[str](), "norm": frozenset[str]()}  # fmt: skip
    return Facts(
        seed=0, rounds=10, fraction=0.5, n_clients=len(table), n_classes=n_classes, feature_dim=feature_dim,
        layout=Layout(names, (), parts, shared=names), counts=table, initial=initial or {},
    )  # fmt: skip


def info(counts: Sequence[float], client: int = 0) -> Info:
    """A client with these class counts."""
    table = torch.as_tensor(counts, dtype=torch.float32)
    return Info(client, int(table.sum()), table)


def step(
    h: Tensor,
    y: Tensor,
    *,
    n_classes: int = 4,
    counts: Sequence[float] | None = None,
    slots: Mapping[str, Mapping[str, Tree]] | None = None,
    phase: str = "local",
    key: str = "mine",
    index: int = 0,
) -> Step:
    """A step with given features; ``slots`` by component and name; without ``counts`` it is the server's."""
    frame = Frame(
        views={key: {}, **(slots or {})}, info=None if counts is None else info(counts),
        facts=facts(n_classes, h.shape[1]), round=0, received={}, weights={}, phase=phase, rng_path=(0, 0, phase),
        net=None, frozen=_nothing_else,
    )  # fmt: skip
    return Step(frame, h, y, h, h, h.new_zeros(()), index).for_component(key)


def _nothing_else(*_: Any) -> Any:
    raise AssertionError("this step has one set of weights")


def local_round(received: Tree, *, client: int = 0, round_: int = 0, key: str = "mine") -> LocalRound:
    """A client's finished round without a network."""
    known = facts(initial=received)
    bare = LocalRound(
        views={key: {}}, info=info([1, 1, 1, 1], client), facts=known, round=round_, received=received,
        ends={"local": zeros_like(received)}, steps={"local": 1}, lr={"local": 0.1}, momentum={"local": 0.0},
        embed=lambda _: iter(()), classify=_nothing_else,
    )  # fmt: skip
    return bare.for_component(key)


def array(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A tensor as numpy doubles."""
    return tensor.detach().cpu().double().numpy()
