"""Evaluation protocols: which personal scores count each round, and what is tested when the run ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedexp.algorithm import Algorithm
from fedexp.client import Job, Result
from fedexp.evaluate import Score, personalization
from fedexp.execute.base import Blueprint
from fedexp.execute.task import Visit
from fedexp.rundir import Record

if TYPE_CHECKING:
    from fedexp.engine import Engine


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """MAP's protocol: personal models right after local training, of the clients of the round (definitions 1 and 2).

    After the last round every client is trained and tested once more from the final state (``all_clients``); nothing
    of that is kept.
    """

    window: int = 10  # rounds of the mean ± std
    all_clients: bool = True
    keeps_best: bool = False
    asks_clients: ClassVar[bool] = False  # for ``personal_scores``: then the next round waits for them

    def tests_clients_globally(self, algorithm: Algorithm) -> bool:  # noqa: ARG002
        """Whether trained clients are also tested on the global test set."""
        return False

    def personal_scores(self, engine: Engine, results: Mapping[int, Result]) -> dict[int, Score]:  # noqa: ARG002
        """The personal scores of a round."""
        return {c: r.after for c, r in results.items() if r.after is not None}

    def conclude(self, engine: Engine) -> dict[str, dict[str, Any]]:
        """What is added to the summary's ``aggregation`` and ``personalization`` when the run ends."""
        if not self.all_clients or not any("personalization" in r for r in engine.records):
            return {}
        detail = _all_clients(engine.visit(range(engine.algorithm.facts.n_clients)))
        return {"personalization": {"all_clients": detail["accuracy"], "all_clients_detail": detail}} if detail else {}


@dataclass(frozen=True, kw_only=True)
class FedGelaProtocol(Protocol):
    """FedGELA's protocol: GA and PA, both of the best round.

    Methods without personal models: PA is measured after ``finetune_epochs`` of plain training from the best server
    model. Methods without a server model: GA is the mean over clients of their best personal model's accuracy on the
    global test set, best by the client's own test.
    """

    keeps_best: bool = True
    plain: Blueprint  # of workers that do plain local training

    def tests_clients_globally(self, algorithm: Algorithm) -> bool:
        """Only where there is no server model to test."""
        return not algorithm.global_view

    def conclude(self, engine: Engine) -> dict[str, dict[str, Any]]:
        """GA and PA of the paper's tables; absent where clients have no test sets to tell them by."""
        out = super().conclude(engine)
        personal = [r["personalization"]["accuracy"] for r in engine.records if "personalization" in r]
        if engine.algorithm.global_view:
            out["aggregation"] = {"GA": max(r["aggregation"]["accuracy"] for r in engine.records)}
        elif personal:
            out["aggregation"] = {"GA": _best_of_each(engine)}
        if personal:
            pa = max(personal) if engine.algorithm.personal else self._finetuned(engine)
            out["personalization"] = {**out.get("personalization", {}), **({} if pa is None else {"PA": pa})}
        return out

    def _finetuned(self, engine: Engine) -> float | None:
        """Mean accuracy of clients that train the best server model a little; None if all of them fail."""
        model = {"model": {n: engine.saved.best[n] for n in engine.algorithm.travelling}}
        jobs = (Job(0, c, {}, {}) for c in range(engine.algorithm.facts.n_clients))
        engine.executor.use(self.plain)
        results = engine.answers(Visit, jobs, model)
        found = [r.after.accuracy for r in results.values() if r.after is not None]
        return float(np.mean(found)) if found else None


@dataclass(frozen=True, kw_only=True)
class FedRemaProtocol(Protocol):
    """FedReMa's protocol: personal models as the server sends them, after aggregation and before the next training."""

    window: int = 5
    all_clients: bool = False
    asks_clients: ClassVar[bool] = True

    def personal_scores(self, engine: Engine, results: Mapping[int, Result]) -> dict[int, Score]:
        """Tests the clients that took part in the round again, with the new state."""
        there = [c for c, r in results.items() if r.error is None]
        return {c: s for c, s in engine.test_clients(there).items() if s is not None}


def _all_clients(results: Mapping[int, Result]) -> dict[str, Any]:
    """The metrics of all clients that could be tested, and who failed; nothing if all did."""
    after = {c: r.after for c, r in results.items() if r.after is not None}
    before = {c: r.before for c, r in results.items() if r.before is not None}
    failed = [c for c, r in results.items() if r.error is not None]
    return {**personalization(after, before), **({"failed": failed} if failed else {})} if after else {}


def _best_of_each(engine: Engine) -> float:
    best: dict[str, tuple[float, float]] = {}
    for row in (r for r in engine.rundir.rows("clients.csv") if r["after"]):
        pair = (float(row["after"]), float(row["globally"]))
        best[row["client"]] = max(best.get(row["client"], (-1.0, 0.0)), pair, key=lambda p: p[0])
    return float(np.mean([globally for _, globally in best.values()]))


def summarise(records: list[Record], window: int) -> dict[str, dict[str, Any]]:
    """Last, best and mean ± std of the last rounds, for each of the two goals that was measured."""
    summary: dict[str, dict[str, Any]] = {}
    for goal in ("aggregation", "personalization"):
        values = [r[goal]["accuracy"] for r in records if goal in r]
        if values:
            late = values[-window:]
            summary[goal] = {
                "last": values[-1], "best": max(values), "mean": float(np.mean(late)), "std": float(np.std(late)),
                "window": len(late),
            }  # fmt: skip
    return summary
