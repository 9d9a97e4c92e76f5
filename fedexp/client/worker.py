"""The worker: a client's whole round as a function of its job. One per process."""

from __future__ import annotations

import math
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch

from fedexp.client.loops import Loop
from fedexp.client.module import ClientModule, ClientResult, Job, Local, Meter
from fedexp.client.network import FrozenCopies, fastest_memory_format, load, tensors
from fedexp.client.optim import Optimizer, OptimizerFactory, misfits
from fedexp.core.algorithm import Algorithm, Private, to_device
from fedexp.core.component import Phase
from fedexp.core.seeding import derive, seeded
from fedexp.core.state import Message, Tree, pick, sizes, snapshot
from fedexp.core.views import Frame, LocalRound, View
from fedexp.data.federated import Batches, FederatedData, Info
from fedexp.data.source import Samples
from fedexp.errors import ClientError, ConfigError, PlanError
from fedexp.evaluate.tester import Score, Tester
from fedexp.models.split import SplitModel
from fedexp.server.aggregate import Allocate, Fold, is_finite

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ClientSession:
    """A client at its place: what it received, what it keeps, how components see both."""

    received: Tree
    message: Message
    private: Private
    info: Info
    view: View


@dataclass(frozen=True)
class Faults:
    """What happens when a client fails: an exception, a number that is not finite, or too long a time."""

    policy: Literal["raise", "skip"] = "raise"
    seconds: float | None = None  # for one client's round


RAISE = Faults()


class Worker:
    """All that a client's work needs: network, data, algorithm, loop."""

    def __init__(
        self,
        net: SplitModel,
        data: FederatedData,
        algorithm: Algorithm,
        loop: Loop,
        optimizer: OptimizerFactory,
        local: Local,
        faults: Faults = RAISE,
    ) -> None:
        if faults.seconds is not None and threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "limit works by a signal, which Python delivers to the main thread only, and this is another one. "
                "Use executor=processes, limit=null, or run from the main thread."
            )
        if wrong := [*misfits(algorithm, optimizer)]:
            raise PlanError("\n".join(wrong))
        self.data, self.algorithm, self.loop = data, algorithm, loop
        self._device = loop.device
        self.net = fastest_memory_format(net.to(self._device))
        self.allocate: Allocate = torch.empty_like  # for sums; an executor may know of a better place
        self.meter = Meter()  # an executor may have one that others see
        self._optimizer, self._local, self._faults = optimizer, local, faults
        self._constants = to_device(algorithm.constants, self._device)
        self._spares = FrozenCopies(self.net)
        self._tester = Tester(self.net, algorithm)
        self._modules: dict[str, ClientModule] = {}  # by phase
        self._undisturbed = len(algorithm.phases) == 1 and not algorithm.using("view")

    # ------------------------------------------------------------ what a worker is asked for
    def train(self, jobs: Sequence[Job]) -> tuple[tuple[ClientResult, ...], Fold]:
        """The rounds of some clients, and the sum of their uploads.

        That all uploads are finite is seen by their sum; if they are not, the clients are asked one by one.
        """
        results, fold = self._folded(jobs, self._work)
        return (results, fold) if fold.is_finite else self._folded(jobs, self.work)

    def visit(self, jobs: Sequence[Job]) -> tuple[ClientResult, ...]:
        """What the rounds of some clients would measure, and nothing else of them.

        A client that fails is left out, whatever the policy: no later round depends on it.
        """
        results: list[ClientResult] = []
        for job in jobs:
            try:
                results.append(replace(self._limited(job, self.work), uplink={}, private={}))
            except ClientError as error:
                results.append(ClientResult(job.client, error=str(error)))
        self.meter.reset()
        return tuple(results)

    def test(self, jobs: Sequence[Job], *, personal: bool = True) -> tuple[ClientResult, ...]:
        """Tests some clients' personal models as they stand, or the models they receive, without training."""
        return tuple(
            self._guarded(job, lambda j: ClientResult(j.client, after=self.test_client(j, personal=personal)))
            for job in jobs
        )

    def work(self, job: Job) -> ClientResult:
        """One client's round. A pure function of the job.

        Raises:
            ClientError: Naming round, client and phase, with the cause attached.
        """
        result = self._work(job)
        if lost := [name for name, tree in result.uplink.items() if not is_finite(tree)]:
            raise ClientError(f"{_where(job)}: upload {lost[0]!r} has a value that is not finite. {_ADVICE}")
        return replace(result, uplink={n: snapshot(t) for n, t in result.uplink.items()})

    def test_client(self, job: Job, *, personal: bool = True) -> Score | None:
        """Tests a client's personal model as it stands, or the model it receives, without training."""
        session = self._open(job)
        return self._test(session, session.received, personal=personal)[0]

    def test_server(self, broadcast: Message, span: tuple[int, int]) -> Iterator[Score]:
        """Tests the server's model on a stretch of the global test set, batch by batch."""
        message = self._moved(broadcast, self._device)
        views = self.algorithm.views(self._constants, message)
        weights = self.algorithm.compose(message["model"], View(views, None, self.algorithm.facts), "released")
        samples = Samples(self.data.test.x[slice(*span)], self.data.test.y[slice(*span)])
        return self._tester.scores(weights, samples, views, None)

    # ------------------------------------------------------------ parts of a round
    def _folded(
        self, jobs: Sequence[Job], work: Callable[[Job], ClientResult]
    ) -> tuple[tuple[ClientResult, ...], Fold]:
        fold = Fold.empty(self.algorithm)
        results: list[ClientResult] = []
        for number, job in enumerate(jobs):
            self.meter.reset(number)
            result = self._guarded(job, work)
            if result.error is None:
                fold.feed(job.client, result.uplink, job.weight, self.allocate)
            results.append(replace(result, uplink={}))
        self.meter.reset()
        return tuple(results), fold

    def _guarded(self, job: Job, work: Callable[[Job], ClientResult]) -> ClientResult:
        """A client's work under the policy for faults."""
        try:
            return self._limited(job, work)
        except ClientError as error:
            if self._faults.policy == "raise":
                raise
            return ClientResult(job.client, error=str(error))

    def _limited(self, job: Job, work: Callable[[Job], ClientResult]) -> ClientResult:
        """A client's work: whatever goes wrong in it is the client's error, and so is too long a time."""
        with time_limit(self._faults.seconds, job), attribute_errors(job):
            return work(job)

    def _work(self, job: Job) -> ClientResult:
        """One client's round. The uploads may be the live tensors of the network, which the next client overwrites."""
        clock = time.perf_counter()
        session = self._open(job)
        before, testing = self._test(session, session.received)
        ends, modules = self._train(job, session)
        local = self._local_round(job, session, ends, modules)
        terms = {f"{m.phase.name}/{k}": v for m in modules for k, v in m.turn.terms().items()}
        _check_terms(job, terms)
        uplink, new = self._finish(local)
        _check_slots(job, new)
        if new:
            private = {**session.private, **new}
            session = replace(session, private=private, view=self._view(session.message, private, session.info))
        after, more = self._test(session, local.last)
        testing += more
        globally = None
        if job.test_globally:
            globally, more = self._test(session, local.last, self.data.test)
            testing += more
        uplink, private = self._moved(uplink, CPU), self._moved(session.private, CPU)
        seconds = {"train": time.perf_counter() - clock - testing, "evaluate": testing}
        return ClientResult(
            job.client, uplink, private, terms, seconds, before=before, after=after, globally=globally,
            sent=sizes(uplink),
        )  # fmt: skip

    def _open(self, job: Job) -> ClientSession:
        model, private = self.algorithm.open(job.downlink, job.private)
        message, private = self._moved(job.downlink, self._device), self._moved(private, self._device)
        received = self._moved({"": model}, self._device)[""]
        info = self.data.info(job.client)
        view = self._view(message, private, info)
        return ClientSession(self.algorithm.compose(received, view, "start"), message, private, info, view)

    def _view(self, message: Message, private: Private, info: Info) -> View:
        return View(self.algorithm.views(self._constants, message, private), info, self.algorithm.facts)

    def _moved(self, trees: Message, device: torch.device) -> Message:
        """The same trees on a device. Where all is done on the CPU, they are there."""
        return trees if self._device == CPU else to_device(trees, device)

    def _test(
        self, session: ClientSession, weights: Tree, samples: Samples | None = None, *, personal: bool = True
    ) -> tuple[Score | None, float]:
        clock = time.perf_counter()
        samples = samples or self.data.own_test(session.info.client)
        if samples is None:
            return None, 0.0
        if personal:
            weights = self.algorithm.compose(weights, session.view, "view")
        score = self._tester.score(weights, samples, session.view.views, session.info)
        return score, time.perf_counter() - clock

    def _train(self, job: Job, session: ClientSession) -> tuple[dict[str, Tree], list[ClientModule]]:
        ends: dict[str, Tree] = {}
        modules: list[ClientModule] = []
        for phase in self.algorithm.phases:
            with attribute_errors(job, phase):
                modules.append(self._fit(job, phase, session, modules))
            ends[phase.name] = self._end()
        return ends, modules

    def _end(self) -> Tree:
        """The trained weights; where nothing else is loaded into the network before they are used, not even copied."""
        live = {k: v.detach() for k, v in tensors(self.net).items()}
        return live if self._undisturbed else snapshot(live)

    def _fit(self, job: Job, phase: Phase, session: ClientSession, done: list[ClientModule]) -> ClientModule:
        facts, views = self.algorithm.facts, session.view.views
        if phase.start != "previous":
            key, _, slot = phase.start.partition(".")
            load(self.net, session.received if phase.start == "received" else views[key][slot])
        path = (job.round, job.client, self._stream(phase))
        frame = Frame(
            views, session.info, facts, session.received, tensors(self.net), phase.name, path, self._spares.fresh()
        )
        module = self._module(phase)
        module.begin(frame, lambda: self._make_optimizer(job, phase, done), self.meter)
        batches = self._batches(phase, path, session.info, job.share)
        self.meter.begin(len(batches) * len(self.algorithm.phases))
        with seeded(facts.seed, "fit", phase.name, job.round, job.client):
            self.loop.fit(module, batches)
        if module.turn.taken != len(batches):
            raise RuntimeError(f"{len(batches)} steps were due, but the loop took {module.turn.taken}")
        return module

    def _module(self, phase: Phase) -> ClientModule:
        module = self._modules.get(phase.name)
        if module is None or module.phase is not phase:
            module = self._modules[phase.name] = ClientModule(self.net, self.algorithm, phase, self._local.clip)
        return module

    def _stream(self, phase: Phase) -> str:
        """The name of the phase whose sequence of batches this one draws from."""
        phases = self.algorithm.phases
        index = phases.index(phase)
        return self._stream(phases[index - 1]) if phase.continues and index else phase.name

    def _batches(self, phase: Phase, path: tuple[int | str, ...], info: Info, share: float = 1.0) -> Batches:
        size = self._local.batch_size
        steps = self._local.steps(phase, self.data.steps_per_epoch(info.client, size), share)
        seed = derive(self.algorithm.facts.seed, "batches", *path)
        return self.data.batches(info.client, size=size, begin=steps.start, end=steps.stop, seed=seed)

    def _make_optimizer(self, job: Job, phase: Phase, done: list[ClientModule]) -> Optimizer:
        if done and phase.continues and not phase.fresh:
            last = done[-1]
            if (last.phase.train, last.phase.optim) == (phase.train, phase.optim):
                return last.turn.optimizer
        return self._settings(job, phase)(self._module(phase).turn.trained.values())

    def _settings(self, job: Job, phase: Phase) -> OptimizerFactory:
        """A phase's optimizer, with its learning rate in this round."""
        own = self._optimizer.settings(**phase.optim)
        factor = self._local.lr_factor(job.round, self.algorithm.facts.rounds)
        return own if factor == 1 else own.settings(lr=own.lr * factor)

    def _local_round(
        self, job: Job, session: ClientSession, ends: dict[str, Tree], modules: list[ClientModule]
    ) -> LocalRound:
        settings = {m.phase.name: self._settings(job, m.phase) for m in modules}
        return LocalRound(
            views=session.view.views,
            info=session.info,
            facts=self.algorithm.facts,
            round=job.round,
            received=session.received,
            ends=ends,
            steps={m.phase.name: m.turn.taken for m in modules},
            lr={n: s.lr for n, s in settings.items()},
            momentum={n: s.sgd_momentum for n, s in settings.items()},
            embed=lambda phase: self._tester.embed(ends[phase], self.data.own_train(session.info.client)),
        )

    def _finish(self, local: LocalRound) -> tuple[Message, Private]:
        algorithm = self.algorithm
        new: Private = {}
        uplink: Message = {}
        if algorithm.travelling:
            weights = pick(local.ends[algorithm.uploading.name], algorithm.travelling)
            shared = pick(weights, algorithm.facts.layout.shared)
            for key, component in algorithm.using("uplink"):
                shared = component.uplink(shared, local.for_component(key))
            uplink["model"] = {**weights, **shared}
        for key, component in algorithm.using("finish"):
            out = component.finish(local.for_component(key))
            new |= {f"{key}.{n}": self._apart(t) for n, t in out.slots.items()}
            uplink |= {f"{key}.{n}": t for n, t in out.uploads.items()}
        return uplink, new

    def _apart(self, tree: Tree) -> Tree:
        """A tree that shares no memory with the network."""
        live = {t.data_ptr() for t in tensors(self.net).values()}
        return {k: v.clone() if v.data_ptr() in live else v for k, v in tree.items()}


def _check_terms(job: Job, terms: Mapping[str, float]) -> None:
    if bad := [k for k, v in terms.items() if not math.isfinite(v)]:
        phase, _, term = bad[0].rpartition("/")
        raise ClientError(f"{_where(job)}, phase {phase!r}: loss term {term!r} is not finite. {_ADVICE}")


def _check_slots(job: Job, slots: Private) -> None:
    """What a client keeps would make it fail in every later round."""
    if lost := [name for name, tree in slots.items() if not is_finite(tree)]:
        raise ClientError(f"{_where(job)}: its slot {lost[0]!r} has a value that is not finite. {_ADVICE}")


def _where(job: Job) -> str:
    return f"{'after the last round' if job.final else f'round {job.round + 1}'}, client {job.client}"


_ADVICE = "Lower optim.lr, set local.clip, or look at this client's data."


class attribute_errors:  # noqa: N801 - to be read as a clause; not a generator, which takes longer
    """Any exception of the block becomes a ClientError that says where, and carries the traceback."""

    def __init__(self, job: Job, phase: Phase | None = None) -> None:
        self._job, self._phase = job, phase

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        if isinstance(cause, Exception) and not isinstance(cause, ClientError):
            where = _where(self._job) + (f", phase {self._phase.name!r}" if self._phase else "")
            said = (str(cause).splitlines() or [""])[0]
            traced = "".join(traceback.format_exception(cause))
            raise ClientError(f"{where}: {type(cause).__name__}: {said}", traced) from cause


@contextmanager
def time_limit(seconds: float | None, job: Job) -> Iterator[None]:
    """Raises a ClientError in the block when it takes longer; None is no limit.

    And again every second, in case that one was lost: Python prints what is raised in a destructor, and goes on.
    """
    if seconds is None:
        yield
        return

    def late(*_: object) -> None:
        raise ClientError(f"{_where(job)}: not done after {seconds:g} s (limit)")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # also if the time was up in the lines above
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
