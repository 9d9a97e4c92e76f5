"""The cells of a published table with our numbers beside it, and how they are written. Free of torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from fedexp.reproduce.entry import Number
from fedexp.reproduce.measure import REFERENCE
from fedexp.reproduce.paired import Differences, paired
from fedexp.reproduce.results import Result
from fedexp.reproduce.verdict import Verdict
from fedexp.terminal.numbers import DASH

REDUCED = "†"
MAX_SHOWN = 3  # seeds whose values are shown one by one


@dataclass(frozen=True)
class TableCell:
    """What is known of a cell."""

    setting: str
    method: str
    metric: str
    tuning: str  # of cells without a published number, where each hyper-parameter setting has a row of its own
    published: Number | None
    ours: float | None
    by_seed: Mapping[int, float]
    word: str  # of its verdict; empty where there is nothing to compare with
    results: tuple[Result, ...]
    verdict: Verdict | None = None

    @property
    def values(self) -> tuple[float, ...]:
        """One per seed."""
        return tuple(self.by_seed.values())

    @property
    def difference(self) -> float | None:
        """Ours less the published number; none if that is only a bound."""
        return self.verdict.difference if self.verdict and not (self.published and self.published.bound) else None

    @property
    def reduced(self) -> str:
        """In what its numbers are less than the paper's; empty if in nothing."""
        labels = dict.fromkeys(result.reduced for result in self.results)
        if self.word == "reduced":  # then those of full length are of settings that do not count
            return "; ".join(filter(None, labels)) or (self.verdict.why if self.verdict else "")
        return "" if "" in labels else "; ".join(labels)

    @property
    def was_run(self) -> bool:
        """Whether there is anything to show of ours."""
        return bool(self.results) or self.word != "missing"

    @property
    def trouble(self) -> str:
        """Why there is no number, in a word; empty if there is one, or if nothing was run."""
        statuses = {result.status for result in self.results} if self.ours is None else set()
        return next((word for word in ("diverged", "failed", "partial") if word in statuses), "")


@dataclass(frozen=True)
class Column:
    """The cells below one heading, in the order of the table's rows; None where the paper has no cell either."""

    title: str
    cells: tuple[TableCell | None, ...]
    ranked: bool  # more is better, so that the best can be marked
    seeds: tuple[int, ...] = ()  # of the whole table

    @cached_property
    def digits(self) -> int:
        """Decimals: as many as the paper prints; else one, and three of small numbers that are no percentages."""
        printed = [cell.published.printed for cell in self.cells if cell and cell.published]
        small = not self.ranked and all(abs(cell.ours or 0.0) < 10 for _, cell in self._with_numbers())
        return max((len(text.partition(".")[2]) for text in printed), default=3 if small else 1)

    @cached_property
    def spread_digits(self) -> int:
        """Decimals of what the paper prints behind ±."""
        spreads = [cell.published.spread for cell in self.cells if cell and cell.published]
        return max((len(f"{spread:.6g}".partition(".")[2]) for spread in spreads if spread is not None), default=0)

    @property
    def was_run(self) -> bool:
        """Whether there is anything to show of ours."""
        return any(cell and cell.was_run for cell in self.cells)

    @property
    def has_published(self) -> bool:
        """Whether the paper prints any number."""
        return any(cell and cell.published for cell in self.cells)

    def written(self, value: float, *, sign: str = "") -> str:
        """A number with the column's decimals."""
        return f"{value:{sign}z.{self.digits}f}".replace("-", "−")

    @cached_property
    def fields(self) -> dict[str, list[str]]:
        """What is written in the column's parts, by their headings; parts in which nothing would be are left out."""
        writers = {
            "ours": self._ours,
            "seeds": self._seeds,
            "published": self._published,
            "difference": self._difference,
            "verdict": _word,
        }
        parts = {heading: [write(cell) if cell else "" for cell in self.cells] for heading, write in writers.items()}
        return {heading: texts for heading, texts in parts.items() if heading == "ours" or any(texts)}

    @cached_property
    def count_fields(self) -> dict[str, list[str]]:
        """The same of a column of counts."""
        writers = {"printed": self._published, "counted": self._ours, "equal?": _word}
        return {heading: [write(cell) if cell else "" for cell in self.cells] for heading, write in writers.items()}

    def _ours(self, cell: TableCell) -> str:
        if cell.ours is None:
            return cell.trouble or DASH
        spread = cell.verdict.spread_of_settings if cell.verdict else None
        behind = "" if spread is None else f" ± {spread:.{max(self.spread_digits, 1)}f}"
        return self.written(cell.ours) + behind + REDUCED * bool(cell.reduced)

    def _seeds(self, cell: TableCell) -> str:
        values = cell.values
        if len(values) > MAX_SHOWN:
            return f"± {self.written(statistics.stdev(values))} of {len(values)}"
        if len(values) == 1 and len(self.seeds) > 1:
            return seeds_in_words(cell.by_seed)
        return " ".join(map(self.written, values)) if len(values) > 1 else ""

    def _published(self, cell: TableCell) -> str:
        number = cell.published
        if number is None:
            return ""
        behind = "" if number.spread is None else f" ± {number.spread:.{self.spread_digits}f}"
        return number.bound + number.printed + behind

    def _difference(self, cell: TableCell) -> str:
        return "" if cell.difference is None else self.written(cell.difference, sign="+")

    @cached_property
    def reference(self) -> TableCell | None:
        """The cell that others are compared with: FedAvg's, or the first; None if no other has two seeds of it."""
        cells = [cell for _, cell in self._with_numbers()] if self.ranked else []
        first = next((cell for cell in cells if cell.method == REFERENCE), next(iter(cells), None))
        return first if first and any(_comparable(cell, first) for cell in cells) else None

    def lead(self, cell: TableCell) -> Differences | None:
        """A cell less the reference, paired by seed; None if there is nothing to compare."""
        beside = self._beside(cell)
        return paired(cell.by_seed, beside.by_seed) if beside and _comparable(cell, beside) else None

    def _beside(self, cell: TableCell) -> TableCell | None:
        """The reference with the cell's own hyper-parameter setting; where it has but one, that."""
        method = self.reference.method if self.reference else None
        own = [each for _, each in self._with_numbers() if each.method == method]
        return next((each for each in own if each.tuning == cell.tuning), own[0] if len(own) == 1 else None)

    @cached_property
    def leads(self) -> list[str]:
        """What is written of the differences to the reference, by row."""
        return [self._lead(cell) if cell else "" for cell in self.cells]

    def _lead(self, cell: TableCell) -> str:
        found = self.lead(cell)
        if found is None or found.mean is None:
            return ""
        ends = f" [{', '.join(self.written(end, sign='+') for end in found.interval)}]" if found.interval else ""
        return self.written(found.mean, sign="+") + ends

    @cached_property
    def our_ranks(self) -> dict[int, int]:
        """1 for the best of our numbers, 2 for the second, by row.

        None if some of the numbers have other seeds; reduced runs compete with equally reduced only.
        """
        whole = {row: cell for row, cell in self._with_numbers() if not cell.reduced}
        cells = whole or dict(self._with_numbers())
        if not self.ranked or len({(cell.reduced, frozenset(cell.by_seed)) for cell in cells.values()}) > 1:
            return {}
        return best_two({row: round(cell.ours, self.digits) for row, cell in cells.items() if cell.ours is not None})

    @cached_property
    def published_ranks(self) -> dict[int, int]:
        """The same of the published numbers."""
        printed = {row: cell.published for row, cell in enumerate(self.cells) if cell and cell.published}
        return best_two({row: number.value for row, number in printed.items()}) if self.ranked else {}

    def _with_numbers(self) -> Iterator[tuple[int, TableCell]]:
        return ((row, cell) for row, cell in enumerate(self.cells) if cell and cell.ours is not None)


def seeds_in_words(seeds: Iterable[int]) -> str:
    """``seed 0`` or ``seeds 0, 1, 2``."""
    names = list(map(str, seeds))
    return f"seed{'s' * (len(names) > 1)} {', '.join(names)}"


def lead_title(column: Column) -> str:
    """``fmnist/mlpnet, less FedAvg``."""
    return f"{column.title}, less {column.reference.method}" if column.reference else column.title


def _comparable(cell: TableCell, reference: TableCell) -> bool:
    """Whether two cells share at least two seeds, and are reduced in the same, if at all."""
    shared = cell.by_seed.keys() & reference.by_seed.keys()
    return cell is not reference and cell.reduced == reference.reduced and len(shared) > 1


def _word(cell: TableCell) -> str:
    return cell.word


def best_two(values: Mapping[int, float]) -> dict[int, int]:
    """Equal values share a rank; a value without others has none."""
    best = sorted(set(values.values()), reverse=True)[:2]
    return {row: best.index(value) + 1 for row, value in values.items() if value in best} if len(values) > 1 else {}
