"""What stands below a published table with ours beside it. Free of torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedexp.reproduce.tables.cells import Column, TableCell, seeds_in_words
from fedexp.reproduce.tables.holes import commands_for_readings
from fedexp.reproduce.verdict import remarks
from fedexp.terminal.numbers import count

if TYPE_CHECKING:
    from fedexp.reproduce.tables.table import ReproTable

SPREADS = {
    "seeds": "± of a published number is the standard deviation over the paper's seeds.",
    "rounds": "± of a published number is the standard deviation over the last rounds of one run.",
    "settings": "± of a published number is the standard deviation over hyper-parameter settings, not over seeds.",
    None: "The paper does not say what the ± of its numbers is over.",
}


@dataclass(frozen=True)
class Note:
    """Something below a table; ``commands`` are lines to paste."""

    title: str
    lines: tuple[str, ...]
    commands: bool = False


def notes_of(table: ReproTable) -> tuple[Note, ...]:
    """All notes that have something to say."""
    every = (
        Note("Without a number", tuple(dict.fromkeys(_troubles(table.cells)))),
        Note("Other readings of the paper, and variants", tuple(_readings(table))),
        Note("Verdicts", tuple(_verdicts(table))),
        Note("Spread", tuple(_spread(table))),
        Note("Notes on the paper", tuple(dict.fromkeys((*table.entry.notes, *table.entry.paper_notes)))),
        Note("In the paper", tuple(_paper_says(table))),
        Note("Assumed, because the paper does not say", tuple(_assumed(table))),
        Note("To fill the holes", table.commands, commands=True),
        Note("To try another reading where ours is below or above", tuple(commands_for_readings(table)), commands=True),
    )
    return tuple(note for note in every if note.lines)


def _troubles(cells: Iterable[TableCell]) -> Iterator[str]:
    for cell in cells:
        for result in cell.results:
            if result.status == "done":
                continue
            if not result.run:  # a count
                yield f"{', '.join(filter(None, [result.method, result.setting]))}: {result.error}"
                continue
            where = ", ".join(filter(None, [result.method, result.setting, f"seed {result.seed}", result.tuning]))
            ended = f"{result.status} after {count(result.rounds, 'round')}"
            yield f"{where}: {ended}{f': {result.error}' if result.error else ''} (run {result.run})"


def _verdicts(table: ReproTable) -> Iterator[str]:
    return remarks(table.entry, [cell.verdict for cell in table.cells if cell.verdict], tune=table.asked.tune)


def _readings(table: ReproTable) -> Iterator[str]:
    """What came out of other readings, beside the usual one with the same seeds and the paper's number."""
    usual = {(cell.setting, cell.method, cell.metric): cell for cell in table.cells if not cell.tuning}
    several = len({cell.metric for cell in table.cells}) > 1
    for method, cell in table.readings:
        own = _with_seeds(usual.get((cell.setting, method.reading_of, cell.metric)), cell.by_seed)
        alike = (c for c in table.cells if (c.setting, c.metric) == (cell.setting, cell.metric))
        fields = Column(cell.setting, (cell, own, *alike), ranked=True).fields  # with as many decimals as in the table
        ours, published, difference, verdict = (
            fields.get(part, ["", ""]) for part in ("ours", "published", "difference", "verdict")
        )
        told = [
            f"{ours[0]} with {seeds_in_words(cell.by_seed)}" if cell.by_seed else ours[0],
            f"where {method.reading_of} has {ours[1]}" if own else "",
            f"published {published[0]}{f' ({difference[0]})' if difference[0] else ''}" if published[0] else "",
            verdict[0],
        ]
        where = ", ".join([method.name, cell.setting, *([cell.metric] if several else [])])
        yield f"{where}: {', '.join(filter(None, told))}. Here {method.stated}."


def _with_seeds(cell: TableCell | None, seeds: Iterable[int]) -> TableCell | None:
    """A cell with some of its seeds; None if it lacks one."""
    wanted = list(seeds)
    if cell is None or not wanted or not cell.by_seed.keys() >= set(wanted):
        return None
    values = {seed: cell.by_seed[seed] for seed in wanted}
    return replace(cell, by_seed=values, ours=statistics.fmean(values.values()))


def _spread(table: ReproTable) -> Iterator[str]:
    if any(cell.published and cell.published.spread is not None for cell in table.cells):
        yield SPREADS[table.entry.spread]
    if any(len(cell.values) > 1 for cell in table.cells):
        yield "Ours is the mean over seeds."
    if any(cell.verdict and cell.verdict.spread_of_settings is not None for cell in table.cells):
        yield "± of ours is the standard deviation over the hyper-parameter settings that were tried."


def _paper_says(table: ReproTable) -> Iterator[str]:
    """What a figure shows, and what the text says of it."""
    if table.entry.axes:
        yield f"axes: {'; '.join(table.entry.axes)}"
    yield from (f"{what}: {said}" for what, said in table.entry.states)


def _assumed(table: ReproTable) -> Iterator[str]:
    shown = {cell.setting for column in table.shown for cell in column.cells if cell}
    by_words: dict[tuple[str, ...], list[str]] = {}
    for scene in table.asked.scenes:
        if scene.name in shown and scene.assumed:
            by_words.setdefault(scene.assumed, []).append(scene.name)
    return (f"{', '.join(names)}: {'; '.join(words)}" for words, names in by_words.items())
