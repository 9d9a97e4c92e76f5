"""Evaluation protocols: which personal scores count each round, and what is tested when the run ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedexp.client.messages import ClientResult, Job
from fedexp.core.algorithm import Algorithm
from fedexp.core.record import Record
from fedexp.core.seeding import numpy_rng
from fedexp.core.views import Facts
from fedexp.evaluate.tester import Score, personalization

if TYPE_CHECKING:
    from fedexp.engine import Engine


@dataclass(frozen=True, kw_only=True)
class MapProtocol:
    """MAP's protocol: personal models right after local training, of the clients of the round (definitions 1 and 2).

    After the last round every client, or a number of them drawn by the run's seed, is trained and tested once more from
    the final state (``all_clients``); nothing of that is kept.
    """

    window: int = 10  # rounds of the mean ± std
    all_clients: bool | int = True
    keeps_best: bool = False
    asks_clients: ClassVar[bool] = False  # for ``personal_scores``: then the next round waits for them
    finetunes: ClassVar[bool] = False  # after the last round, if the method has no personal models

    def tests_clients_globally(self, algorithm: Algorithm) -> bool:  # noqa: ARG002
        """Whether trained clients are also tested on the global test set."""
        return False

    def personal_scores(self, engine: Engine, results: Mapping[int, ClientResult]) -> dict[int, Score]:  # noqa: ARG002
        """The personal scores of a round."""
        return {c: r.after for c, r in results.items() if r.after is not None}

    def final_clients(self, facts: Facts) -> list[int]:
        """The clients that are trained and tested once more after the last round."""
        number = self.count_final(facts.n_clients)
        if number == facts.n_clients:
            return list(range(number))
        rng = numpy_rng(facts.seed, "final clients")
        drawn: list[int] = rng.choice(facts.n_clients, number, replace=False).tolist()
        return sorted(drawn)

    def count_final(self, clients: int) -> int:
        """How many of all clients they are."""
        return clients * self.all_clients if isinstance(self.all_clients, bool) else min(self.all_clients, clients)

    def passes(self, algorithm: Algorithm) -> int:
        """How often all clients are trained after the last round, beside ``final_clients``."""
        return int(self.finetunes and not algorithm.personal)

    def conclude(self, engine: Engine) -> dict[str, dict[str, Any]]:
        """What is added to the summary's ``aggregation`` and ``personalization`` when the run ends."""
        clients = self.final_clients(engine.algorithm.facts)
        if not clients or not any("personalization" in r for r in engine.records):
            return {}
        detail = {**_all_clients(engine.visit(clients)), "of": engine.algorithm.facts.n_clients}
        tested = {"all_clients": detail["accuracy"]} if "accuracy" in detail else {}
        return {"personalization": {**tested, "all_clients_detail": detail}}


@dataclass(frozen=True, kw_only=True)
class FedGelaProtocol(MapProtocol):
    """FedGELA's protocol: GA and PA, both of the best round.

    Methods without personal models: PA is measured after ``finetune_epochs`` of plain training from the best server
    model. Methods without a server model: GA is the mean over clients of their best personal model's accuracy on the
    global test set, best by the client's own test.
    """

    keeps_best: bool = True
    finetunes: ClassVar[bool] = True

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
        model = {"model": {n: engine.progress.best[n] for n in engine.algorithm.travelling}}
        everyone = range(engine.algorithm.facts.n_clients)
        if engine.plain is None:
            raise RuntimeError("FedGELA's protocol needs an engine that knows workers for plain training")
        engine.executor.use(engine.plain)
        results = engine.after_rounds(
            "fine-tuning of all clients", everyone, model, lambda c: Job(0, c, {}, {}, final=True)
        )
        found = [r.after.accuracy for r in results.values() if r.after is not None]
        return float(np.mean(found)) if found else None


@dataclass(frozen=True, kw_only=True)
class FedRemaProtocol(MapProtocol):
    """FedReMa's protocol: personal models as the server sends them, after aggregation and before the next training."""

    window: int = 5
    all_clients: bool = False
    asks_clients: ClassVar[bool] = True

    def personal_scores(self, engine: Engine, results: Mapping[int, ClientResult]) -> dict[int, Score]:
        """Tests the clients that took part in the round again, with the new state."""
        there = [c for c, r in results.items() if r.error is None]
        return {c: s for c, s in engine.test_clients(there).items() if s is not None}


def _all_clients(results: Mapping[int, ClientResult]) -> dict[str, Any]:
    """The metrics of the clients that could be tested; who was asked, and who failed and why."""
    after = {c: r.after for c, r in results.items() if r.after is not None}
    before = {c: r.before for c, r in results.items() if r.before is not None}
    failed = {str(c): r.error.splitlines()[0] for c, r in results.items() if r.error is not None}
    return {**(personalization(after, before) if after else {}), "asked": list(results), "failed": failed}


def _best_of_each(engine: Engine) -> float:
    best: dict[str, tuple[float, float]] = {}
    for row in (r for r in engine.rundir.rows("clients.csv") if r["after"]):
        pair = (float(row["after"]), float(row["globally"]))
        best[row["client"]] = max(best.get(row["client"], (-1.0, 0.0)), pair, key=lambda p: p[0])
    return float(np.mean([globally for _, globally in best.values()]))


def summarise(records: list[Record], window: int) -> dict[str, dict[str, Any]]:
    """Last, best and mean ± std of the last rounds, for each of the two goals that was measured.

    Of personal models also the mean over the last rounds of the accuracy before training and of the worst decile.
    """
    summary: dict[str, dict[str, Any]] = {}
    for goal in ("aggregation", "personalization"):
        values = [r[goal]["accuracy"] for r in records if goal in r]
        if values:
            late = values[-window:]
            summary[goal] = {
                "last": values[-1], "best": max(values), "mean": float(np.mean(late)), "std": float(np.std(late)),
                "window": len(late),
            }  # fmt: skip
    if personal := [r["personalization"] for r in records if "personalization" in r][-window:]:
        for name in ("before", "worst_decile"):
            values = [p[name] for p in personal if name in p]
            summary["personalization"] |= {name: float(np.mean(values))} if values else {}
    return summary
