"""Tests of many clients' models at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.client.asks import Test
from fedexp.client.batched.frames import StackedFrame, each, signature, stacked
from fedexp.client.network import load, tensors
from fedexp.core.devices import send
from fedexp.core.views import Frame, Step
from fedexp.data.source import Samples
from fedexp.evaluate.tester import Score, Tester, batch_size, pooled, score_of


class StackTester:
    """Runs many clients' models over samples, each over its own or all over the same."""

    def __init__(self, tester: Tester) -> None:
        self._tester = tester
        self._device = next(iter(tensors(tester.net).values())).device
        self._acting = any(tester.algorithm.active("eval", seam) for seam in ("head", "logits"))

    def score(self, asks: Sequence[Test]) -> list[Score]:
        """Tests models; together those that share their samples, and those that have samples of their own."""
        frames = [self._frame(ask) for ask in asks]
        ids = [id(ask.samples) for ask in asks]
        stacks: dict[object, list[int]] = {}
        for number, frame in enumerate(frames):
            shared = ids[number] if ids.count(ids[number]) > 1 else None
            stacks.setdefault((shared, signature(frame.cache)), []).append(number)
        scores: dict[int, Score] = {}
        for numbers in stacks.values():
            made = self._scores([asks[n] for n in numbers], [frames[n] for n in numbers])
            scores |= dict(zip(numbers, made, strict=True))
        return [scores[number] for number in range(len(asks))]

    def _frame(self, ask: Test) -> Frame:
        """A client's frame, with what its components make once for all of its test."""
        session = ask.session
        frame = self._tester.frame(ask.weights, session.view.views, session.info, session.round)
        if self._acting:
            load(self._tester.net, ask.weights)
            self._tester.net.eval()
            with torch.no_grad():
                x, y = (send(t[:1], self._device) for t in (ask.samples.x, ask.samples.y))
                h = self._tester.net.features(x)
                self._tester.answer(Step(frame, x, y, h, h, h))
        return frame

    def _scores(self, asks: Sequence[Test], frames: Sequence[Frame]) -> list[Score]:
        """The scores of a stack, from stretches of its samples that are as large as a test's batches."""
        stack = StackedFrame(frames, self._tester.net)
        self._tester.net.eval()
        names = [n for n in asks[0].weights if any(a.weights[n] is not asks[0].weights[n] for a in asks)]
        own = [stacked([a.weights[n] for a in asks]) for n in names]
        common = {n: t for n, t in asks[0].weights.items() if n not in names}

        def answer(x: Tensor, y: Tensor, *given: Tensor) -> Tensor:
            stack.fill({**common, **dict(zip(names, given, strict=False))}, given[len(names) :])
            h = self._tester.net.features(x)
            return self._tester.answer(Step(stack.frame, x, y, h, h, h))

        x, y, there = _aligned([a.samples for a in asks])
        owned = torch.stack([_owned(frame) for frame in frames])
        size = max(batch_size(x[0, 0].numel()) // len(asks), 1)
        parts: list[list[Score]] = []
        try:
            with torch.no_grad():
                for rows in zip(*(torch.split(t, size, dim=1) for t in (x, y, there)), strict=True):
                    xs, ys, counting = (send(t, self._device) for t in rows)
                    z = each(answer)(xs, ys, *own, *stack.inputs)
                    parts.append(_counted(z, ys, counting, owned))
        finally:
            stack.restore()
        return [pooled(scores) for scores in zip(*parts, strict=True)]


def _owned(frame: Frame) -> Tensor:
    if frame.info is None:
        raise RuntimeError("the server's model is no client's")
    return frame.info.owned


def _aligned(samples: Sequence[Samples]) -> tuple[Tensor, Tensor, Tensor]:
    """Samples and labels of each client, filled up with its first one, and which of them are there: [clients, rows]."""
    first = samples[0]
    if all(s is first for s in samples):
        x, y = (t.expand(len(samples), *t.shape) for t in (first.x, first.y))
        return x, y, torch.ones_like(y, dtype=torch.bool)
    longest = max(map(len, samples))
    rows = [torch.arange(longest, device=s.y.device) for s in samples]
    there = torch.stack([r < len(s) for r, s in zip(rows, samples, strict=True)])
    filled = [s.select(r.where(r < len(s), 0)) for r, s in zip(rows, samples, strict=True)]
    return torch.stack([s.x for s in filled]), torch.stack([s.y for s in filled]), there


def _counted(z: Tensor, y: Tensor, there: Tensor, owned: Tensor) -> list[Score]:
    """The scores of clients from z [clients, rows, classes], labels, which of them count, and who owns what."""
    best = z.argmax(2)
    among = z.masked_fill(~owned[:, None], -torch.inf).argmax(2)
    none = torch.zeros(len(z), z.shape[2], dtype=torch.int64, device=z.device)
    correct, total = (none.scatter_add(1, y, which.long()) for which in (there & (best == y), there))
    losses = F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="none").view_as(y).where(there, 0).sum(1)
    others = ((there & (among == y)).sum(1), (total * owned).sum(1), (there & owned.gather(1, best)).sum(1))
    counts = torch.cat([correct, total, torch.stack(others, dim=1)], dim=1)
    return [score_of(row, loss) for row, loss in zip(counts.tolist(), losses.tolist(), strict=True)]
