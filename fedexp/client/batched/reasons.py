"""Which phases can be done for many clients at once, and why the others cannot."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fedexp.client.batched.frames import each, stacked
from fedexp.client.batched.optim import misfit
from fedexp.client.fit import continues
from fedexp.client.network import put, tensors
from fedexp.client.optim import OptimizerFactory
from fedexp.core.algorithm import PER_STEP, Algorithm
from fedexp.core.component import Component, Phase
from fedexp.models.split import SplitModel


@dataclass(frozen=True)
class Stackable:
    """How the phases of an algorithm are done by ``loop=batched``.

    Attributes:
        one_by_one: Phases that are fitted to one client after another, with the reason.
        by_size: Phases in which a step is taken together by the clients whose batches have the same size, with the
            reason; in the others batches are filled up to the largest.
    """

    one_by_one: Mapping[str, str]
    by_size: Mapping[str, str]


def stackable(algorithm: Algorithm, net: SplitModel, x: Tensor, optimizer: OptimizerFactory) -> Stackable:
    """Finds out for each phase, with a trial of the network on two samples."""
    refused, mixing = _trial(net, x)
    reasons: dict[str, str] = {}
    linked = [pair for pair in pairwise(algorithm.phases) if continues(*pair)]  # share an optimizer
    going_on = [phase for _, phase in linked]
    for phase in algorithm.all_phases:
        if why := refused or _reason(algorithm, phase, optimizer, goes_on=phase in going_on):
            reasons[phase.name] = why
    for last, phase in (*linked, *(pair[::-1] for pair in linked[::-1])):
        if last.name in reasons:
            reasons.setdefault(phase.name, f"it shares its optimizer with phase {last.name!r}")
    by_size = {p.name: why for p in algorithm.all_phases if (why := mixing or _mixing(algorithm, p))}
    return Stackable(reasons, by_size)


def _acting(algorithm: Algorithm, phase: str) -> dict[str, Component]:
    """The components that act on the steps of a phase."""
    return {key: c for seam in PER_STEP for key, c in algorithm.active(phase, seam)}


def _reason(algorithm: Algorithm, phase: Phase, optimizer: OptimizerFactory, *, goes_on: bool) -> str | None:
    if phase.batches > 1:
        return "a step takes several batches"
    for key, component in _acting(algorithm, phase.name).items():
        if component.unbatched:
            return f"component {key!r} {component.unbatched}"
    return misfit(optimizer.settings(**phase.optim), continues=goes_on)


def _mixing(algorithm: Algorithm, phase: Phase) -> str | None:
    """The component that does not treat samples one by one."""
    mixing = (key for key, c in _acting(algorithm, phase.name).items() if not c.padded)
    return next((f"component {key!r} looks at the batch as a whole" for key in mixing), None)


def _trial(net: SplitModel, x: Tensor) -> tuple[str | None, str | None]:
    """Why a network cannot be stacked, and why its batches cannot be filled up, if so."""
    probe = copy.deepcopy(net).train()
    weights = tensors(probe)
    names = list(weights)
    trees = [{n: t.detach().clone() for n, t in weights.items()} for _ in range(2)]
    pair = x[:2].to(weights[names[0]].device)  # a data set too large for the device stays on the host
    four = torch.cat([pair, pair[:1], pair[:1]])

    def answer(*given: Tensor) -> Tensor:
        put(probe, dict(zip(names, given, strict=True)))
        logits: Tensor = probe(pair)
        return logits

    try:
        with torch.no_grad():
            each(answer)(*(stacked([tree[n] for tree in trees]) for n in names))
            put(probe, trees[0])
            alone = torch.allclose(probe(pair), probe(four)[:2], atol=1e-5)
            return None, None if alone else "the network treats samples differently beside others (batch norm)"
    except RuntimeError as error:
        if "random" in str(error):
            return "the network draws random numbers (dropout)", None
        return f"the network cannot be stacked ({str(error).splitlines()[0]})", None
