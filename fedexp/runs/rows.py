"""The rows of clients.csv: what every client measured in a round."""

from __future__ import annotations

from typing import Any

from fedexp.client.messages import ClientResult
from fedexp.core.algorithm import Algorithm
from fedexp.evaluate.missing import MEASURES

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
