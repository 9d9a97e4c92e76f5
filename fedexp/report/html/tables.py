"""Tables of results for the report, made of ``fedexp.report.table``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedexp.report.html.blocks import Cell, Heading, Table
from fedexp.report.html.layout import Layout
from fedexp.report.load import Runs
from fedexp.report.measure import Metric
from fedexp.report.table import SHOW, Column, ResultTable, make_table
from fedexp.terminal.numbers import DASH

FIGURE_SPACE = "\N{FIGURE SPACE}"  # as wide as a digit
FORMS = {"mean±std": "mean ± std", "interval": "95 % interval", "values": "each seed"}
LOOKS = {1: "best", 2: "second"}
EMPTY = Cell(DASH, float("-inf"), "quiet")
PAIRED = (
    "Means of the differences paired by seed, with 95 % intervals where there are three seeds; coloured where the "
    "interval does not include zero."
)
Metrics = Mapping[str, tuple[str, str]]  # by name: the heading, and what it means


def results_table(runs: Runs, layout: Layout, metrics: Metrics, caption: str, *, marked: bool = True) -> Table | None:
    """Metrics of each method in each scene; None if no run has any.

    Args:
        runs: The runs; those that are not finished are left out.
        layout: What rows are told apart by.
        metrics: The columns.
        caption: What it is.
        marked: Whether the best and the second of a scene are.
    """
    known = {name: told for name, told in metrics.items() if name in runs.done.results.columns}
    if not known:
        return None
    rows: list[tuple[Cell, ...]] = []
    several = False
    for scene, own in layout.by_scene(runs.done):
        there = [name for name in known if name in own.results.columns]
        made = make_table(own, metric=there, rows=layout.methods)
        several = several or any(len(cell) > 1 for column in made.columns for cell in column.cells)
        by_metric = {column.metric.name: _cells(column, marked=marked) for column in made.columns}
        for number, named in enumerate(_stubs(made, layout, own)):
            numbers = (by_metric[name][number] if name in by_metric else EMPTY for name in known)
            rows.append((*map(Cell, scene), *named, *numbers))
    headings = [*map(key_heading, layout.keys), *(_heading(name, told) for name, told in known.items())]
    return Table(caption, tuple(headings), tuple(rows), tuple(FORMS.values()) if several else ())


def differences_table(runs: Runs, layout: Layout, metrics: Metrics, reference: str) -> Table | None:
    """Each method less the reference, paired by seed; None where there is nothing to compare."""
    rows: list[tuple[Cell, ...]] = []
    known = {name: told for name, told in metrics.items() if name in runs.done.results.columns}
    for scene, own in layout.by_scene(runs.done):
        there = [name for name in known if name in own.results.columns]
        if reference not in layout.labels(own) or not there:
            continue
        made = make_table(own, metric=there, rows=layout.methods, compare=reference)
        by_metric = {column.metric.name: column for column in made.columns}
        for number, named in enumerate(_stubs(made, layout, own)):
            numbers = [_difference(by_metric[name], number) if name in by_metric else EMPTY for name in known]
            if any(cell is not EMPTY for cell in numbers):
                rows.append((*map(Cell, scene), *named, *numbers))
    if not rows:
        return None
    headings = (*map(key_heading, layout.keys), *(_heading(name, told) for name, told in known.items()))
    return Table(f"Less {reference}, points", headings, tuple(rows), notes=(PAIRED,))


def _stubs(made: ResultTable, layout: Layout, runs: Runs) -> Iterator[tuple[Cell, ...]]:
    """The cells that name each row."""
    values = layout.labels(runs)
    for label in made.rows:
        yield tuple(map(Cell, values[label]))


def key_heading(key: str) -> Heading:
    """The head of a column with the values of a setting."""
    short = key.rpartition(".")[2]
    return Heading(short, about=key if short != key else "")


def _heading(name: str, told: tuple[str, str]) -> Heading:
    metric = Metric(name)
    text, about = told
    group = {"missing": "missing classes"}.get(metric.parts[0], metric.parts[0])
    return Heading(text, numeric=True, group=f"{group}, {metric.unit}" if metric.unit == "%" else group, about=about)


def _cells(column: Column, *, marked: bool) -> list[Cell]:
    """A column in all forms."""
    best = column.best if marked else {}
    forms = [_aligned([column.shown(row, show) for row in range(len(column.cells))]) for show in SHOW]
    return [
        Cell(texts[0], spread.mean, LOOKS.get(best.get(row, 0), ""), texts[1:]) if spread else EMPTY
        for row, (spread, texts) in enumerate(zip(column.spreads, zip(*forms, strict=True), strict=True))
    ]


def _difference(column: Column, row: int) -> Cell:
    found = column.differences(row)
    if found is None or found.mean is None:
        return EMPTY
    sure = found.interval is not None and not found.interval[0] <= 0 <= found.interval[1]
    better = (found.mean > 0) == column.metric.more_is_better
    return Cell(column.shown_difference(row), found.mean, ("good" if better else "bad") if sure else "")


def _aligned(texts: Sequence[str]) -> list[str]:
    """The same with what follows ± equally wide, so that means stand below each other."""
    width = max(len(text.partition(" ± ")[2]) for text in texts)
    return [
        f"{mean} ± {spread.rjust(width, FIGURE_SPACE)}" if sign else mean + FIGURE_SPACE * (width + 3 if width else 0)
        for mean, sign, spread in (text.partition(" ± ") for text in texts)
    ]
