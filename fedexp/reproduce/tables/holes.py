"""The holes of a table: runs that were asked for and have no result, and the commands that fill them. Free of torch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from fedexp.reproduce.results import Result

if TYPE_CHECKING:
    from fedexp.reproduce.tables.table import ReproTable

PROGRAM = ("python", "-m", "fedexp.reproduce")


def commands(table: ReproTable) -> Iterator[str]:
    """One command for all settings that lack the same methods."""
    if not table.counts:
        yield from _commands(table, _holes(table))
    elif any(cell.ours is None for cell in table.cells):
        yield shlex.join([*PROGRAM, table.entry.id])


def commands_for_readings(table: ReproTable) -> Iterator[str]:
    """The commands that try other readings of methods whose numbers are below or above the paper's."""
    tried = {(cell.setting, method) for method, cell in table.readings}
    wanted: dict[str, dict[str, None]] = {}
    for cell in (cell for cell in table.cells if cell.word in ("below", "above") and cell.results):
        for reading in (each for each in table.other_readings if each.reading_of == cell.method):
            if (cell.setting, reading) not in tried:
                wanted.setdefault(cell.setting, {})[reading.name] = None
    yield from _commands(table, {setting: tuple(names) for setting, names in wanted.items()})


def _commands(table: ReproTable, lacking: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The commands that run the methods which settings lack."""
    tail = [f"seeds={','.join(map(str, table.seeds))}", *(["tune=paper"] if table.tune == "paper" else [])]
    by_methods: dict[tuple[str, ...], list[str]] = {}
    for setting, methods in lacking.items():
        by_methods.setdefault(methods, []).append(setting)
    for methods, settings in by_methods.items():
        named = () if set(methods) >= set(table.runnable) else methods
        narrow = [*_option("settings", settings), *_option("methods", named), *tail]
        yield shlex.join([*PROGRAM, table.entry.id, *narrow, *table.options])


def _holes(table: ReproTable) -> Mapping[str, tuple[str, ...]]:
    """The methods that a setting lacks, in the order of the cells."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for cell in table.cells:  # of which figures have one per hyper-parameter setting
        if cell.metric in _taken(table) and cell.setting in (*table.entry.scenes, *table.entry.stand_ins):
            found.setdefault((cell.setting, cell.method, cell.metric), []).extend(cell.results)
    holes: dict[str, dict[str, None]] = {}
    for (setting, method, _), results in found.items():
        if method in table.entry.methods and not _complete(table, method, results):
            holes.setdefault(setting, {})[method] = None
    return {setting: tuple(methods) for setting, methods in holes.items()}


def _taken(table: ReproTable) -> set[str]:
    """The metrics that runs give; means and gains are computed from others."""
    metrics = {measure.metric for measure in table.entry.measures}
    return {measure.metric for measure in table.entry.measures if measure.of not in metrics}


def _complete(table: ReproTable, method: str, results: Sequence[Result]) -> bool:
    """Whether there is a result of each hyper-parameter setting with each seed; of those that were run, if none is set.

    A failed run is a hole too: the same command tries it again.
    """
    tunings = table.tunings.get(method) or tuple(dict.fromkeys(r.tuning for r in results)) or ("",)
    done = {(result.tuning, result.seed) for result in results if result.status == "done"}
    return done >= set(product(tunings, table.seeds))


def _option(key: str, names: Sequence[str]) -> list[str]:
    return [f"{key}={','.join(names)}"] if names else []
