"""Phases of a client's round: which batches, which optimizer, and the loop that takes the steps."""

from __future__ import annotations

from fedexp.client.asks import Asking, Fit, Fitted
from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.faults import attribute_errors
from fedexp.client.loops import Loop
from fedexp.client.messages import Job, Local
from fedexp.client.module import ClientModule, Meter
from fedexp.client.network import FrozenCopies, load, tensors
from fedexp.client.optim import Optimizer, OptimizerFactory
from fedexp.client.session import ClientSession
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Phase
from fedexp.core.seeding import derive, seeded
from fedexp.core.state import ReadOnlyTree, Tree, snapshot
from fedexp.core.views import Frame
from fedexp.data.federated import Batches, FederatedData, Groups, Info
from fedexp.models.split import SplitModel


class Fitter:
    """Fits phases to a client's samples, on the worker's network."""

    def __init__(
        self,
        net: SplitModel,
        data: FederatedData,
        algorithm: Algorithm,
        loop: Loop,
        optimizer: OptimizerFactory,
        local: Local,
        spares: FrozenCopies,
        meter: Meter,
    ) -> None:
        self.net, self.data, self.algorithm, self.loop = net, data, algorithm, loop
        self.optimizer, self.local = optimizer, local
        self.spares, self.meter = spares, meter
        self._modules: dict[str, ClientModule] = {}  # by phase
        loads_more = algorithm.using("view") or algorithm.test_phases
        one_by_one = not isinstance(loop, BatchedLoop)  # else the next client is trained before they are used
        self._undisturbed = one_by_one and len(algorithm.phases) == 1 and not loads_more

    def train(self, job: Job, session: ClientSession) -> Asking[list[Fitted]]:
        """Goes through the phases of a round."""
        fitted: list[Fitted] = []
        for phase in self.algorithm.phases:
            with attribute_errors(job, phase):
                last = fitted[-1] if fitted else None
                fitted.append((yield Fit(job, phase, session, self._start(phase, session, last), last)))
        return fitted

    def adapted(self, job: Job, session: ClientSession, weights: Tree) -> Asking[Tree]:
        """A personal model after the phases for the test."""
        for phase in self.algorithm.test_phases:
            with attribute_errors(job, phase):
                fitted: Fitted = yield Fit(job, phase, session, weights)
                weights = fitted.end
        return weights

    def _start(self, phase: Phase, session: ClientSession, last: Fitted | None) -> Tree:
        """The weights that a phase starts from."""
        if phase.start == "received":
            return session.received
        if phase.start == "previous" and last is not None:
            return last.end
        key, _, slot = phase.start.partition(".")
        return session.view.views[key][slot]

    def fit(self, ask: Fit) -> Fitted:
        """Fits one phase to one client, on the worker's network."""
        job, phase, session = ask.job, ask.phase, ask.session
        load(self.net, ask.start)
        frame, batches = self.prepared(ask)
        module = self.module(phase)
        meter = Meter() if phase.test else self.meter  # which tells how far the training is
        meter.begin(len(batches) * len(self.algorithm.phases))
        module.begin(frame, lambda: self._make_optimizer(ask), meter)
        if session.observer is not None and not phase.test:
            module.turn.observe = session.observer.stepping(phase.batches)
        with seeded(self.algorithm.facts.seed, "fit", phase.name, job.round, job.client):
            self.loop.fit(module, batches)
        turn = module.turn
        del module.turn  # what it holds, this fitter with its data set too, goes with the client
        if turn.taken != len(batches):
            raise RuntimeError(f"{len(batches)} steps were due, but the loop took {turn.taken}")
        return Fitted(phase, self._end(), turn.taken, turn.terms, turn.frame.remembered, turn.optimizer)

    def prepared(self, ask: Fit) -> tuple[Frame, Batches | Groups]:
        """A client's phase as components see it, on the worker's network, and its batches."""
        job, phase, session = ask.job, ask.phase, ask.session
        path = (job.round, job.client, self.stream(phase))
        frame = Frame(
            views=session.view.views, info=session.info, facts=self.algorithm.facts, round=job.round,
            received=session.received, weights=ReadOnlyTree(tensors(self.net)), phase=phase.name, rng_path=path,
            net=self.net, frozen=self.spares.fresh(),
        )  # fmt: skip
        return frame, self.batches(phase, path, session.info, 1.0 if phase.test else job.share)

    def _end(self) -> Tree:
        """The trained weights; where nothing else is loaded into the network before they are used, not even copied."""
        live = self.loop.precision.stored({k: v.detach() for k, v in tensors(self.net).items()})
        return ReadOnlyTree(live if self._undisturbed else snapshot(live))

    def module(self, phase: Phase) -> ClientModule:
        """The module that takes the steps of a phase."""
        module = self._modules.get(phase.name)
        if module is None or module.phase is not phase:
            module = ClientModule(self.net, self.algorithm, phase, self.local.clip, self.loop.precision)
            self._modules[phase.name] = module
        return module

    def stream(self, phase: Phase) -> str:
        """The name of the phase whose sequence of batches this one draws from."""
        if not phase.continues:
            return phase.name
        phases = self.algorithm.phases
        index = phases.index(phase)
        return self.stream(phases[index - 1]) if index else phase.name

    def batches(self, phase: Phase, path: tuple[int | str, ...], info: Info, share: float = 1.0) -> Batches | Groups:
        """The batches of a phase, in the order in which it sees them."""
        size = self.local.batch_size
        steps = self.local.steps(phase, self.data.steps_per_epoch(info.client, size), share)
        seed = derive(self.algorithm.facts.seed, "batches", *path)
        begin, end = steps.start * phase.batches, steps.stop * phase.batches
        batches = self.data.batches(info.client, size=size, begin=begin, end=end, seed=seed)
        return batches if phase.batches == 1 else Groups(batches, phase.batches)

    def _make_optimizer(self, ask: Fit) -> Optimizer:
        if (last := continued(ask)) is not None:
            optimizer: Optimizer = last.optimizer
            return optimizer
        return self.settings(ask.job, ask.phase)(self.module(ask.phase).turn.trained.values())

    def settings(self, job: Job, phase: Phase) -> OptimizerFactory:
        """A phase's optimizer, with its learning rate in this round."""
        own = self.optimizer.settings(**phase.optim)
        factor = self.local.lr_factor(job.round, self.algorithm.facts.rounds) if phase.scheduled else 1.0
        return own if factor == 1 else own.settings(lr=own.lr * factor)


def continued(ask: Fit) -> Fitted | None:
    """The phase whose optimizer another one goes on with, if it does."""
    last = ask.after
    return last if last is not None and continues(last.phase, ask.phase) else None


def continues(last: Phase, phase: Phase) -> bool:
    """Whether a phase goes on with the optimizer of the one before it."""
    same = (last.train, last.optim, last.scheduled) == (phase.train, phase.optim, phase.scheduled)
    return phase.continues and not phase.fresh and same
