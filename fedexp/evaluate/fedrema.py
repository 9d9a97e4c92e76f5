"""FedReMa's evaluation protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedexp.client.messages import ClientResult
from fedexp.core.algorithm import Algorithm
from fedexp.core.ranges import Count
from fedexp.evaluate.metrics import personalization
from fedexp.evaluate.protocol import EvaluationProtocol, Federation


@dataclass(frozen=True, kw_only=True)
class FedRemaProtocol(EvaluationProtocol):
    """FedReMa, sect. 5: personal models as the server sends them, after aggregation and before the next training.

    Accuracies are averaged over clients, and not over samples; in the paper's scenes clients have equally many.
    """

    window: Count = 5
    all_clients: bool | Count = False

    name: ClassVar[str] = "fedrema"

    def asks_clients(self, algorithm: Algorithm) -> bool:  # noqa: ARG002
        """Clients are tested with what the server would send next."""
        return True

    def personal(self, run: Federation, results: Mapping[int, ClientResult]) -> dict[str, Any]:
        """Tests the clients that took part in the round again, with the new state."""
        there = {c: r for c, r in results.items() if r.error is None}
        tested = run.test_clients(there)
        pairs = ((r, tested.get(client, ClientResult(client))) for client, r in there.items())
        return personalization(replace(r, after=now.after, unadapted=now.unadapted) for r, now in pairs)
