"""A phase of many clients at once: one stacked model, the clients' own batches."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedexp.client.asks import Fit, Fitted
from fedexp.client.batched.frames import StackedFrame, SwappedCopies, each, signature, stacked
from fedexp.client.batched.optim import StackedOptimizer, clip_norms
from fedexp.client.fit import Fitter, continued
from fedexp.client.module import ClientModule
from fedexp.client.network import load
from fedexp.client.optim import Optimizer
from fedexp.core.algorithm import PER_STEP
from fedexp.core.component import Phase
from fedexp.core.devices import send
from fedexp.core.state import ReadOnlyTree, Tree, zeros_like
from fedexp.core.views import Batch, Frame, Step
from fedexp.data.federated import Batches


@dataclass(frozen=True)
class Member:
    """A client of a stack."""

    ask: Fit
    frame: Frame
    batches: Batches

    @property
    def signature(self) -> Hashable:
        """What clients of one stack have in common."""
        last = continued(self.ask)
        return signature(self.frame.cache), last is not None and tuple(last.optimizer)


@dataclass(frozen=True)
class Part:
    """The clients of a stack that take a step together, with its samples."""

    clients: Tensor | None  # places in the stack; None: all that still take steps
    x: Tensor
    y: Tensor
    shares: Tensor  # [clients, rows] of each row in a mean over its client's batch; 0 for those that fill it up


class StackFitter:
    """Fits a phase to many clients, on stacks of those whose steps are the same but for their tensors."""

    def __init__(self, fitter: Fitter, by_size: Container[str]) -> None:
        self._fitter, self._by_size = fitter, by_size  # phases whose batches cannot be filled up
        self._spares = SwappedCopies(fitter.net)

    def fit(self, asks: Sequence[Fit]) -> list[Fitted]:
        """Fits the phase that all of them ask for."""
        phase = asks[0].phase
        stacks: dict[object, list[int]] = {}
        acting = any(self._fitter.algorithm.active(phase.name, seam) for seam in PER_STEP)
        members = [self._member(ask, acting=acting) for ask in asks]
        for number, member in enumerate(members):
            stacks.setdefault(member.signature, []).append(number)
        fitted: dict[int, Fitted] = {}
        for numbers in stacks.values():
            longest_first = sorted(numbers, key=lambda n: -len(members[n].batches))
            stack = Stack(self._fitter, phase, [members[n] for n in longest_first], self._spares)
            fitted |= dict(zip(longest_first, stack.fit(padded=phase.name not in self._by_size), strict=True))
        return [fitted[number] for number in range(len(asks))]

    def _member(self, ask: Fit, *, acting: bool) -> Member:
        """A client, with what its components make once for all steps."""
        frame, batches = self._fitter.prepared(ask)
        if not isinstance(batches, Batches):
            raise TypeError(f"phase {ask.phase.name!r} takes several batches a step, and cannot be batched")
        if acting:
            self._make_once(ask, frame, batches)
        return Member(ask, frame, batches)

    def _make_once(self, ask: Fit, frame: Frame, batches: Batches) -> None:
        """Lets the components of a client make their values of ``step.once``: a step of which nothing else is kept."""
        module = self._fitter.module(ask.phase)
        load(self._fitter.net, ask.start)
        module.begin(frame, _no_optimizer, self._fitter.meter)
        module.eval()
        with torch.no_grad():
            module.turn.step, _ = module.objective(next(iter(batches)), 0, (), _not_counted)
            module.correct(zeros_like(module.turn.trained), _no_gradient)


class Stack:
    """Some clients in one phase: those that take most steps first, so that the last ones end first."""

    def __init__(self, fitter: Fitter, phase: Phase, members: Sequence[Member], spares: SwappedCopies) -> None:
        self._fitter, self._phase, self._members = fitter, phase, members
        self._module: ClientModule = fitter.module(phase)
        self._frames = StackedFrame([m.frame for m in members], fitter.net, spares)
        trainable = fitter.algorithm.facts.layout.trainable(phase.train)
        self._weights = {n: stacked([m.ask.start[n] for m in members]) for n in self._frames.frame.weights}
        self._trained = [n for n in self._weights if n in trainable]
        self._whole = {n: t.detach() for n, t in self._weights.items()}  # of all, also of those that have ended
        self._inputs = self._frames.inputs
        self._sums: dict[str, Tensor] = {}
        first = members[0].ask
        last = [continued(m.ask) for m in members]
        begun = [f.optimizer for f in last if f is not None]
        parameters = [self._weights[n].requires_grad_() for n in self._trained]
        self._optimizer = StackedOptimizer(fitter.settings(first.job, phase), parameters, begun)

    def fit(self, *, padded: bool) -> list[Fitted]:
        """Takes all steps; returns what became of each client."""
        steps = [len(m.batches) for m in self._members]
        meter, module = self._fitter.meter, self._module
        module.begin(self._frames.frame, _no_optimizer, meter)
        module.train()
        if not self._phase.test:
            meter.begin(steps[0] * len(self._fitter.algorithm.phases) / len(steps))
        draws = [m.batches.selections() for m in self._members]
        try:
            for index in range(steps[0]):
                live = sum(n > index for n in steps)
                if live < len(draws):
                    draws = draws[:live]
                    self._narrow(live)
                self._step(index, list(self._parts(index, [next(d) for d in draws], padded=padded)))
                if not self._phase.test:
                    meter.step()
        finally:
            self._frames.restore()
        return self._ends(steps)

    def _narrow(self, live: int) -> None:
        self._optimizer.narrow(live)
        self._weights = {n: t if n in self._trained else t[:live] for n, t in self._weights.items()}
        self._inputs = [t[:live] for t in self._inputs]

    # ------------------------------------------------------------ batches
    def _parts(self, index: int, rows: list[Tensor], *, padded: bool) -> Iterator[Part]:
        """The clients' batches of a step, together where they have the same size or may be filled up."""
        sizes = [r.shape[0] for r in rows]
        if padded or len(set(sizes)) == 1:
            yield self._part(index, None, rows, sizes)
            return
        for size in sorted(set(sizes), reverse=True):
            own = [i for i, n in enumerate(sizes) if n == size]
            yield self._part(index, own, [rows[i] for i in own], [size] * len(own))

    def _part(self, index: int, clients: list[int] | None, rows: list[Tensor], sizes: list[int]) -> Part:
        widest = max(sizes)
        if min(sizes) < widest:
            rows = [torch.cat([r, r[:1].expand(widest - n)]) for r, n in zip(rows, sizes, strict=True)]
        x, y = self._samples(index, clients or range(len(rows)), rows)
        lengths = torch.tensor(sizes, device=y.device)[:, None]
        there = torch.arange(widest, device=y.device) < lengths
        return Part(None if clients is None else torch.tensor(clients, device=y.device), x, y, there / lengths)

    def _samples(self, index: int, clients: Sequence[int], rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        batches = self._members[0].batches
        drawn = batches.data.select(torch.cat(rows))
        x, y = (send(t.view(len(rows), -1, *t.shape[1:]), batches.device) for t in (drawn.x, drawn.y))
        if batches.augment is not None:
            x = torch.stack([self._members[c].batches.augmented(x[i], index) for i, c in enumerate(clients)])
        return x, y

    # ------------------------------------------------------------ a step
    def _step(self, index: int, parts: Sequence[Part]) -> None:
        made = [self._gradients(index, part) for part in parts]
        if self._frames.frame.remembered:
            raise RuntimeError("step.remember cannot be batched")
        grads = made[0] if len(made) == 1 else [self._joined(parts, own) for own in zip(*made, strict=True)]
        clip = self._fitter.local.clip
        if clip is not None:
            clip_norms(grads, clip)
        self._optimizer.step(grads)

    def _joined(self, parts: Sequence[Part], grads: Sequence[Tensor | None]) -> Tensor | None:
        there = [(p.clients, g) for p, g in zip(parts, grads, strict=True) if g is not None]
        if not there:
            return None
        whole = there[0][1].new_zeros(sum(len(p.x) for p in parts), *there[0][1].shape[1:])
        for clients, grad in there:
            whole[clients] = grad
        return whole

    def _gradients(self, index: int, part: Part) -> list[Tensor | None]:
        """Gradients of some clients, by trained parameter, with what components add to them."""
        weights, inputs = self._weights, self._inputs
        if part.clients is not None:
            weights = {n: t.detach()[part.clients].requires_grad_(t.requires_grad) for n, t in weights.items()}
            inputs = [t[part.clients] for t in inputs]
        names, module, frames = list(weights), self._module, self._frames
        corrects = bool(self._fitter.algorithm.active(self._phase.name, "grads"))
        said: list[str] = []  # names of loss terms

        def objective(x: Tensor, y: Tensor, shares: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
            frames.fill(dict(zip(names, given, strict=False)), given[len(names) :])
            module.turn.shares = shares
            terms: dict[str, Tensor] = {}
            step, loss = module.objective((x, y), index, (), terms.__setitem__)
            said[:] = terms
            return loss, *terms.values(), *((step.h, step.z, step.ce) if corrects else ())

        losses, *made = each(objective)(part.x, part.y, part.shares, *weights.values(), *inputs)
        terms = {name: value.detach() for name, value in zip(said, made, strict=False)}
        seen = [value.detach() for value in made[len(said) :]]
        self._add(terms, part.clients)
        self._put_back(weights, part.clients)
        found = torch.autograd.grad(losses.sum(), [weights[n] for n in self._trained], allow_unused=True)
        grads: list[Tensor | None] = [None if g is None else g.contiguous() for g in found]
        return self._corrected(index, part, weights, inputs, grads, seen) if corrects else grads

    def _corrected(
        self, index: int, part: Part, weights: Tree, inputs: Sequence[Tensor], grads: Sequence[Tensor | None],
        seen: Sequence[Tensor],
    ) -> list[Tensor | None]:  # fmt: skip
        """The gradients as components edit them."""
        there = {n: g for n, g in zip(self._trained, grads, strict=True) if g is not None}
        names, module, frames = list(weights), self._module, self._frames

        def correct(x: Tensor, y: Tensor, shares: Tensor, h: Tensor, z: Tensor, ce: Tensor, *given: Tensor) -> Tree:
            now, rest = given[: len(there)], given[len(there) :]
            frames.fill(dict(zip(names, rest, strict=False)), rest[len(names) :])
            module.turn.step = Step(frames.frame, x, y, h, z, ce, index, shares=shares)
            return module.correct(dict(zip(there, now, strict=True)), _no_gradient)

        fixed = [t.detach() for t in weights.values()]
        new: Tree = each(correct)(part.x, part.y, part.shares, *seen, *there.values(), *fixed, *inputs)
        return [new[n].contiguous() if n in new else None for n in self._trained]

    def _add(self, terms: Tree, clients: Tensor | None) -> None:
        """Adds loss terms to the sums of the clients."""
        for name, value in terms.items():
            sums = self._sums.setdefault(name, value.new_zeros(len(self._members)))
            if clients is None:
                sums[: len(value)] += value
            else:
                sums[clients] += value

    def _put_back(self, weights: Tree, clients: Tensor | None) -> None:
        """Running statistics of clients that were taken out of the stack."""
        if clients is not None:
            for name in self._fitter.algorithm.facts.layout.buffers:
                self._weights[name][clients] = weights[name]

    def _ends(self, steps: Sequence[int]) -> list[Fitted]:
        rows = {n: t.detach().unbind(0) for n, t in self._whole.items()}
        sums = {n: t.tolist() for n, t in self._sums.items()}
        momenta = self._optimizer.momenta(len(steps))
        return [
            Fitted(
                self._phase, ReadOnlyTree({n: own[i] for n, own in rows.items()}), taken,
                partial(_means, sums, i, taken), {}, momenta[i],
            )
            for i, taken in enumerate(steps)
        ]  # fmt: skip


def _means(sums: Mapping[str, Sequence[float]], client: int, steps: int) -> dict[str, float]:
    """A client's mean loss terms."""
    return {name: own[client] / steps for name, own in sums.items()}


def _no_optimizer() -> Optimizer:
    raise RuntimeError("the parameters of a stack are moved by its own optimizer")


def _no_gradient(_: Tree, __: Batch, ___: Step) -> Tree:
    raise RuntimeError("step.gradient cannot be batched")


def _not_counted(_: str, __: Tensor) -> None:
    """A step of which nothing is kept."""
