"""From the files of a run to rows: nested names become dotted ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fedexp.config.choice_files import set_besides
from fedexp.config.compose import literal
from fedexp.core.record import Record
from fedexp.report.extra import pandas
from fedexp.terminal.numbers import DASH

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
NOT_SETTINGS = ("_target_", "_partial_")
NOT_NUMBERS = ("checksums", "digests", "versions")
GOALS = ("aggregation", "personalization")
DIGITS = 15  # of a number: all that it can have been written with
TEXTS = ("run", "status", "direction", "name")  # columns of csv files that are not numbers


def settings(config: Mapping[str, Any]) -> Row:
    """All settings by their dotted names; a group's own name has the choice, ``algo`` is ``fedavg``."""
    own = {key: value for key, value in config.items() if key != "choices"}
    choices = config.get("choices", {})
    return {**choices, **dict(_leaves(own)), **choices}  # a method without components has no setting but its name


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if key in NOT_SETTINGS:
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", literal(value) if isinstance(value, list | Mapping) else value


def numbers(record: Mapping[str, Any], prefix: str = "") -> Row:
    """The numbers of a record or a result by their dotted names, without lists."""
    row: Row = {}
    for key, value in record.items():
        if isinstance(value, Mapping) and key not in NOT_NUMBERS:
            row |= numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            row[f"{prefix}{key}"] = value
    return row


def thinned(records: Sequence[Record], most: int | None) -> list[Record]:
    """At most so many records, evenly spaced, the first and the last included."""
    if most is None or len(records) <= most:
        return list(records)
    return [records[place * (len(records) - 1) // (most - 1)] for place in range(most)]


def by_class(record: Mapping[str, Any]) -> Iterator[Row]:
    """The accuracy of each class in a round; classes that were not tested are left out."""
    for goal in GOALS:
        for c, accuracy in enumerate((record.get(goal) or {}).get("per_class") or ()):
            if accuracy is not None:
                yield {"round": record["round"], "goal": goal, "class": c, "accuracy": accuracy}


def final_clients(result: Mapping[str, Any]) -> Iterator[Row]:
    """What each client has after the last round, if that was measured."""
    detail = (result.get("personalization") or {}).get("all_clients_detail") or {}
    answered = [client for client in detail.get("asked", ()) if str(client) not in detail.get("failed", {})]
    scores = detail.get("clients", ())
    if len(answered) == len(scores):
        yield from ({"client": c, "accuracy": a} for c, a in zip(answered, scores, strict=True))


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of texts from a csv file with its numbers as numbers; what is empty is NaN."""
    for column in frame.columns:
        if column not in TEXTS:
            frame[column] = pandas().to_numeric(frame[column], errors="coerce")
    return frame


def written(value: Any) -> str:
    """A setting as on the command line; what a run has not is a dash."""
    if value is None or value != value:
        return DASH
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return literal(value) if isinstance(value, bool) else str(value)


def natural(text: str) -> list[tuple[int, float, str]]:
    """A key to sort by, in which 0.9 comes before 10."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", text)
    return [(0, float(part), "") if part[:1].isdigit() else (1, 0.0, part) for part in parts if part]


def label(values: Mapping[str, Any]) -> str:
    """Names what a few settings choose, ``fedrs alpha=0.5``: words stand alone, what a run has not is left out."""
    known = {key: value for key, value in values.items() if written(value) != DASH}
    texts = (written(v) if isinstance(v, str) else f"{key.rpartition('.')[2]}={written(v)}" for key, v in known.items())
    return " ".join(texts) or DASH


def labels(frame: pd.DataFrame, keys: Iterable[str]) -> list[str]:
    """The label of each row."""
    chosen = list(keys)
    return [label(dict(zip(chosen, row, strict=True))) for row in frame[chosen].itertuples(index=False, name=None)]


def brought_by(frame: pd.DataFrame, group: str) -> list[str]:
    """The settings in which rows differ only because the choices of a group set them, each for itself."""
    choices = [written(choice) for choice in frame[group]] if group in frame else []
    brought = {choice: dict(_leaves(set_besides(group, choice))) for choice in set(choices)}

    def is_brought(key: str) -> bool:
        found = list(zip(choices, frame[key].map(written), strict=True))
        own = all(value == written(brought[choice][key]) for choice, value in found if key in brought[choice])
        return own and len({value for choice, value in found if key not in brought[choice]}) <= 1

    return [key for key in frame if any(key in own for own in brought.values()) and is_brought(key)]


def same(value: Any, text: str) -> bool:
    """Whether a setting has the value that is written so; numbers may be written in several ways, and null is none.

    So may lists, with spaces after their commas or without.
    """
    with suppress(TypeError, ValueError):
        if not isinstance(value, bool) and float(value) == float(text):
            return True
    wanted = DASH if text == "null" else text
    return re.sub(r",\s+", ",", written(value)) == re.sub(r",\s+", ",", wanted)
