"""The worker: a client's whole round as a function of its job. One per process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fedexp.client.asks import Ask, Asking, ClientRound, Fit, Fitted, Spent, alone
from fedexp.client.batched.fit import StackFitter
from fedexp.client.batched.lockstep import Lockstep
from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.batched.reasons import stackable
from fedexp.client.batched.score import StackTester
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
from fedexp.client.fit import Fitter
from fedexp.client.handback import hand_back
from fedexp.client.loops import Loop
from fedexp.client.messages import ClientResult, Job, Local
from fedexp.client.module import Meter
from fedexp.client.network import FrozenCopies, detached_from
from fedexp.client.optim import OptimizerFactory, misfits
from fedexp.client.scores import ClientScores
from fedexp.client.session import ClientSession
from fedexp.client.trained import client_view, local_round
from fedexp.core.algorithm import Algorithm, Private
from fedexp.core.devices import CPU, to_device, to_host
from fedexp.core.state import Message, ReadOnlyTree, sizes, snapshot
from fedexp.core.views import LocalRound, View
from fedexp.data.federated import FederatedData, Info
from fedexp.data.source import Samples
from fedexp.errors import ClientError, ConfigError, PlanError, ProbeError
from fedexp.evaluate.tester import Score, Tester
from fedexp.models.split import SplitModel
from fedexp.probes.observer import NO_PROBES, ClientObserver, Probes
from fedexp.server.aggregate import Allocate, Fold, is_finite


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
        probes: Probes = NO_PROBES,
    ) -> None:
        if faults.seconds is not None and threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "limit works by a signal, which Python delivers to the main thread only, and this is another one. "
                "Use executor=processes, limit=null, or run from the main thread."
            )
        if wrong := [*misfits(algorithm, optimizer)]:
            raise PlanError("\n".join(wrong))
        self.data, self.algorithm = data, algorithm
        self._device = loop.device
        self.net = loop.prepare(net)
        self.allocate: Allocate = torch.empty_like  # for sums; an executor may know of a better place
        self.meter = Meter()
        self._faults, self._probes = faults, probes
        self._constants = to_device(algorithm.constants, self._device)
        self._spares = FrozenCopies(self.net)
        self._tester = Tester(self.net, algorithm)
        self.fitter = Fitter(self.net, data, algorithm, loop, optimizer, local, self._spares, self.meter)
        self._scores = ClientScores(self._tester, data, algorithm, self.fitter.adapted)
        self._together = self._lockstep(loop)
        likes = {n: u.like(algorithm.init(n)) for n, u in algorithm.uploads.items()}
        self._uploads = to_device(likes, torch.device("meta"))  # names, shapes and types
        hidden = {n: algorithm.facts.initial[n] for m in algorithm.kept_modules for n in algorithm.facts.layout.part(m)}
        (self._hidden,) = to_device({"": hidden}, self._device).values()  # what the server's model has no values for

    # ------------------------------------------------------------ what a worker is asked for
    def train(self, jobs: Sequence[Job]) -> tuple[tuple[ClientResult, ...], Fold]:
        """The rounds of some clients, and the sum of their uploads.

        That all uploads are finite is seen by their sum; if they are not, the clients are asked one by one.
        """
        results, fold = self._folded(jobs, self._round)
        return (results, fold) if fold.is_finite else self._folded(jobs, self._checked_round)

    def visit(self, jobs: Sequence[Job]) -> tuple[ClientResult, ...]:
        """What the rounds of some clients would measure, and nothing else of them.

        A client that fails is left out, whatever the policy: no later round depends on it.
        """
        done = zip(jobs, self._outcomes(jobs, self._checked_round), strict=True)
        return tuple(
            ClientResult(job.client, error=str(made)) if isinstance(made, ClientError)
            else replace(made, uplink={}, private={})
            for job, made in done
        )  # fmt: skip

    def test(self, jobs: Sequence[Job], *, personal: bool = True) -> tuple[ClientResult, ...]:
        """Tests some clients' personal models, or the models they receive, without a round; test phases run before."""
        tested = partial(self._tested, personal=personal)
        return tuple(map(self._accepted, jobs, self._outcomes(jobs, tested)))

    def work(self, job: Job) -> ClientResult:
        """One client's round. A pure function of the job.

        Raises:
            ClientError: Naming round, client and phase, with the cause attached.
        """
        return self._alone(job, self._checked_round)

    def test_client(self, job: Job, *, personal: bool = True) -> ClientResult:
        """Tests one client's personal model, or the model it receives, without a round; test phases run before."""
        return self._alone(job, partial(self._tested, personal=personal))

    def test_server(self, broadcast: Message, span: tuple[int, int]) -> list[Score]:
        """Tests the server's model on a stretch of the global test set, batch by batch."""
        message = self._moved(broadcast)
        views = self.algorithm.views(self._constants, message)
        weights = self.algorithm.compose(message["model"], View(views, None, self.algorithm.facts), "released")
        samples = Samples(self.data.test.x[slice(*span)], self.data.test.y[slice(*span)])
        return self._tester.scores({**self._hidden, **weights}, samples, views, None)

    # ------------------------------------------------------------ rounds of several clients
    def _folded(self, jobs: Sequence[Job], work: ClientRound) -> tuple[tuple[ClientResult, ...], Fold]:
        fold = Fold.empty(self.algorithm)
        results: list[ClientResult] = []
        for job, made in zip(jobs, self._outcomes(jobs, work), strict=True):
            result = self._accepted(job, made)
            if result.error is None:
                fold.feed(job.client, result.uplink, job.weight, self.allocate)
            results.append(replace(result, uplink={}))
        return tuple(results), fold

    def _outcomes(self, jobs: Sequence[Job], work: ClientRound) -> Iterator[ClientResult | ClientError]:
        """What becomes of some clients' work: a result of each, or the error that it ended with."""
        if self._together is not None:
            yield from self._together.run(jobs, work, self._answer)
            self.meter.set_done()
            return
        for number, job in enumerate(jobs):
            self.meter.set_done(number)
            try:
                with time_limit(self._faults.seconds, job), attribute_errors(job):
                    made = self._alone(job, work)
                yield made
            except ClientError as error:
                yield error
        self.meter.set_done()

    def _lockstep(self, loop: Loop) -> Lockstep | None:
        """What answers for many clients at once, if the loop does."""
        if not isinstance(loop, BatchedLoop):
            return None
        can = stackable(self.algorithm, self.net, self.data.train.x, self.fitter.optimizer)
        return Lockstep(
            StackFitter(self.fitter, can.by_size), StackTester(self._tester),
            [p.name for p in self.algorithm.all_phases], can.one_by_one,
        )  # fmt: skip

    def _accepted(self, job: Job, made: ClientResult | ClientError) -> ClientResult:
        """The result of a client's work under the policy for faults."""
        if isinstance(made, ClientResult):
            return made
        if self._faults.policy == "raise" or isinstance(made, ProbeError):
            raise made
        return ClientResult(job.client, error=str(made))

    def _alone(self, job: Job, work: ClientRound) -> ClientResult:
        spent = Spent()
        return alone(work(job, spent), self._answer, spent)

    def _answer(self, ask: Ask) -> Any:
        return self.fitter.fit(ask) if isinstance(ask, Fit) else self._scores.score(ask)

    # ------------------------------------------------------------ parts of a round
    def _checked_round(self, job: Job, spent: Spent) -> Asking[ClientResult]:
        """One client's round, whose uploads are looked at, and stay as they are."""
        result = yield from self._round(job, spent)
        if lost := [name for name, tree in result.uplink.items() if not is_finite(tree)]:
            raise ClientError(f"{where(job)}: upload {lost[0]!r} has a value that is not finite. {ADVICE}")
        return replace(result, uplink={n: snapshot(t) for n, t in result.uplink.items()})

    def _round(self, job: Job, spent: Spent) -> Asking[ClientResult]:
        """One client's round. The uploads may be the live tensors of the network, which the next client overwrites."""
        session = self._open(job)
        if self._probes and not job.final:
            session = replace(session, observer=self._observer(job))
        scores = yield from self._scores.before(session)
        with spent.testing():
            download = self._scores.download(job, session)
        fitted = yield from self.fitter.train(job, session)
        local = self._local_round(job, session, fitted)
        terms = {f"{f.phase.name}/{k}": v for f in fitted for k, v in f.terms().items()}
        check_terms(job, terms)
        stored = self.fitter.loop.precision.stored
        remembered = {n: stored(t) for f in fitted for n, t in f.remembered.items()}
        uplink, new = hand_back(self.algorithm, local, remembered)
        check_declared("private slot", new, session.private)
        check_declared("upload", {n: t for n, t in uplink.items() if n != "model"}, self._uploads)
        check_numbers(job, local.numbers)
        check_slots(job, new)
        if new:
            private = {**session.private, **detached_from(self.net, new)}
            session = replace(session, private=private, view=self._view(session.message, private, session.info))
        if session.observer is not None and all(map(is_finite, uplink.values())):  # else it fails later
            self._observe(session.observer, session, local, uplink, spent.training)
        scores.update((yield from self._scores.after(job, session, local.last, download=download)))
        uplink, private = self._brought_back(uplink, session.private)
        result = ClientResult(
            job.client, uplink, private, terms, local.numbers, spent.seconds, sent=sizes(uplink), **scores
        )
        if session.observer is None:
            return result
        spent.count_probes(session.observer.seconds)
        return replace(result, observed=session.observer.observation())

    def _tested(self, job: Job, _: Spent, *, personal: bool) -> Asking[ClientResult]:
        """A client's personal model, or the model it receives, without a round; test phases run before."""
        session = self._open(job)
        scores = yield from self._scores.after(job, session, session.received, personal=personal)
        return ClientResult(job.client, **scores)

    def _local_round(self, job: Job, session: ClientSession, fitted: Sequence[Fitted]) -> LocalRound:
        optimizers = {f.phase.name: self.fitter.settings(job, f.phase) for f in fitted}
        return local_round(session, fitted, optimizers, self.data, self._spares.fresh())

    def _observer(self, job: Job) -> ClientObserver | None:
        steps = self.data.steps_per_epoch(job.client, self.fitter.local.batch_size)
        return ClientObserver.of(self._probes, self.algorithm.facts, job.round, job.client, steps)

    def _observe(
        self, observer: ClientObserver, session: ClientSession, local: LocalRound, uplink: Message, seconds: float
    ) -> None:
        """Shows the trained client to the probes, whose own time is not the training's."""
        uploaded = local.ends[self.algorithm.uploading.name]
        personal = self.algorithm.compose(local.last, session.view, "view")
        trained, frozen = seconds - observer.seconds, self._spares.fresh()
        view = client_view(session, local, uploaded, personal, trained, self.data, frozen, sum(sizes(uplink).values()))
        observer.finish(view)

    def _open(self, job: Job) -> ClientSession:
        model, private = self.algorithm.open(job.downlink, job.private)
        moved = self._moved({**job.downlink, **private, "": model})
        message, private, received = {n: moved[n] for n in job.downlink}, {n: moved[n] for n in private}, moved[""]
        info = self.data.info(job.client)
        view = self._view(message, private, info)
        start = ReadOnlyTree(self.algorithm.compose(received, view, "start"))
        return ClientSession(job.round, start, message, private, info, view)

    def _view(self, message: Message, private: Private, info: Info) -> View:
        return View(self.algorithm.views(self._constants, message, private), info, self.algorithm.facts)

    def _moved(self, trees: Message) -> Message:
        """The same trees on the worker's device. Where all is done on the CPU, they are there."""
        return trees if self._device == CPU else to_device(trees, self._device)

    def _brought_back(self, uplink: Message, private: Private) -> tuple[Message, Private]:
        """What a client hands back, on the CPU."""
        if self._device == CPU:
            return uplink, private
        back = to_host({**{f"up {n}": t for n, t in uplink.items()}, **private}, self._device)
        return {n: back[f"up {n}"] for n in uplink}, {n: back[n] for n in private}
