"""Puts a published table together with our results: which cells it has, in which rows and columns. Free of torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fedexp.reproduce.entry import Entry, Method, Number
from fedexp.reproduce.measure import Cell
from fedexp.reproduce.request import Request
from fedexp.reproduce.results import Result, ordered
from fedexp.reproduce.tables.cells import Column, TableCell
from fedexp.reproduce.tables.table import ReproTable
from fedexp.reproduce.verdict import Verdict, judge

OF_COUNTS = {"reproduced": "equal", "above": "different", "below": "different"}  # which have no tolerance


def make_table(asked: Request, verdicts: Mapping[Cell, Verdict], results: Iterable[Result]) -> ReproTable:
    """Puts the table of what is asked for together.

    Args:
        asked: What is asked for of an entry.
        verdicts: By cell; published numbers that have none are missing.
        results: Those of the entry. Those of other readings have no rows: what came out is told below the table.
    """
    entry = asked.shown
    others = {method.name: method for method in entry.readings}
    every = ordered(results, entry)
    own = [result for result in every if result.method not in others]
    cells = list(_all_cells(entry, verdicts, own))
    known = tuple(sorted({result.seed for result in own})) or (0,)
    seeds = known if asked.any_seed else asked.seeds
    names, columns = _counted(cells) if entry.kind == "count" else _trained(entry, cells, seeds)
    return ReproTable(
        asked=asked,
        entry=entry,
        rows=names,
        columns=columns,
        seeds=seeds,
        readings=tuple(_readings(entry, others, every, asked.tune)),
    )


def _all_cells(entry: Entry, verdicts: Mapping[Cell, Verdict], results: Sequence[Result]) -> Iterator[TableCell]:
    """The cells of the paper, then those of ours that it has no number for, one per hyper-parameter setting."""
    by_cell: dict[Cell, list[Result]] = {}
    for result in results:
        by_cell.setdefault(result.cell, []).append(result)
    published = {number.cell: number for number in entry.numbers}
    for cell, number in published.items():
        yield _judged(number, verdicts.get(cell), by_cell.get(cell, []), OF_COUNTS if entry.kind == "count" else {})
    for cell in dict.fromkeys((*_unprinted(entry), *by_cell)):
        if cell not in published:
            yield from _unjudged(cell, by_cell.get(cell, []))


def _readings(
    entry: Entry, methods: Mapping[str, Method], results: Sequence[Result], tune: str
) -> Iterator[tuple[Method, TableCell]]:
    """Other readings that were run, each with the number of the method that it is a reading of, if there is one."""
    published = {number.cell: number for number in entry.numbers}
    for cell in dict.fromkeys(result.cell for result in results if result.method in methods):
        setting, name, metric = cell
        found = [result for result in results if result.cell == cell]
        if number := published.get((setting, methods[name].reading_of, metric)):
            beside = replace(number, method=name)
            yield methods[name], _judged(beside, judge(beside, entry, found, tune=tune), found, {})
        else:
            yield from ((methods[name], unjudged) for unjudged in _unjudged(cell, found))


def _unprinted(entry: Entry) -> Iterator[Cell]:
    """The cells of scenes for which the paper prints no number at all."""
    printed = {number.setting for number in entry.numbers}
    for setting in entry.scenes or entry.stand_ins:
        if setting not in printed:
            measures = entry.measured_in(setting)
            yield from ((setting, method.name, each.metric) for method in entry.runnable for each in measures)


def _judged(number: Number, verdict: Verdict | None, results: Sequence[Result], words: Mapping[str, str]) -> TableCell:
    word = verdict.word if verdict else "missing"
    return TableCell(
        *number.cell,
        tuning="",
        published=number,
        ours=verdict.ours if verdict else None,
        by_seed=verdict.by_seed if verdict else {},
        word=words.get(word, word),
        results=tuple(results),
        verdict=verdict,
    )


def _unjudged(cell: Cell, results: Sequence[Result]) -> Iterator[TableCell]:
    """Each hyper-parameter setting by itself; runs of full length alone count if there are any."""
    for tuning in dict.fromkeys(result.tuning for result in results) or [""]:
        own = [result for result in results if result.tuning == tuning]
        label = max(own, key=lambda r: r.closeness).reduced if own else ""
        counted = [result for result in own if result.reduced == label]
        values = {r.seed: r.value for r in counted if r.status == "done" and r.value is not None}
        yield TableCell(
            *cell,
            tuning=tuning,
            published=None,
            ours=statistics.fmean(values.values()) if values else None,
            by_seed=values,
            word=_own_word(counted),
            results=tuple(own),
        )


def _own_word(results: Sequence[Result]) -> str:
    """The word for a cell that there is no published number for."""
    if any(result.status in ("failed", "diverged") for result in results):
        return "failed"
    if all(result.status == "partial" for result in results):
        return "missing"
    return "reduced" if any(result.reduced for result in results) else ""


def _trained(
    entry: Entry, cells: Sequence[TableCell], seeds: tuple[int, ...]
) -> tuple[tuple[str, ...], tuple[Column, ...]]:
    """Methods below each other, settings and metrics side by side."""
    single = len({cell.metric for cell in cells}) <= 1
    order = {method: place for place, method in enumerate(entry.rows)}
    ranked = {measure.metric: measure.percent for measure in entry.measures}  # accuracies, of which more is better
    by_method = sorted(cells, key=lambda cell: order.get(cell.method, len(order)))
    rows = list(dict.fromkeys((cell.method, cell.tuning) for cell in by_method))
    columns: dict[tuple[str, str], dict[tuple[str, str], TableCell]] = {}
    for cell in cells:
        columns.setdefault((cell.setting, cell.metric), {})[cell.method, cell.tuning] = cell
    return tuple(" ".join(filter(None, row)) for row in rows), tuple(
        Column(
            title=setting if single else f"{setting}, {metric}",
            cells=tuple(found.get(row) for row in rows),
            ranked=ranked.get(metric, False),
            seeds=seeds,
        )
        for (setting, metric), found in columns.items()
    )


def _counted(cells: Sequence[TableCell]) -> tuple[tuple[str, ...], tuple[Column, ...]]:
    """Settings below each other, what is counted side by side."""
    rows = list(dict.fromkeys((cell.setting, cell.method) for cell in cells))
    columns: dict[str, dict[tuple[str, str], TableCell]] = {}
    for cell in cells:
        columns.setdefault(cell.metric, {})[cell.setting, cell.method] = cell
    return tuple(", ".join(filter(None, row)) for row in rows), tuple(
        Column(title=metric, cells=tuple(found.get(row) for row in rows), ranked=False)
        for metric, found in columns.items()
    )
