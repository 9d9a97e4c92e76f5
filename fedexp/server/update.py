"""The server's side of a round: weigh the clients, serve, update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedexp.core.algorithm import Algorithm
from fedexp.core.seeding import seeded
from fedexp.core.state import ServerState, Tree, pick, sub
from fedexp.core.views import Network, ServerRound
from fedexp.data.source import Samples
from fedexp.server.aggregate import Fold
from fedexp.server.slots import ServerSlots, settled

Weighting = Literal["uniform", "samples"]


def cohort_weights(algorithm: Algorithm, weighting: Weighting, cohort: Sequence[int]) -> dict[int, float]:
    """The clients' weights in the mean, summing to one."""
    counts = algorithm.facts.counts[list(cohort)]
    given = [w for _, c in algorithm.using("weigh") if (w := c.weigh(counts)) is not None]
    if not given:
        given = [counts.sum(1) if weighting == "samples" else torch.ones(len(cohort))]
    normal = given[0].double() / given[0].double().sum()
    return dict(zip(cohort, normal.tolist(), strict=True))


@dataclass(frozen=True)
class Advanced:
    """The server after a round, and the numbers that its steps recorded."""

    state: ServerState
    numbers: dict[str, Any]  # "component.name"


def advance(
    algorithm: Algorithm,
    state: ServerState,
    weights: Mapping[int, float],
    fold: Fold,
    network: Network,
    share: float = 1.0,
    public: Samples | None = None,
) -> Advanced:
    """The server's side of a round: all components serve, then the chain of updates makes the step of the model.

    Args:
        algorithm: Whose components serve and update.
        state: The server before it; not changed.
        weights: Of the clients that took part, summing to one.
        fold: Their uploads.
        network: The run's network under any weights.
        share: The sum of the weights that the uploads were weighted with; less than one if clients were left out.
        public: The server's own samples, if it has any.
    """
    layout = algorithm.facts.layout
    reduced = {n: m.result(share) for n, m in fold.means.items() if m.fed}
    mean = reduced.pop("model", None) or pick(state.model, algorithm.travelling)
    slots = ServerSlots(algorithm, state)
    turn = ServerRound(
        views=slots.views, facts=algorithm.facts, round=state.round, model=state.model, mean=mean,
        delta=sub(pick(mean, layout.shared), state.model), cohort=tuple(weights), weights=weights, reductions=reduced,
        keeping=fold.kept, network=network, samples=public, store=slots.store,
        heads=[k for k, _ in algorithm.active("eval", "head")],
    )  # fmt: skip
    with seeded(algorithm.facts.seed, "server", state.round):  # for dropout
        _serve(algorithm, turn)
        statistics = _update(algorithm, turn)
    moved = {n: (d + state.model[n]).to(state.model[n].dtype) for n, d in {**turn.delta, **statistics}.items()}
    new = {**state.model, **pick(mean, layout.statistics), **moved}
    return Advanced(ServerState(state.round + 1, new, slots.slots, slots.mailboxes), turn.numbers)


def _serve(algorithm: Algorithm, turn: ServerRound) -> None:
    for key, component in algorithm.using("serve"):
        for slot, value in (component.serve(turn.for_component(key)) or {}).items():
            turn.remember(slot, value)


def _update(algorithm: Algorithm, turn: ServerRound) -> Tree:
    """Chains the updates: ``turn.delta`` becomes the step of the parameters. Returns the steps of statistics, if any.

    The statistics of one component are not shown to the next: server optimizers must leave them alone.
    """
    layout = algorithm.facts.layout
    statistics: Tree = {}
    for key, component in algorithm.using("update"):
        step = component.update(turn.delta, turn.for_component(key))
        own = [n for n in layout.statistics if n in (step or ())]
        step = settled(step, pick(turn.model, (*layout.shared, *own)), f"the step that algo.{key}.update returned")
        turn.delta = pick(step, layout.shared)
        statistics |= pick(step, own)
    return statistics
