"""What is written down of a round: the rows of clients.csv, and the record in metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedexp.client.messages import ClientResult
from fedexp.core.algorithm import Algorithm
from fedexp.core.record import Record
from fedexp.evaluate.metrics import aggregation, mean_of_each
from fedexp.evaluate.missing import MEASURES
from fedexp.evaluate.tester import Score
from fedexp.runs.ledger import Ledger
from fedexp.server.exchange import Work

Row = dict[str, Any]
SCORES = ("before", "personal_before", "after", "unadapted", "globally")


def client_columns(algorithm: Algorithm) -> list[str]:
    """The columns of clients.csv, the same for every round of a run."""
    terms = [f"loss/{p.name}/{term}" for p in algorithm.phases for term in algorithm.term_names(p.name)]
    missing = [f"missing/{name}" for name in MEASURES]
    return ["round", "client", "status", "n", "classes", "tested", *SCORES, "owned", *missing, *terms]


def client_row(round_: int, samples: int, classes: int, result: ClientResult) -> Row:
    """A client's row of a round (rounds count from 1)."""
    row: Row = {
        "round": round_,
        "client": result.client,
        "status": "ok" if result.error is None else result.error.splitlines()[0],
        "n": samples,
        "classes": classes,
        **{f"missing/{k}": v for k, v in result.missing.items()},
        **{f"loss/{k}": v for k, v in result.terms.items()},
    }
    row |= {name: score.accuracy for name in SCORES if (score := getattr(result, name)) is not None}
    if result.after is not None:
        row |= {"owned": result.after.owned_accuracy, "tested": result.after.n}
    return row


def round_record(
    work: Work, score: Score | None, personal: Mapping[str, Any], ledger: Ledger, seconds: Mapping[str, float]
) -> Record:
    """The record of an evaluated round; what makes no sense for the method is absent."""
    results = work.results.values()
    record: Record = {"round": work.round + 1}
    if score is not None:
        record["aggregation"] = aggregation(score)
    if personal:
        record["personalization"] = personal
    if missing := mean_of_each(r.missing for r in results):
        record["missing"] = missing
    record["terms"] = mean_of_each(r.terms for r in results)
    if numbers := {**mean_of_each(r.numbers for r in results), **work.numbers}:
        record["numbers"] = numbers
    record["bytes"] = {"up": ledger.up, "down": ledger.down}
    record["seconds"] = {kind: round(value, 3) for kind, value in seconds.items()}
    return record
