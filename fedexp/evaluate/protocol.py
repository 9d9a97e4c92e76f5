"""What an evaluation protocol is, and what it may ask of a run. Each protocol has a file of its own beside this one."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from fedexp.client.messages import ClientResult
from fedexp.core.algorithm import Algorithm
from fedexp.core.ranges import Count
from fedexp.core.record import Record
from fedexp.core.seeding import numpy_rng
from fedexp.core.views import Facts
from fedexp.evaluate.metrics import mean_of_each, personalization


class Federation(Protocol):
    """A run as a protocol sees it. Nothing that is measured through it is kept; ``finetune`` must come last."""

    @property
    def algorithm(self) -> Algorithm:
        """The method, with the facts of the run."""
        ...

    @property
    def records(self) -> Sequence[Record]:
        """The records of all evaluated rounds so far."""
        ...

    def client_rows(self) -> Iterable[Mapping[str, str]]:
        """The rows of clients.csv: what every client measured in every round."""
        ...

    def latest(self, column: str) -> dict[int, float]:
        """The last number that each client has in a column of clients.csv; clients without one are absent."""
        ...

    def test_clients(self, clients: Iterable[int], *, personal: bool = True) -> dict[int, ClientResult]:
        """Tests clients' personal models, or the models they receive; those without a test set are absent.

        They do not train, except in the method's test phases.
        """
        ...

    def train_once_more(self, clients: Sequence[int]) -> dict[int, ClientResult]:
        """What another round of these clients would measure. To be asked for after the last round."""
        ...

    def finetune(self, epochs: float) -> dict[int, ClientResult]:
        """What all clients measure after plain training of the best server model. Asked for last of all."""
        ...


@dataclass(frozen=True, kw_only=True)
class EvaluationProtocol(ABC):
    """Which personal scores count each round, and what is measured when the run ends.

    What is implemented here is MAP's way; a protocol overrides what it does otherwise. After the last round every
    client, or a number of them drawn by the run's seed, is trained and tested once more from the final state
    (``all_clients``); nothing of that is kept. How clients do on classes that they do not own is measured in local
    training, in the same way by every protocol.
    """

    window: Count = 10  # rounds of the mean ± std
    all_clients: bool | Count = True  # who is trained and tested once more: true everyone, 100 so many, false nobody
    missing: bool | Count = 300  # samples of the global test set to measure missing classes on: true all, false none
    missing_clients: Literal[True] | Count = 10  # clients of a round for whom that is done: true all, 10 so many

    name: ClassVar[str]  # as in evaluate=name; a method names the protocol of its paper by it
    keeps_best: ClassVar[bool] = False  # the server's model of the best round is kept

    def asks_clients(self, algorithm: Algorithm) -> bool:  # noqa: ARG002
        """Whether the record of a round needs ``test_clients``: then the next round waits for it."""
        return False

    def tests_clients_globally(self, algorithm: Algorithm) -> bool:  # noqa: ARG002
        """Whether trained clients are also tested on the global test set."""
        return False

    def personal(self, run: Federation, results: Mapping[int, ClientResult]) -> dict[str, Any]:  # noqa: ARG002
        """The metrics of a round's personal models; empty if nobody was tested."""
        return personalization(results.values())

    def measured_clients(self, round_: int, clients: Sequence[int], facts: Facts) -> list[int]:
        """The clients of a round for whom missing classes are measured."""
        number = self.count_measured(len(clients))
        if number == len(clients):
            return list(clients)
        rng = numpy_rng(facts.seed, "missing classes", round_)
        drawn: list[int] = rng.choice(sorted(clients), number, replace=False).tolist()
        return drawn

    def count_measured(self, clients: int) -> int:
        """How many of a round's clients they are."""
        return clients if self.missing_clients is True else min(self.missing_clients, clients)

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

    def finetune_epochs_for(self, algorithm: Algorithm) -> float | None:  # noqa: ARG002
        """The epochs for which all clients fine-tune the server's model after the last round; None if they do not."""
        return None

    def final_settings(self, clients: int, algorithm: Algorithm | None = None) -> dict[str, float | None]:  # noqa: ARG002
        """What is to be measured after the last round. A finished run with other values may need another pass.

        None is for what the algorithm, if it is known, has no need of.
        """
        return {"window": self.window, "all_clients": self.count_final(clients)}

    def conclude(self, run: Federation) -> dict[str, dict[str, Any]]:
        """What is added to the summary's ``aggregation`` and ``personalization`` when the run ends."""
        clients = self.final_clients(run.algorithm.facts)
        if not clients or not any("personalization" in r for r in run.records):
            return {}
        detail = {**_all_clients(run.train_once_more(clients)), "of": run.algorithm.facts.n_clients}
        tested = {"all_clients": detail["accuracy"]} if "accuracy" in detail else {}
        return {"personalization": {**tested, "all_clients_detail": detail}}


def _all_clients(results: Mapping[int, ClientResult]) -> dict[str, Any]:
    """The metrics of the clients that could be tested; who was asked, and who failed and why."""
    failed = {str(c): r.error.splitlines()[0] for c, r in results.items() if r.error is not None}
    missing = mean_of_each(r.missing for r in results.values())
    return {
        **personalization(results.values()), **({"missing": missing} if missing else {}), "asked": list(results),
        "failed": failed,
    }  # fmt: skip
