"""Any metric of runs as a table, rows and columns by settings: one object, from which all written forms are made."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.console import Console

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.report.load import Runs
from fedexp.report.measure import LAST, Metric, Spread, both_goals, cells, in_order, values
from fedexp.reproduce.paired import Differences, mean_ranks, paired
from fedexp.reproduce.tables.cells import best_two
from fedexp.reproduce.verdict import MIN_SEEDS
from fedexp.terminal.numbers import DASH, count

SHOW = ("mean±std", "interval", "values")
SORT = ("name", "value")
BY_SEED = Mapping[Any, float]
CSV_COLUMNS = (
    *("row", "column", "metric", "unit", "n", "mean", "std", "interval_low", "interval_high", "values"),
    *("compared_with", "pairs", "difference", "difference_low", "difference_high", "p_value"),
)


@dataclass(frozen=True)
class Column:
    """The cells below one heading, each with a value per seed."""

    title: str
    metric: Metric
    cells: tuple[BY_SEED, ...]  # in the order of the table's rows; empty where nothing was run
    reference: BY_SEED | None  # the cell that others are compared with

    @cached_property
    def spreads(self) -> tuple[Spread | None, ...]:
        """The same without seeds."""
        return tuple(Spread(tuple(cell[s] for s in sorted(cell))) if cell else None for cell in self.cells)

    @cached_property
    def best(self) -> dict[int, int]:
        """1 for the best row, 2 for the second, as far as they are not equal as written; none if none is better."""
        if not self.metric.ranked:
            return {}
        sign = 1 if self.metric.more_is_better else -1
        written: dict[str, float] = {}  # by text: the value that stands for all that are written so
        means = ((row, spread.mean) for row, spread in enumerate(self.spreads) if spread)
        return best_two({row: written.setdefault(self.metric.text(mean), sign * mean) for row, mean in means})

    def differences(self, row: int) -> Differences | None:
        """A row less the reference, by seed; None where there is nothing to compare."""
        cell = self.cells[row]
        return None if self.reference is None or not cell or cell is self.reference else paired(cell, self.reference)

    def shown(self, row: int, show: str) -> str:
        """What is written in a cell."""
        spread = self.spreads[row]
        if spread is None:
            return DASH
        write = self.metric.text
        if show == "values":
            return " ".join(map(write, spread.values))
        if show == "interval":
            ends = f" [{', '.join(map(write, spread.interval))}]" if spread.interval else ""
            return write(spread.mean) + ends
        return write(spread.mean) + ("" if spread.std is None else f" ± {write(spread.std)}")

    def shown_difference(self, row: int) -> str:
        """``+1.2 [+0.7, +1.7]``; with six pairs or more the p-value of Wilcoxon's test as well."""
        found = self.differences(row)
        if found is None or found.mean is None:
            return ""
        write = self.metric.text
        ends = f" [{', '.join(write(end, sign='+') for end in found.interval)}]" if found.interval else ""
        return write(found.mean, sign="+") + ends + (f" p={found.p_value:.2g}" if found.p_value is not None else "")


@dataclass(frozen=True)
class ResultTable:
    """Numbers of runs."""

    stub: str  # what the rows are
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    show: str
    over: str
    compare: str = ""  # the row that others are compared with
    notes: tuple[str, ...] = ()

    @cached_property
    def ranks(self) -> dict[str, float]:
        """The mean rank of each row over columns and seeds that all rows have; empty where nothing can be ranked."""
        whole = [found for found in self._by_seed if len(found) == len(self.rows)]
        return mean_ranks(whole) if whole and len(self.rows) > 1 else {}

    @cached_property
    def _by_seed(self) -> list[dict[str, float]]:
        """The values of each column and seed of which some can be better, more being so."""
        ranked = (column for column in self.columns if column.metric.ranked)
        return [_signed(column, seed, self.rows) for column in ranked for seed in _seeds(column)]

    @property
    def _ranked(self) -> str:
        """How many columns and seeds the ranks are over."""
        whole = sum(len(found) == len(self.rows) for found in self._by_seed)
        some = f"the {whole} of {len(self._by_seed)} columns and {self.over}s that all rows have"
        return some if whole < len(self._by_seed) else f"columns and {self.over}s"

    def fields(self, column: Column) -> dict[str, list[str]]:
        """The parts of a column by their headings; the differences only where rows are compared."""
        parts = {self.show.replace("±", " ± "): [column.shown(row, self.show) for row in range(len(self.rows))]}
        if self.compare:
            parts[f"less {self.compare}"] = [column.shown_difference(row) for row in range(len(self.rows))]
        return parts

    @property
    def rank_texts(self) -> list[str]:
        """What is written in the column of ranks."""
        return [f"{self.ranks[row]:.1f}" if row in self.ranks else DASH for row in self.rows]

    @property
    def caption(self) -> str:
        """Which metrics, how the numbers were taken, and over how many seeds."""
        metrics = "; ".join(dict.fromkeys(column.metric.title for column in self.columns))
        sizes = sorted({len(cell) for column in self.columns for cell in column.cells if cell})
        n = " to ".join(map(str, dict.fromkeys([sizes[0], sizes[-1]])))
        intervals = "95 % interval" + (f" where there are {MIN_SEEDS} {self.over}s" if sizes[0] < MIN_SEEDS else "")
        how = {"mean±std": "mean ± sample standard deviation", "interval": f"mean [{intervals}]", "values": "values"}
        ranks = f" Rank: mean over {self._ranked}, 1 is best." if self.ranks else ""
        differences = f" Differences are paired by {self.over}, with {intervals}." if self.compare else ""
        return f"{metrics}: {how[self.show]} over {n} {self.over}{'s' * (sizes[-1] > 1)}.{differences}{ranks}"

    # ------------------------------------------------------------ forms
    def print(self, console: Console) -> None:
        """Prints the table, in blocks that fit the console."""
        from fedexp.report.table_forms import show

        show(self, console)

    def markdown(self) -> str:
        """The table in Markdown."""
        from fedexp.report.table_forms import markdown

        return markdown(self)

    def latex(self) -> str:
        """The table in LaTeX; the document needs the package booktabs."""
        from fedexp.report.table_forms import latex

        return latex(self)

    def csv(self) -> str:
        """One row per cell, in full precision."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            _csv_row(self, column, row) for column in self.columns for row in range(len(self.rows)) if column.cells[row]
        )
        return text.getvalue()


def make_table(
    runs: Runs,
    *,
    metric: Sequence[str] = (),
    rows: Sequence[str] = ("algo",),
    columns: Sequence[str] = (),
    over: str = "seed",
    show: str = SHOW[0],
    compare: str = "",
    sort: str = SORT[0],
    rule: str = LAST,
) -> ResultTable:
    """The table of some metrics.

    Args:
        runs: The runs; those that are not finished are left out, and a note says so.
        metric: Dotted names, of result.json or of metrics.jsonl; without, both goals, as far as runs have them.
        rows: Settings that tell rows apart.
        columns: Settings that tell columns apart.
        over: The setting that tells apart the runs of a cell.
        show: ``mean±std``, ``interval`` or ``values``.
        compare: The row whose values are subtracted from those of others, seed by seed.
        sort: Rows by their ``name``, or the best ``value`` in the first column first.
        rule: How a metric of rounds becomes one number, see ``fedexp.reproduce.selection``.

    Raises:
        ConfigError: If a name is not known, with the nearest one; or if runs of a cell cannot be told apart.
    """
    _known("show", show, SHOW)
    _known("sort", sort, SORT)
    metric = metric or both_goals(runs)
    made: dict[tuple[str, str], dict[str, dict[Hashable, float]]] = {}
    for name in metric:
        found = cells(runs.done, values(runs, Metric(name), rule), {"row": rows, "column": columns}, over)
        for title in in_order(found["column"]):
            own = found[found["column"] == title]
            made[name, title] = _by_row(own)
    names = in_order([row for column in made.values() for row in column])
    if compare:
        _known("compare", compare, names)
    if sort == "value":
        names = _best_first(names, next(iter(made.values())), Metric(metric[0]))
    return ResultTable(
        stub=", ".join(rows),
        rows=tuple(names),
        columns=tuple(
            _column(name, title, by_row, names, compare, single=len(metric) == 1)
            for (name, title), by_row in made.items()
        ),
        show=show,
        over=over,
        compare=compare,
        notes=tuple(_notes(runs)),
    )


def _by_row(own: Any) -> dict[str, dict[Hashable, float]]:
    found: dict[str, dict[Hashable, float]] = {}
    for row, seed, value in own[["row", "over", "value"]].itertuples(index=False, name=None):
        found.setdefault(row, {})[seed] = value
    return found


def _column(
    name: str, title: str, by_row: Mapping[str, BY_SEED], names: Sequence[str], compare: str, *, single: bool
) -> Column:
    metric = Metric(name)
    own = tuple(by_row.get(row, {}) for row in names)
    named = f"{name} ({metric.unit})" if metric.unit else name
    heading = title if single and title else ", ".join(filter(None, [title, named]))
    return Column(heading, metric, own, own[names.index(compare)] if compare else None)


def _best_first(names: Sequence[str], column: Mapping[str, BY_SEED], metric: Metric) -> list[str]:
    def key(name: str) -> float:
        mean = statistics.fmean(column[name].values()) if name in column else -float("inf")
        return -mean if metric.more_is_better or name not in column else mean

    return sorted(names, key=key)


def _known(key: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise ConfigError(
            f"{key}={name}: there is no such {'row' if key == 'compare' else 'way'}. {nearest(name, names)}"
        )


def _notes(runs: Runs) -> Iterator[str]:
    left = [run for run in runs.found if run.status != "done"]
    if left:
        states = ", ".join(f"{run.name} ({run.status})" for run in left[:3])
        yield f"Left out: {count(len(left), 'run')} not finished: {states}{' …' * (len(left) > 3)}"
    yield from (f"Not read: {name}: {words}" for name, words in runs.complaints.items())


def _seeds(column: Column) -> list[Any]:
    return sorted({seed for cell in column.cells for seed in cell})


def _signed(column: Column, seed: Any, rows: Sequence[str]) -> dict[str, float]:
    """The values of a seed, more being better."""
    sign = 1 if column.metric.more_is_better else -1
    return {row: sign * cell[seed] for row, cell in zip(rows, column.cells, strict=True) if seed in cell}


def _csv_row(table: ResultTable, column: Column, row: int) -> dict[str, Any]:
    spread, found = column.spreads[row], column.differences(row)
    assert spread is not None  # noqa: S101 - the caller has looked
    low, high = spread.interval or (None, None)
    compared: dict[str, Any] = {}
    if found is not None:
        ends = found.interval or (None, None)
        compared = {"compared_with": table.compare, "pairs": len(found.values), "difference": found.mean}
        compared |= {"difference_low": ends[0], "difference_high": ends[1], "p_value": found.p_value}
    return {
        "row": table.rows[row], "column": column.title, "metric": column.metric.name, "unit": column.metric.unit,
        "n": len(spread.values), "mean": spread.mean, "std": spread.std, "interval_low": low, "interval_high": high,
        "values": " ".join(map(repr, spread.values)), **compared,
    }  # fmt: skip
