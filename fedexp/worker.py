"""The worker: a client's whole round as a function of its job. One per process."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedexp.algorithm import Algorithm, Private, to_device
from fedexp.client import ClientModule, Job, Local, Result
from fedexp.component import Phase
from fedexp.contexts import Frame, LocalRound, View
from fedexp.data.federated import Batches, FederatedData, Info
from fedexp.data.source import Samples
from fedexp.errors import ClientError
from fedexp.evaluate import Score, Tester
from fedexp.loops import Loop
from fedexp.models.split import SplitModel
from fedexp.network import Spares, load, tensors
from fedexp.optim import OptimizerFactory
from fedexp.seeding import derive, seeded
from fedexp.state import Message, ServerState, Tree, pick, snapshot

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Seat:
    """A client at its place: what it received, what it keeps, how components see both."""

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
    ) -> None:
        self.data, self.algorithm, self.loop = data, algorithm, loop
        self.net = net.to(loop.device)
        self._optimizer, self._local = optimizer, local
        self._constants = to_device(algorithm.constants, loop.device)
        self._spares = Spares(self.net)
        self._tester = Tester(self.net, algorithm)

    # ------------------------------------------------------------ what a worker is asked for
    def work(self, job: Job) -> Result:
        """One client's round. A pure function of the job.

        Raises:
            ClientError: Naming round, client and phase, with the cause attached.
        """
        clock = time.perf_counter()
        seat = self._open(job)
        before, testing = self._test(seat, seat.received)
        ends, modules = self._train(job, seat)
        local = self._local_round(job, seat, ends, modules)
        uplink, new = self._finish(local)
        _check_finite(job, modules, uplink)
        seat = self._seat(seat.received, seat.message, {**seat.private, **new}, seat.info)
        after, more = self._test(seat, local.last)
        testing += more
        globally = None
        if job.test_globally:
            globally, more = self._test(seat, local.last, self.data.test)
            testing += more
        terms = {f"{m.phase.name}/{k}": v for m in modules for k, v in m.terms().items()}
        uplink, private = to_device(uplink, CPU), to_device(seat.private, CPU)
        seconds = {"train": time.perf_counter() - clock - testing, "evaluate": testing}
        return Result(job.client, uplink, private, terms, seconds, before, after, globally)

    def test_client(self, job: Job) -> Score | None:
        """Tests a client's personal model as it stands, without training."""
        seat = self._open(job)
        return self._test(seat, seat.received)[0]

    def test_server(self, state: ServerState) -> Score:
        """Tests the server's model on the global test set."""
        views = self.algorithm.views(self._constants, to_device(state.slots, self.loop.device))
        return self._tester.score(state.model, self.data.test, views, None)

    def classify(self, tree: Tree, features: Tensor) -> Tensor:
        """The network's classifier under given weights."""
        prefix = "classifier."
        device = self.loop.device
        own = {n.removeprefix(prefix): v.to(device) for n, v in tree.items() if n.startswith(prefix)}
        with torch.no_grad():
            logits: Tensor = torch.func.functional_call(self.net.classifier, own, (features.to(device),))
        return logits.to(features.device)

    # ------------------------------------------------------------ parts of a round
    def _open(self, job: Job) -> Seat:
        device = self.loop.device
        model, private = self.algorithm.open(job.downlink, job.private)
        message, private = to_device(job.downlink, device), to_device(private, device)
        seat = self._seat(to_device({"": model}, device)[""], message, private, self.data.info(job.client))
        return replace(seat, received=self.algorithm.compose(seat.received, seat.view, "start"))

    def _seat(self, received: Tree, message: Message, private: Private, info: Info) -> Seat:
        views = self.algorithm.views(self._constants, message, private)
        return Seat(received, message, private, info, View(views, info, self.algorithm.facts))

    def _test(self, seat: Seat, weights: Tree, samples: Samples | None = None) -> tuple[Score | None, float]:
        clock = time.perf_counter()
        samples = samples or self.data.own_test(seat.info.client)
        if samples is None:
            return None, 0.0
        weights = self.algorithm.compose(weights, seat.view, "view")
        score = self._tester.score(weights, samples, seat.view.views, seat.info)
        return score, time.perf_counter() - clock

    def _train(self, job: Job, seat: Seat) -> tuple[dict[str, Tree], list[ClientModule]]:
        ends: dict[str, Tree] = {}
        modules: list[ClientModule] = []
        for phase in self.algorithm.phases:
            try:
                modules.append(self._fit(job, phase, seat, modules))
            except Exception as cause:
                where = f"round {job.round + 1}, client {job.client}, phase {phase.name!r}"
                raise ClientError(f"{where}: {type(cause).__name__}: {cause}") from cause
            ends[phase.name] = snapshot(tensors(self.net))
        return ends, modules

    def _fit(self, job: Job, phase: Phase, seat: Seat, done: list[ClientModule]) -> ClientModule:
        facts, views = self.algorithm.facts, seat.view.views
        if phase.start != "previous":
            key, _, slot = phase.start.partition(".")
            load(self.net, seat.received if phase.start == "received" else views[key][slot])
        trained = facts.layout.trainable(phase.train)
        for name, parameter in self.net.named_parameters():
            parameter.requires_grad_(name in trained)
        path = (job.round, job.client, self._stream(phase))
        frame = Frame(views, seat.info, facts, seat.received, tensors(self.net), phase.name, path, self._spares.fresh())
        module = ClientModule(
            self.net, self.algorithm, phase, frame, lambda: self._make_optimizer(phase, done), self._local.clip
        )
        batches = self._batches(phase, path, seat.info)
        with seeded(facts.seed, "fit", phase.name, job.round, job.client):
            self.loop.fit(module, batches)
        if module.taken != len(batches):
            raise RuntimeError(f"{len(batches)} steps were due, but the loop took {module.taken}")
        return module

    def _stream(self, phase: Phase) -> str:
        """The name of the phase whose sequence of batches this one draws from."""
        phases = self.algorithm.phases
        index = phases.index(phase)
        return self._stream(phases[index - 1]) if phase.continues and index else phase.name

    def _batches(self, phase: Phase, path: tuple[int | str, ...], info: Info) -> Batches:
        epochs = self._local.epochs if phase.epochs is None else phase.epochs
        size = self._local.batch_size
        total = max(int(epochs * self.data.steps_per_epoch(info.client, size) + 1e-9), 1)  # 1.15 · 100 is 115
        begin = int(phase.begin * total)
        end = max(int(phase.end * total), begin + 1)
        seed = derive(self.algorithm.facts.seed, "batches", *path)
        return self.data.batches(info.client, size=size, begin=begin, end=end, seed=seed)

    def _make_optimizer(self, phase: Phase, done: list[ClientModule]) -> torch.optim.Optimizer:
        if done and phase.continues and not phase.fresh:
            last = done[-1]
            if (last.phase.train, last.phase.optim) == (phase.train, phase.optim):
                return last.optimizer
        return self._optimizer((p for p in self.net.parameters() if p.requires_grad), **phase.optim)

    def _local_round(self, job: Job, seat: Seat, ends: dict[str, Tree], modules: list[ClientModule]) -> LocalRound:
        settings = {m.phase.name: self._optimizer.settings(**m.phase.optim) for m in modules}
        return LocalRound(
            views=seat.view.views,
            info=seat.info,
            facts=self.algorithm.facts,
            round=job.round,
            received=seat.received,
            ends=ends,
            steps={m.phase.name: m.taken for m in modules},
            lr={n: s.lr for n, s in settings.items()},
            momentum={n: s.momentum for n, s in settings.items()},
            embed=lambda phase: self._tester.embed(ends[phase], self.data.own_train(seat.info.client)),
        )

    def _finish(self, local: LocalRound) -> tuple[Message, Private]:
        algorithm = self.algorithm
        new: Private = {}
        uplink: Message = {}
        if algorithm.travelling:
            weights = pick(local.ends[algorithm.uploading.name], algorithm.travelling)
            shared = pick(weights, algorithm.facts.layout.shared)
            for key, component in algorithm.using("uplink"):
                shared = component.uplink(shared, local.bind(key))
            uplink["model"] = {**weights, **shared}
        for key, component in algorithm.using("finish"):
            out = component.finish(local.bind(key))
            new |= {f"{key}.{n}": t for n, t in out.slots.items()}
            uplink |= {f"{key}.{n}": t for n, t in out.uploads.items()}
        return uplink, new


def _check_finite(job: Job, modules: list[ClientModule], uplink: Message) -> None:
    where = f"round {job.round + 1}, client {job.client}"
    advice = "Lower optim.lr, set local.clip, or look at this client's data."
    for module in modules:
        if bad := [k for k, v in module.terms().items() if not math.isfinite(v)]:
            raise ClientError(f"{where}, phase {module.phase.name!r}: loss term {bad[0]!r} is not finite. {advice}")
    for name, tree in uplink.items():
        if lost := [k for k, v in tree.items() if v.is_floating_point() and not v.isfinite().all()]:
            raise ClientError(f"{where}: upload {name!r} has a value that is not finite in {lost[0]!r}. {advice}")
