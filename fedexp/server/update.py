"""The server's side of a round: weigh the clients, serve, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from fedexp.core.algorithm import Algorithm
from fedexp.core.state import ServerState, Tree, add, pick, sub, zeros_like
from fedexp.core.views import ServerRound
from fedexp.server.aggregate import Fold

Weighting = Literal["uniform", "samples"]


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
    fold: Fold,
    classify: Callable[[Tree, Tensor], Tensor],
    share: float = 1.0,
) -> ServerState:
    """The server after a round.

    Args:
        algorithm: Whose components serve and update.
        state: The server before it; not changed.
        weights: Of the clients that took part, summing to one.
        fold: Their uploads.
        classify: The network's classifier under given weights.
        share: The sum of the weights that the uploads were weighted with; less than one if clients were left out.
    """
    reduced = {n: m.result(share) for n, m in fold.means.items()}
    mean, layout = reduced.pop("model"), algorithm.facts.layout
    delta = sub(pick(mean, layout.shared), state.model) if mean else zeros_like(pick(state.model, layout.shared))
    slots: dict[str, Tree] = dict(state.slots)
    mailboxes = {n: dict(box) for n, box in state.mailboxes.items()}
    views = {k: _server_slots(k, slots, mailboxes, algorithm.constants) for k in algorithm.components}
    turn = ServerRound(
        views=views, facts=algorithm.facts, round=state.round, model=state.model, delta=delta, cohort=tuple(weights),
        weights=weights, reductions={n: t for n, t in reduced.items() if t}, keeping=fold.kept, classify=classify,
    )  # fmt: skip
    for key, component in algorithm.using("serve"):
        for name, value in component.serve(turn.for_component(key)).items():
            _store(f"{key}.{name}", value, slots, mailboxes)
        views[key] = _server_slots(key, slots, mailboxes, algorithm.constants)
    for key, component in algorithm.using("update"):
        delta = component.update(delta, turn.for_component(key))
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
