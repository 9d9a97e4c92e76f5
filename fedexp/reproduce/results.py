"""Our own numbers, one row per cell and run, and the csv files they are kept in."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedexp.errors import DamagedError
from fedexp.reproduce.entry import Entry
from fedexp.system.files import read_text, write_atomically, writing

STATUSES = ("done", "failed", "diverged", "partial")


@dataclass(frozen=True)
class Result:
    """What one run gives for one cell; also one line of the csv files under ``multirun/results/``."""

    entry: str  # map/table1
    setting: str  # the scene
    method: str
    metric: str
    seed: int
    tuning: str  # hyper-parameter setting of ``tune=paper``: its overrides; empty: the method's own values
    value: float | None  # in the paper's unit; None if there is no number
    status: str  # done | failed | diverged | partial
    reduced: str  # empty, or in what the run is less than the paper's: "3 of 150 rounds", "stand-in"
    rounds: int  # rounds done
    rule: str  # the selection rule's name
    run: str  # run id
    command: str
    seconds: float | None  # of the run, without evaluation's final passes
    partition: str  # digest
    versions: str  # "fedexp 0.1.0, torch 2.15.0, …"
    error: str = ""  # first line of what went wrong
    model: str = ""  # digest of the server's model after the last round: equal bits or not

    @property
    def cell(self) -> tuple[str, str, str]:
        """What the value is of; equal to the ``cell`` of a published number."""
        return self.setting, self.method, self.metric

    @property
    def key(self) -> tuple[str, str, str, str, int, str]:
        """What makes it one result: a table has no two with the same."""
        return self.entry, *self.cell, self.seed, self.tuning

    @property
    def closeness(self) -> tuple[int, int]:
        """How close the run is to the paper's: by how little is changed in it, then by its length."""
        return (-1 - self.reduced.count(", "), self.rounds) if self.reduced else (0, 0)


COLUMNS = tuple(field.name for field in fields(Result))
ADDED = ("model",)  # columns that files of earlier versions may lack


def results_file(folder: Path, entry: str) -> Path:
    """Where the results of an entry are kept: ``<folder>/<paper>/<table>.csv``."""
    return folder / f"{entry}.csv"


def known_results(folder: Path, entry: str) -> list[Result]:
    """The results of an entry that are on file; none if there is no file.

    Raises:
        DamagedError: If the file cannot be read, or holds results of another entry.
    """
    path = results_file(folder, entry)
    if not path.exists():
        return []
    results = read_results(path)
    if others := sorted({result.entry for result in results} - {entry}):
        raise _damaged(path, f"it holds results of {', '.join(others)}, where those of {entry} belong")
    return results


def merged(older: Iterable[Result], newer: Iterable[Result]) -> list[Result]:
    """All results, one for each cell, seed and tuning: the newer one, unless it is worth less.

    A run that has ended is worth more than one that has not, and one of the paper's settings and length more than a
    reduced one. Of reduced ones, that which is reduced in fewer things is worth more, then the longer one. A run that
    has failed replaces no equal one that has not.
    """
    found: dict[tuple[object, ...], Result] = {}
    for result in (*older, *newer):
        before = found.get(result.key)
        if before is None or _worth(result) >= _worth(before):
            found[result.key] = result
    return list(found.values())


def _worth(result: Result) -> tuple[bool | int, ...]:
    return result.status != "partial", *result.closeness, result.status != "failed"


# ---------------------------------------------------------------- reading
def read_results(path: Path) -> list[Result]:
    """The results in a csv file.

    Raises:
        DamagedError: If the file is not one that ``write_results`` writes; it names the line and the column.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    found: dict[tuple[Any, ...], int] = {}
    results: list[Result] = []
    try:
        header = next(reader, [])
        _check_header(path, header)
        for row in reader:
            result = _parsed(path, reader.line_num, header, row)
            if first := found.get(result.key):
                raise _damaged(path, f"it has the same cell, seed and tuning as line {first}", reader.line_num)
            found[result.key] = reader.line_num
            results.append(result)
    except csv.Error as cause:
        raise _damaged(path, str(cause), reader.line_num) from cause
    return results


def _check_header(path: Path, header: Sequence[str]) -> None:
    if tuple(header) == tuple(name for name in COLUMNS if name in header or name not in ADDED):
        return
    missing = [name for name in COLUMNS if name not in (*header, *ADDED)]
    unknown = [name for name in header if name not in COLUMNS]
    problems = [
        f"it lacks {', '.join(missing)}" if missing else "",
        f"it has {', '.join(map(repr, unknown))}, which no result has" if unknown else "",
    ]
    raise _damaged(path, f"the header is not that of results: {'; '.join(filter(None, problems)) or 'its order'}", 1)


def _parsed(path: Path, line: int, header: Sequence[str], row: Sequence[str]) -> Result:
    if len(row) != len(header):
        raise _damaged(path, f"it has {len(row)} fields, {len(header)} belong there", line)
    texts: dict[str, Any] = dict(zip(header, row, strict=True))
    for name in ("seed", "rounds"):
        texts[name] = _number(path, line, name, texts[name], whole=True)
    for name in ("value", "seconds"):
        texts[name] = _number(path, line, name, texts[name]) if texts[name] else None
    result = Result(**texts)
    if problem := _problem(result):
        raise _damaged(path, problem, line)
    return result


def _number(path: Path, line: int, name: str, text: str, *, whole: bool = False) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError as cause:
        raise _damaged(path, f"{name} is {text!r}, where a {'whole ' * whole}number belongs", line) from cause


def _problem(result: Result) -> str:
    """What a result cannot be."""
    if result.status not in STATUSES:
        return f"status is {result.status!r}, not one of {', '.join(STATUSES)}"
    if result.status == "done" and result.value is None:
        return "status is 'done', but there is no value"
    if any(number is not None and not math.isfinite(number) for number in (result.value, result.seconds)):
        return "value and seconds must be finite; a run that diverged has no value"
    return ""


def _damaged(path: Path, problem: str, line: int | None = None) -> DamagedError:
    where = f"{path}, line {line}" if line else str(path)
    return DamagedError(
        f"{where}: {problem}. Put the file back as it was (git checkout {path}), or delete what is wrong in it: the "
        "command of the table writes it again from the run directories."
    )


# ---------------------------------------------------------------- writing
def write_results(path: Path, results: Iterable[Result], entry: Entry | None = None) -> None:
    """Writes results to a csv file, whole or not at all, in full precision and always in the same order.

    Args:
        path: The file, see ``results_file``.
        results: No two of the same cell, seed and tuning.
        entry: Whose order of settings, methods and metrics is taken; without it, they are sorted by name.

    Raises:
        DiskError: If the file cannot be written.
    """
    rows = ordered(results, entry)
    for result in rows:
        if problem := _problem(result):
            raise ValueError(f"{result.run or result.command}: {problem}")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(result) for result in rows)
    with writing(path):
        write_atomically(path, text.getvalue().encode())


def ordered(results: Iterable[Result], entry: Entry | None = None) -> list[Result]:
    """Results by setting, method, metric, seed and tuning, as the entry has them; what it does not name comes last."""
    names: list[Sequence[str]] = [(), (), ()]
    if entry is not None:
        names = [(*entry.scenes, *entry.stand_ins), entry.rows, [measure.metric for measure in entry.measures]]
    places = [{name: place for place, name in reversed(list(enumerate(group)))} for group in names]

    def order(result: Result) -> tuple[Any, ...]:
        cell = zip(result.cell, places, strict=True)
        return result.entry, *((place.get(name, len(place)), name) for name, place in cell), result.seed, result.tuning

    return sorted(results, key=order)
