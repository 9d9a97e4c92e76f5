"""The holes of a table: runs that were asked for and have no result, and the commands that fill them. Free of torch."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from fedexp.reproduce.jobs import STAND_IN, special
from fedexp.reproduce.results import Result

if TYPE_CHECKING:
    from fedexp.reproduce.tables.table import ReproTable

PROGRAM = ("python", "-m", "fedexp.reproduce")


Holes = Mapping[str, Mapping[str, tuple[int, ...]]]  # seeds that a method lacks, by setting and method


def commands(table: ReproTable) -> Iterator[str]:
    """One command for all settings in which the same methods lack the same seeds."""
    if not table.counts:
        yield from _commands(table, _holes(table))
    elif any(cell.ours is None for cell in table.cells):
        yield shlex.join([*PROGRAM, "export", table.entry.id])


def commands_for_readings(table: ReproTable) -> Iterator[str]:
    """The commands that try other readings of methods whose numbers are below or above the paper's."""
    tried = {(cell.setting, method.name) for method, cell in table.readings}
    wanted: dict[str, dict[str, tuple[int, ...]]] = {}
    for cell in (cell for cell in table.cells if cell.word in ("below", "above") and cell.results):
        for reading in (each for each in table.entry.readings if each.reading_of == cell.method):
            if (cell.setting, reading.name) not in tried and reading not in table.asked.methods:
                wanted.setdefault(cell.setting, {})[reading.name] = table.seeds
    yield from _commands(table, wanted)


def _commands(table: ReproTable, lacking: Holes) -> Iterator[str]:
    """The commands that run the methods which settings lack."""
    every = {method.name for method in table.asked.entry.runnable}
    settings: dict[tuple[tuple[str, ...], tuple[int, ...]], list[str]] = {}
    for setting, seeds_of in lacking.items():
        for seeds in dict.fromkeys(seeds_of.values()):
            methods = tuple(method for method, lacks in seeds_of.items() if lacks == seeds)
            settings.setdefault((methods, seeds), []).append(setting)
    for (methods, seeds), of in settings.items():
        named = () if every == set(methods) else methods
        narrow = [*_option("settings", of), *_option("methods", named), *_option("seeds", map(str, seeds))]
        tune = ["tune=paper"] if table.asked.tune == "paper" else []
        yield shlex.join([*PROGRAM, table.entry.id, *narrow, *tune, *table.asked.options])


def _holes(table: ReproTable) -> Holes:
    """What is asked for and lacks a seed, in the order of the cells."""
    lacking: dict[tuple[str, str], set[int]] = {}
    for (setting, method, _), results in _asked_for(table).items():
        lacking.setdefault((setting, method), set()).update(_lacking(table, method, results))
    holes: dict[str, dict[str, tuple[int, ...]]] = {}
    for (setting, method), seeds in lacking.items():
        if seeds:
            holes.setdefault(setting, {})[method] = tuple(seed for seed in table.seeds if seed in seeds)
    return holes


def _asked_for(table: ReproTable) -> Mapping[tuple[str, str, str], Sequence[Result]]:
    """The results that there are of each setting, method and metric that is asked for; of readings, of any metric."""
    settings = [scene.name for scene in table.asked.scenes]
    rows = [method.name for method in table.asked.methods if not method.reading_of]
    readings = [method.name for method in table.asked.methods if method.reading_of]
    found: dict[tuple[str, str, str], list[Result]] = {}
    for cell in table.cells:  # of which figures have one per hyper-parameter setting
        if cell.metric in _taken(table) and cell.setting in settings and cell.method in rows:
            found.setdefault((cell.setting, cell.method, cell.metric), []).extend(cell.results)
    found |= {(setting, name, ""): [] for setting, name in product(settings, readings)}
    for method, cell in table.readings:
        if method.name in readings:
            found[cell.setting, method.name, ""].extend(cell.results)
    return found


def _taken(table: ReproTable) -> set[str]:
    """The metrics that runs give; means and gains are computed from others."""
    metrics = {measure.metric for measure in table.entry.measures}
    return {measure.metric for measure in table.entry.measures if measure.of not in metrics}


def _lacking(table: ReproTable, method: str, results: Sequence[Result]) -> Iterator[int]:
    """The seeds that lack a result of at least one of the hyper-parameter settings.

    A failed run is a hole too: the same command tries it again. So is one that is shorter than what is asked for. A run
    that has ended without this number would end so again.
    """
    enough = {result.reduced for result in results} if special(table.asked) else {"", STAND_IN}
    ended = (r for r in results if r.status == "done" or r.seconds is not None)
    done = {(result.tuning, result.seed) for result in ended if result.reduced in enough}
    asked = product(table.asked.tunings[method], table.seeds)
    return (seed for tuning, seed in asked if (tuning, seed) not in done)


def _option(key: str, names: Iterable[str]) -> list[str]:
    joined = ",".join(names)
    return [f"{key}={joined}"] if joined else []
