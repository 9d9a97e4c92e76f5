"""The worker: a client's whole round as a function of its job. One per process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedexp.client.faults import ADVICE, RAISE, Faults, attribute_errors, check_slots, check_terms, time_limit, where
from fedexp.client.loops import Loop
from fedexp.client.messages import ClientResult, Job, Local
from fedexp.client.module import ClientModule, Meter
from fedexp.client.network import FrozenCopies, fastest_memory_format, load, tensors
from fedexp.client.optim import Optimizer, OptimizerFactory
from fedexp.core.algorithm import Algorithm, Private, to_device
from fedexp.core.component import Phase
from fedexp.core.seeding import derive, seeded
from fedexp.core.state import Message, Tree, pick, sizes, snapshot
from fedexp.core.views import Frame, LocalRound, View
from fedexp.data.federated import Batches, FederatedData, Info
from fedexp.data.source import Samples
from fedexp.errors import ClientError, ConfigError
from fedexp.evaluate.tester import Score, Tester, features
from fedexp.models.split import SplitModel
from fedexp.server.aggregate import Allocate, Fold, is_finite

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ClientSession:
    """A client at its place: what it received, what it keeps, how components see both."""

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

    def test(self, jobs: Sequence[Job]) -> tuple[ClientResult, ...]:
        """Tests some clients' personal models as they stand, without training."""
        return tuple(self._guarded(job, lambda j: ClientResult(j.client, after=self.test_client(j))) for job in jobs)

    def work(self, job: Job) -> ClientResult:
        """One client's round. A pure function of the job.

        Raises:
            ClientError: Naming round, client and phase, with the cause attached.
        """
        result = self._work(job)
        if lost := [name for name, tree in result.uplink.items() if not is_finite(tree)]:
            raise ClientError(f"{where(job)}: upload {lost[0]!r} has a value that is not finite. {ADVICE}")
        return replace(result, uplink={n: snapshot(t) for n, t in result.uplink.items()})

    def test_client(self, job: Job) -> Score | None:
        """Tests a client's personal model as it stands, without training."""
        session = self._open(job)
        return self._test(session, session.received)[0]

    def test_server(self, broadcast: Message, span: tuple[int, int]) -> Iterator[Score]:
        """Tests the server's model on a stretch of the global test set, batch by batch."""
        message = self._moved(broadcast, self._device)
        views = self.algorithm.views(self._constants, message)
        samples = Samples(self.data.test.x[slice(*span)], self.data.test.y[slice(*span)])
        return self._tester.scores(message["model"], samples, views, None)

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
        check_terms(job, terms)
        uplink, new = self._finish(local)
        check_slots(job, new)
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
        return ClientResult(job.client, uplink, private, terms, seconds, before, after, globally, sizes(uplink))

    def _open(self, job: Job) -> ClientSession:
        model, private = self.algorithm.open(job.downlink, job.private)
        message, private = self._moved(job.downlink, self._device), self._moved(private, self._device)
        received = self._moved({"": model}, self._device)[""]
        info = self.data.info(job.client)
        view = self._view(message, private, info)
        return ClientSession(job.round, self.algorithm.compose(received, view, "start"), message, private, info, view)

    def _view(self, message: Message, private: Private, info: Info) -> View:
        return View(self.algorithm.views(self._constants, message, private), info, self.algorithm.facts)

    def _moved(self, trees: Message, device: torch.device) -> Message:
        """The same trees on a device. Where all is done on the CPU, they are there."""
        return trees if self._device == CPU else to_device(trees, device)

    def _test(
        self, session: ClientSession, weights: Tree, samples: Samples | None = None
    ) -> tuple[Score | None, float]:
        clock = time.perf_counter()
        samples = samples or self.data.own_test(session.info.client)
        if samples is None:
            return None, 0.0
        weights = self.algorithm.compose(weights, session.view, "view")
        score = self._tester.score(weights, samples, session.view.views, session.info, session.round)
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
            views=views, info=session.info, facts=facts, round=job.round, received=session.received,
            weights=tensors(self.net), phase=phase.name, rng_path=path, net=self.net, frozen=self._spares.fresh(),
        )  # fmt: skip
        module = self._module(phase)
        module.begin(frame, lambda: self._make_optimizer(phase, done), self.meter)
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

    def _make_optimizer(self, phase: Phase, done: list[ClientModule]) -> Optimizer:
        if done and phase.continues and not phase.fresh:
            last = done[-1]
            if (last.phase.train, last.phase.optim) == (phase.train, phase.optim):
                return last.turn.optimizer
        return self._optimizer(self._module(phase).turn.trained.values(), **phase.optim)

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

        settings = {m.phase.name: self._optimizer.settings(**m.phase.optim) for m in modules}
        return LocalRound(
            views=session.view.views,
            info=session.info,
            facts=self.algorithm.facts,
            round=job.round,
            received=session.received,
            ends=ends,
            steps={m.phase.name: m.turn.taken for m in modules},
            lr={n: s.lr for n, s in settings.items()},
            momentum={n: s.momentum for n, s in settings.items()},
            embed=embed,
            classify=classify,
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
