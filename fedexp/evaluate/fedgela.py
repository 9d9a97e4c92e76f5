"""FedGELA's evaluation protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedexp.client.messages import ClientResult
from fedexp.core.algorithm import Algorithm
from fedexp.core.ranges import Epochs
from fedexp.evaluate.metrics import spread
from fedexp.evaluate.protocol import EvaluationProtocol, Federation


@dataclass(frozen=True, kw_only=True)
class FedGelaProtocol(EvaluationProtocol):
    """FedGELA, sect. 5: GA and PA, both of the best round.

    PA is a mean over all clients. Of a method with personal models, or one that adapts them before a test, it takes
    each client's latest score; of a client that has not taken part yet, that of the model it would receive. Of other
    methods it is measured after ``finetune_epochs`` of plain training from the best server model. Methods without a
    server model: GA is the mean over clients of their best personal model's accuracy on the global test set, best by
    the client's own test.
    """

    finetune_epochs: Epochs = 10

    name: ClassVar[str] = "fedgela"
    keeps_best: ClassVar[bool] = True

    def asks_clients(self, algorithm: Algorithm) -> bool:
        """Clients that have not taken part yet are tested after each round."""
        return algorithm.personalizes

    def tests_clients_globally(self, algorithm: Algorithm) -> bool:
        """Only where there is no server model to test."""
        return not algorithm.global_view

    def personal(self, run: Federation, results: Mapping[int, ClientResult]) -> dict[str, Any]:
        """The round's metrics, with the accuracies of all clients if the method has personal models."""
        of_round = super().personal(run, results)
        if not run.algorithm.personalizes:
            return of_round
        latest, owned = run.latest("after"), run.latest("owned")
        new = [client for client in range(run.algorithm.facts.n_clients) if client not in latest]
        newcomers = run.test_clients(new, personal=False)
        scores = {c: r.after for c, r in newcomers.items() if r.after is not None}
        latest |= {c: s.accuracy for c, s in scores.items()}
        owned |= {c: a for c, s in scores.items() if (a := s.owned_accuracy) is not None}
        return {**of_round, **spread([latest[c] for c in sorted(latest)], list(owned.values()))} if latest else {}

    def finetune_epochs_for(self, algorithm: Algorithm) -> float | None:
        """Only methods without personal models."""
        return None if algorithm.personalizes else self.finetune_epochs

    def final_settings(self, clients: int, algorithm: Algorithm | None = None) -> dict[str, float | None]:
        """With the epochs of fine-tuning."""
        epochs = self.finetune_epochs if algorithm is None else self.finetune_epochs_for(algorithm)
        return {**super().final_settings(clients), "finetune_epochs": epochs}

    def conclude(self, run: Federation) -> dict[str, dict[str, Any]]:
        """GA and PA of the paper's tables; absent where clients have no test sets to tell them by."""
        out = super().conclude(run)
        personal = [r["personalization"]["accuracy"] for r in run.records if "personalization" in r]
        if run.algorithm.global_view:
            out["aggregation"] = {"GA": max(r["aggregation"]["accuracy"] for r in run.records)}
        elif best := _best_of_each(run):
            out["aggregation"] = {"GA": float(np.mean(best))}
        if personal:
            epochs = self.finetune_epochs_for(run.algorithm)
            pa = max(personal) if epochs is None else _finetuned(run, epochs)
            out["personalization"] = {**out.get("personalization", {}), **({} if pa is None else {"PA": pa})}
        return out


def _finetuned(run: Federation, epochs: float) -> float | None:
    """Mean accuracy of clients that train the best server model a little; None if all of them fail."""
    found = [r.after.accuracy for r in run.finetune(epochs).values() if r.after is not None]
    return float(np.mean(found)) if found else None


def _best_of_each(run: Federation) -> list[float]:
    """Of each client that was ever tested, the accuracy on the global test set in its best round."""
    best: dict[str, tuple[float, float]] = {}
    for row in (r for r in run.client_rows() if r["after"]):
        pair = (float(row["after"]), float(row["globally"]))
        best[row["client"]] = max(best.get(row["client"], (-1.0, 0.0)), pair, key=lambda p: p[0])
    return [globally for _, globally in best.values()]
