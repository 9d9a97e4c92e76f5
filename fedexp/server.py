"""The server's side of a round: reduce the uploads in cohort order, serve, update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedexp.algorithm import Algorithm
from fedexp.contexts import ServerRound
from fedexp.state import Message, Reduce, ServerState, Tree, add, pick, sub, zeros_like

Weighting = Literal["uniform", "samples"]


class Mean:
    """A sum that is fed one upload after another, in cohort order, and never holds more than one tree."""

    def __init__(self, reduce: Reduce) -> None:
        self._reduce = reduce
        self._total: Tree = {}
        self._fed = 0

    def feed(self, tree: Tree, weight: float) -> None:
        """Adds one upload. Integer tensors are those of the first."""
        factor = weight if self._reduce == "weighted" else 1.0
        if not self._total:
            self._total = {k: v * factor if v.is_floating_point() else v.clone() for k, v in tree.items()}
        else:
            for k, v in tree.items():
                if v.is_floating_point():
                    self._total[k].add_(v, alpha=factor)
        self._fed += 1

    def result(self) -> Tree:
        """The reduced tree; empty if nothing was sent."""
        if self._reduce != "uniform" or not self._fed:
            return self._total
        return {k: v * (1 / self._fed) if v.is_floating_point() else v for k, v in self._total.items()}


def cohort_weights(algorithm: Algorithm, weighting: Weighting, cohort: Sequence[int]) -> dict[int, float]:
    """The clients' weights in the mean, summing to one."""
    counts = algorithm.facts.counts[list(cohort)]
    given = [w for _, c in algorithm.using("weigh") if (w := c.weigh(counts)) is not None]
    if not given:
        given = [counts.sum(1) if weighting == "samples" else torch.ones(len(cohort))]
    normal = given[0].double() / given[0].double().sum()
    return dict(zip(cohort, normal.tolist(), strict=True))


def advance(
    algorithm: Algorithm,
    state: ServerState,
    weights: Mapping[int, float],
    uplinks: Iterable[tuple[int, Message]],
    classify: Callable[[Tree, Tensor], Tensor],
) -> ServerState:
    """The server after a round. ``uplinks`` come in cohort order; ``weights`` has that order too."""
    how: dict[str, Reduce] = {"model": "weighted", **{n: u.reduce for n, u in algorithm.uploads.items()}}
    keeps = algorithm.keeps()
    means = {n: Mean(r) for n, r in how.items() if r != "keep"}
    kept: dict[str, dict[int, Tree]] = {n: {} for n in keeps}
    for client, message in uplinks:
        for name, tree in message.items():
            if name in means:
                means[name].feed(tree, weights[client])
            if name in keeps:
                kept[name][client] = tree
    reduced = {n: m.result() for n, m in means.items()}
    mean, layout = reduced.pop("model"), algorithm.facts.layout
    delta = sub(pick(mean, layout.shared), state.model) if mean else zeros_like(pick(state.model, layout.shared))
    slots: dict[str, Tree] = dict(state.slots)
    mailboxes = {n: dict(box) for n, box in state.mailboxes.items()}
    views = {k: _server_slots(k, slots, mailboxes, algorithm.constants) for k in algorithm.components}
    turn = ServerRound(
        views=views, facts=algorithm.facts, round=state.round, model=state.model, delta=delta, cohort=tuple(weights),
        weights=weights, reductions={n: t for n, t in reduced.items() if t}, keeping=kept, classify=classify,
    )  # fmt: skip
    for key, component in algorithm.using("serve"):
        for name, value in component.serve(turn.bind(key)).items():
            _store(f"{key}.{name}", value, slots, mailboxes)
        views[key] = _server_slots(key, slots, mailboxes, algorithm.constants)
    for key, component in algorithm.using("update"):
        delta = component.update(delta, turn.bind(key))
    moved = add(delta, state.model)
    statistics = pick(mean, layout.statistics) if mean else {}
    return ServerState(state.round + 1, {**state.model, **moved, **statistics}, slots, mailboxes)


def _server_slots(
    key: str, slots: Mapping[str, Tree], mailboxes: Mapping[str, dict[int, Tree]], constants: Mapping[str, Tree]
) -> dict[str, Tree]:
    """A component's slots as the server sees them; a mailbox is shown whole, by client id."""
    prefix = key + "."
    everything = {**constants, **slots, **mailboxes}
    return {n.removeprefix(prefix): v for n, v in everything.items() if n.startswith(prefix)}  # type: ignore[misc]


def _store(
    name: str, value: Tree | dict[int, Tree], slots: dict[str, Tree], mailboxes: dict[str, dict[int, Tree]]
) -> None:
    if name in mailboxes:
        mailboxes[name].update(value)  # type: ignore[arg-type]
    elif name in slots:
        slots[name] = value  # type: ignore[assignment]
    else:
        raise KeyError(f"serve() returned {name!r}, which is not declared as a server slot or mailbox")
