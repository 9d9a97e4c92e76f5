"""From a run's files to series, tables and summaries: the names that all trackers and dashboards have in common.

Names are those of the record with a slash, ``personalization/worst_decile``. The guide's glossary says what they mean.
Accuracies are shares of one; losses are in nats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedexp.core.record import Record
from fedexp.data.catalog import CATALOG
from fedexp.runs.directory import RunDir
from fedexp.runs.names import CLIENTS

ROUND, BYTES, SECONDS = "round", "bytes/total", "seconds/elapsed"
AXES = {ROUND: "round", BYTES: "bytes sent, up and down", SECONDS: "seconds"}
GOALS = ("aggregation", "personalization")
BY_CLASS = "per_class"  # a list of a record, one number for each class
BEST = {"accuracy": "max", "before": "max", "owned": "max", "worst_decile": "max", "loss": "min"}  # by last word
NOT_SHOWN = ("checksums", "digests", "versions", "final")  # of a result
BINS = 20  # of a histogram
TABLE_ROWS = 1000  # of clients; more are not looked at


def row(record: Record, classes: Sequence[str] = ()) -> dict[str, float]:
    """The numbers of an evaluated round by name; what is absent or null stays absent."""
    found = dict(scalars(record))
    if {"up", "down"} <= set(record.get("bytes", ())):
        found[BYTES] = record["bytes"]["up"] + record["bytes"]["down"]
    for goal in GOALS:
        values = (record.get(goal) or {}).get(BY_CLASS) or ()
        found |= {f"{goal}/class/{_named(c, classes)}": v for c, v in enumerate(values) if v is not None}
    return found


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields the single numbers of a record."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", value


def distributions(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[float]]]:
    """Yields the non-empty lists of numbers of a record, over clients or classes, without their gaps."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from distributions(value, f"{prefix}{key}/")
        elif isinstance(value, list | tuple):
            numbers = [float(x) for x in value if isinstance(x, int | float) and math.isfinite(x)]
            if numbers:
                yield f"{prefix}{key}", numbers


def edges(values: Sequence[float]) -> NDArray[np.float64]:
    """The edges of a histogram's bins. They do not move, so that rounds can be compared: accuracies are in [0, 1]."""
    return np.linspace(min(0.0, *values), max(1.0, *values), BINS + 1)


def summary(result: Mapping[str, Any] | None) -> dict[str, Any]:
    """The result by name, and how the run ended.

    The names begin with ``result/``: a round's ``std`` is over clients, the result's over the last rounds.
    """
    if result is None:
        return {"status": "stopped"}
    told = {key: value for key, value in result.items() if key not in NOT_SHOWN}
    return {"status": result.get("status"), **dict(scalars(told, "result/"))}


def client_table(path: Path) -> tuple[list[str], list[list[float | str | None]]]:
    """Columns and rows of a table of clients, each with the last row that clients.csv has of it."""
    latest: dict[int, Mapping[str, str]] = {}
    for line in RunDir(path).rows(CLIENTS):
        latest[int(line["client"])] = line
    rows = [latest[client] for client in sorted(latest)][:TABLE_ROWS]
    columns = list(rows[0]) if rows else []
    return columns, [[_cell(line[column]) for column in columns] for line in rows]


def class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a data set's classes; empty where they have none but their numbers."""
    name = (config.get("data") or {}).get("dataset") or (config.get("choices") or {}).get("data")
    entry = CATALOG.get(str(name))
    return entry.class_names if entry else ()


def _named(number: int, classes: Sequence[str]) -> str:
    return re.sub(r"[^\w-]+", "_", classes[number]) if number < len(classes) else str(number)


def _cell(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text
