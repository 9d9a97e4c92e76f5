"""The worker: a client's whole round as a function of its job. One per process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from fedexp.client.faults import (
    ADVICE,
    RAISE,
    Faults,
    attribute_errors,
    check_declared,
    check_numbers,
    check_slots,
    check_terms,
    time_limit,
    where,
)  # fmt: skip
from fedexp.client.handback import hand_back
from fedexp.client.loops import Loop
from fedexp.client.messages import ClientResult, Job, Local, Scores
from fedexp.client.module import ClientModule, Meter
from fedexp.client.network import FrozenCopies, detached_from, fastest_memory_format, load, tensors
from fedexp.client.optim import Optimizer, OptimizerFactory, misfits
from fedexp.core.algorithm import Algorithm, Private, to_device
from fedexp.core.component import Phase
from fedexp.core.seeding import derive, seeded
from fedexp.core.state import Message, ReadOnlyTree, Tree, sizes, snapshot
from fedexp.core.views import Frame, LocalRound, View
from fedexp.data.federated import Batches, FederatedData, Groups, Info
from fedexp.data.source import Samples
from fedexp.errors import ClientError, ConfigError, PlanError
from fedexp.evaluate.tester import Score, Tester, features
from fedexp.models.split import SplitModel
from fedexp.server.aggregate import Allocate, Fold, is_finite

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ClientSession:
    """A client during a job: what it starts from, what it keeps, how components see both."""

    round: int
    received: Tree
    message: Message
    private: Private
    info: Info
    view: View


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
        self._fitting: dict[str, ClientModule] = {}  # by phase
        likes = {n: u.like(algorithm.init(n)) for n, u in algorithm.uploads.items()}
        self._uploads = to_device(likes, torch.device("meta"))  # names, shapes and types
        hidden = {n: algorithm.facts.initial[n] for m in algorithm.kept_modules for n in algorithm.facts.layout.part(m)}
        (self._hidden,) = to_device({"": hidden}, self._device).values()  # what the server's model has no values for
        loads_more = algorithm.using("view") or algorithm.test_phases
        self._undisturbed = len(algorithm.phases) == 1 and not loads_more

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
        self.meter.set_done()
        return tuple(results)

    def test(self, jobs: Sequence[Job], *, personal: bool = True) -> tuple[ClientResult, ...]:
        """Tests some clients' personal models, or the models they receive, without a round; test phases run before."""
        return tuple(self._guarded(job, lambda j: self.test_client(j, personal=personal)) for job in jobs)

    def work(self, job: Job) -> ClientResult:
        """One client's round. A pure function of the job.

        Raises:
            ClientError: Naming round, client and phase, with the cause attached.
        """
        result = self._work(job)
        if lost := [name for name, tree in result.uplink.items() if not is_finite(tree)]:
            raise ClientError(f"{where(job)}: upload {lost[0]!r} has a value that is not finite. {ADVICE}")
        return replace(result, uplink={n: snapshot(t) for n, t in result.uplink.items()})

    def test_client(self, job: Job, *, personal: bool = True) -> ClientResult:
        """Tests a client's personal model, or the model it receives, without a round; test phases run before."""
        session = self._open(job)
        return ClientResult(job.client, **self._scores_after(job, session, session.received, personal=personal))

    def test_server(self, broadcast: Message, span: tuple[int, int]) -> Iterator[Score]:
        """Tests the server's model on a stretch of the global test set, batch by batch."""
        message = self._moved(broadcast, self._device)
        views = self.algorithm.views(self._constants, message)
        weights = self.algorithm.compose(message["model"], View(views, None, self.algorithm.facts), "released")
        samples = Samples(self.data.test.x[slice(*span)], self.data.test.y[slice(*span)])
        return self._tester.scores({**self._hidden, **weights}, samples, views, None)

    # ------------------------------------------------------------ parts of a round
    def _folded(
        self, jobs: Sequence[Job], work: Callable[[Job], ClientResult]
    ) -> tuple[tuple[ClientResult, ...], Fold]:
        fold = Fold.empty(self.algorithm)
        results: list[ClientResult] = []
        for number, job in enumerate(jobs):
            self.meter.set_done(number)
            result = self._guarded(job, work)
            if result.error is None:
                fold.feed(job.client, result.uplink, job.weight, self.allocate)
            results.append(replace(result, uplink={}))
        self.meter.set_done()
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
        scores, testing = timed(self._scores_before, session)
        ends, modules = self._train(job, session)
        local = self._local_round(job, session, ends, modules)
        terms = {f"{m.phase.name}/{k}": v for m in modules for k, v in m.turn.terms().items()}
        check_terms(job, terms)
        remembered = {n: t for m in modules for n, t in m.turn.frame.remembered.items()}
        uplink, new = hand_back(self.algorithm, local, remembered)
        check_declared("private slot", new, session.private)
        check_declared("upload", {n: t for n, t in uplink.items() if n != "model"}, self._uploads)
        check_numbers(job, local.numbers)
        check_slots(job, new)
        if new:
            private = {**session.private, **detached_from(self.net, new)}
            session = replace(session, private=private, view=self._view(session.message, private, session.info))
        later, seconds = timed(self._scores_after, job, session, local.last)
        scores.update(later)
        testing += seconds
        uplink, private = self._moved(uplink, CPU), self._moved(session.private, CPU)
        spent = {"train": time.perf_counter() - clock - testing, "evaluate": testing}
        return ClientResult(job.client, uplink, private, terms, local.numbers, spent, sent=sizes(uplink), **scores)

    def _open(self, job: Job) -> ClientSession:
        model, private = self.algorithm.open(job.downlink, job.private)
        message, private = self._moved(job.downlink, self._device), self._moved(private, self._device)
        received = self._moved({"": model}, self._device)[""]
        info = self.data.info(job.client)
        view = self._view(message, private, info)
        start = ReadOnlyTree(self.algorithm.compose(received, view, "start"))
        return ClientSession(job.round, start, message, private, info, view)

    def _view(self, message: Message, private: Private, info: Info) -> View:
        return View(self.algorithm.views(self._constants, message, private), info, self.algorithm.facts)

    def _moved(self, trees: Message, device: torch.device) -> Message:
        """The same trees on a device. Where all is done on the CPU, they are there."""
        return trees if self._device == CPU else to_device(trees, device)

    def _scores_before(self, session: ClientSession) -> Scores:
        """The downloaded model and, where that is another one, the personal model, on the client's own samples."""
        own = self.data.own_test(session.info.client)
        if own is None:
            return {}
        scores: Scores = {"before": self._score(session, session.received, own)}
        if self.algorithm.using("view"):
            personal = self.algorithm.compose(session.received, session.view, "view")
            scores["personal_before"] = self._score(session, personal, own)
        return scores

    def _scores_after(self, job: Job, session: ClientSession, weights: Tree, *, personal: bool = True) -> Scores:
        """The personal model, or the weights as they are; after the phases for the test, if one is due."""
        own, everyones = self.data.own_test(job.client), self.data.test if job.test_globally else None
        scores: Scores = {}
        if own is None and everyones is None:
            return scores
        if personal:
            weights = self.algorithm.compose(weights, session.view, "view")
        if self.algorithm.test_phases:
            if own is not None:
                scores["unadapted"] = self._score(session, weights, own)
            if not job.due:
                return scores
            weights = self._adapted(job, session, weights)
        if own is not None:
            scores["after"] = self._score(session, weights, own)
        if everyones is not None:
            scores["globally"] = self._score(session, weights, everyones)
        return scores

    def _score(self, session: ClientSession, weights: Tree, samples: Samples) -> Score:
        return self._tester.score(weights, samples, session.view.views, session.info, session.round)

    def _adapted(self, job: Job, session: ClientSession, weights: Tree) -> Tree:
        """A personal model after the phases for the test."""
        load(self.net, weights)
        for phase in self.algorithm.test_phases:
            with attribute_errors(job, phase):
                self._fit(job, phase, session, [])
        return self._end()

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
        return ReadOnlyTree(live if self._undisturbed else snapshot(live))

    def _fit(self, job: Job, phase: Phase, session: ClientSession, done: list[ClientModule]) -> ClientModule:
        facts, views = self.algorithm.facts, session.view.views
        if phase.start != "previous":
            key, _, slot = phase.start.partition(".")
            load(self.net, session.received if phase.start == "received" else views[key][slot])
        path = (job.round, job.client, self._stream(phase))
        frame = Frame(
            views=views, info=session.info, facts=facts, round=job.round, received=session.received,
            weights=ReadOnlyTree(tensors(self.net)), phase=phase.name, rng_path=path, net=self.net,
            frozen=self._spares.fresh(),
        )  # fmt: skip
        module = self._module(phase)
        batches = self._batches(phase, path, session.info, 1.0 if phase.test else job.share)
        meter = Meter() if phase.test else self.meter  # which tells how far the training is
        meter.begin(len(batches) * len(self.algorithm.phases))
        module.begin(frame, lambda: self._make_optimizer(job, phase, done), meter)
        with seeded(facts.seed, "fit", phase.name, job.round, job.client):
            self.loop.fit(module, batches)
        if module.turn.taken != len(batches):
            raise RuntimeError(f"{len(batches)} steps were due, but the loop took {module.turn.taken}")
        return module

    def _module(self, phase: Phase) -> ClientModule:
        module = self._fitting.get(phase.name)
        if module is None or module.phase is not phase:
            module = self._fitting[phase.name] = ClientModule(self.net, self.algorithm, phase, self._local.clip)
        return module

    def _stream(self, phase: Phase) -> str:
        """The name of the phase whose sequence of batches this one draws from."""
        if not phase.continues:
            return phase.name
        phases = self.algorithm.phases
        index = phases.index(phase)
        return self._stream(phases[index - 1]) if index else phase.name

    def _batches(self, phase: Phase, path: tuple[int | str, ...], info: Info, share: float = 1.0) -> Batches | Groups:
        size = self._local.batch_size
        steps = self._local.steps(phase, self.data.steps_per_epoch(info.client, size), share)
        seed = derive(self.algorithm.facts.seed, "batches", *path)
        begin, end = steps.start * phase.batches, steps.stop * phase.batches
        batches = self.data.batches(info.client, size=size, begin=begin, end=end, seed=seed)
        return batches if phase.batches == 1 else Groups(batches, phase.batches)

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
        frozen = self._spares.fresh()

        def embed(tree: Tree) -> Iterator[tuple[Tensor, Tensor]]:
            net = frozen(tree, "features")
            return ((h, y) for _, y, h in features(net, self.data.own_train(job.client)))

        def classify(tree: Tree, h: Tensor) -> Tensor:
            with torch.no_grad():
                logits: Tensor = frozen(tree, "classifier").classifier(h)
                return logits

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
            embed=embed,
            classify=classify,
        )


P = ParamSpec("P")
T = TypeVar("T")


def timed(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """What a function returns, and the seconds that it took."""
    started = time.perf_counter()
    return work(*args, **kwargs), time.perf_counter() - started
