"""Numbers, tables and results that tests of this folder make up."""

from __future__ import annotations

from typing import Any

from fedexp.reproduce.entry import Entry, Number
from fedexp.reproduce.results import Result


def number(printed: str = "70.00", spread: float | None = None, **fields: Any) -> Number:
    known = {"entry": "map/table1", "group": "", "setting": "scene", "method": "MAP", "metric": "aggregation"}
    return Number(**(known | fields), printed=printed, spread=spread)


def entry(**fields: Any) -> Entry:
    known = {"id": "map/table1", "kind": "train", "title": "", "scenes": ("scene",)}
    return Entry(**(known | fields))


def result(value: float | None, seed: int = 0, **fields: Any) -> Result:
    known = {
        "entry": "map/table1", "setting": "scene", "method": "MAP", "metric": "aggregation", "tuning": "",
        "status": "done", "reduced": "", "rounds": 150, "rule": "last round", "run": "", "command": "",
        "seconds": None, "partition": "", "versions": "",
    }  # fmt: skip
    return Result(**(known | fields), seed=seed, value=value)


def results(*values: float, **fields: Any) -> list[Result]:
    """One per seed, from 0 on."""
    return [result(value, seed, **fields) for seed, value in enumerate(values)]
