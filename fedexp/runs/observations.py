"""Which probes have observed which rounds, as probes.jsonl tells. Free of torch.

Whenever a run begins or goes on with other probes than before, a row ``settings`` says so, with the first round that it
holds for; its values are null for a probe that observes no longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

SETTINGS = "settings"
Rows = Iterable[Mapping[str, Any]]


def changes(rows: Rows, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The probes whose settings are not those of the rows on file, with the new ones; None: not chosen any more."""
    known = {row["probe"]: row["values"] for row in rows if row["name"] == SETTINGS}
    names = {**known, **chosen}
    return {name: chosen.get(name) for name in names if chosen.get(name) != known.get(name)}


def settings_rows(round_: int, changed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows that tell of other settings from a round on."""
    for name, settings in changed.items():
        yield {"round": round_, "client": None, "probe": name, "name": SETTINGS, "values": settings}


def observed(rows: Rows) -> dict[str, Any]:
    """The probes that have observed all rounds, with their settings."""
    told: dict[str, list[tuple[int, Any]]] = {}
    for row in (row for row in rows if row["name"] == SETTINGS):
        told.setdefault(row["probe"], []).append((row["round"], row["values"]))
    return {name: all_[0][1] for name, all_ in told.items() if len(all_) == 1 and all_[0][0] == 1}


def means(rows: Rows) -> dict[str, dict[int, float]]:
    """The numbers of probes by ``probe.name.value`` and round, as means over all rows that have them.

    The numbers of a list are ``probe.name.value.0`` and so on.
    """
    found: dict[str, dict[int, list[float]]] = {}
    for row in (row for row in rows if row["name"] not in (SETTINGS, "arrays")):
        for key, value in _numbers(row["values"]):
            by_round = found.setdefault(f"{row['probe']}.{row['name']}.{key}", {})
            by_round.setdefault(row["round"], []).append(value)
    return {key: {number: fmean(values) for number, values in rounds.items()} for key, rounds in found.items()}


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        for name, number in (
            ((f"{key}.{i}", n) for i, n in enumerate(value)) if isinstance(value, list) else [(key, value)]
        ):
            if isinstance(number, int | float):
                yield name, number


def lacking(asked: Mapping[str, Any], done: Mapping[str, Any]) -> list[str]:
    """Why a finished run does not have what probes that are asked for would have seen, a sentence for each."""
    return [
        f"probe {name} has not observed it"
        if name not in done
        else f"probe {name} has observed it with other settings ({_differences(settings, done[name])})"
        for name, settings in asked.items()
        if settings != done.get(name)
    ]


def _differences(asked: Mapping[str, Any], done: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in done.items() if asked.get(key) != value) or "other keys"
