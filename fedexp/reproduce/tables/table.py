"""A published table with our numbers beside it: one object, from which all written forms are made. Free of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console

from fedexp.reproduce.entry import Entry, Method
from fedexp.reproduce.jobs import RESULT_RULE
from fedexp.reproduce.request import Request
from fedexp.reproduce.results import Result
from fedexp.reproduce.selection import RULES
from fedexp.reproduce.tables import holes
from fedexp.reproduce.tables.cells import REDUCED, Column, TableCell, seeds_in_words
from fedexp.reproduce.tables.notes import Note, notes_of
from fedexp.terminal.numbers import count

NO_NUMBER = "without a published number"
OUTCOMES = (  # in the order in which they are listed: verdicts, what is said of counts, cells of ours only
    *("reproduced", "compatible", "above", "below", "unjudged", "reduced", "failed"),
    *("equal", "different", NO_NUMBER, "missing"),
)
RULE_WORDS = {RESULT_RULE: "after the last round"}
COMPARED = "Differences between methods, paired by seed, with 95 % intervals from three seeds on"
TUNING = {
    (False, "none"): "tune=none: one hyper-parameter setting per method",
    (False, "paper"): "tune=paper: the paper tried one hyper-parameter setting per method",
    (True, "none"): "tune=none: one hyper-parameter setting per method, where the paper took the best of several",
    (True, "paper"): "tune=paper: best of several hyper-parameter settings per method, as in the paper",
}


@dataclass(frozen=True)
class ReproTable:
    """What is asked for of an entry, with our numbers beside the published ones."""

    asked: Request
    entry: Entry  # as far as it is shown
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    seeds: tuple[int, ...]
    readings: tuple[tuple[Method, TableCell], ...]  # other readings that were run; they have no rows

    # ------------------------------------------------------------ forms
    def show(self, console: Console) -> None:
        """Prints the table, in blocks that fit the console."""
        from fedexp.reproduce.tables.terminal import show

        show(self, console)

    def markdown(self, level: int = 2) -> str:
        """The table in Markdown, with a heading of that level."""
        from fedexp.reproduce.tables.markdown import markdown

        return markdown(self, level)

    def latex(self) -> str:
        """The table in LaTeX; the document needs the package booktabs."""
        from fedexp.reproduce.tables.latex import latex

        return latex(self)

    def csv(self) -> str:
        """One row per cell and run, as a csv file."""
        from fedexp.reproduce.tables.tidy import csv_text

        return csv_text(self)

    # ------------------------------------------------------------ content
    @cached_property
    def cells(self) -> tuple[TableCell, ...]:
        """All cells."""
        return tuple(cell for column in self.columns for cell in column.cells if cell)

    @property
    def counts(self) -> bool:
        """Whether it is a table of counts, which are equal or not."""
        return self.entry.kind == "count"

    @cached_property
    def shown(self) -> tuple[Column, ...]:
        """The columns in which something was run; all, if nothing was."""
        return tuple(column for column in self.columns if column.was_run) or self.columns

    @property
    def wanted(self) -> tuple[TableCell, ...]:
        """The cells that are asked for, also of readings; the row of a reading's method only stands beside it."""
        names = {method.name for method in self.asked.methods}
        readings = (cell for method, cell in self.readings if method.name in names)
        return tuple(c for c in self.cells if self.counts or c.method in names) + tuple(readings)

    @property
    def compared(self) -> tuple[Column, ...]:
        """The columns in which methods can be compared with each other, seed by seed."""
        return tuple(column for column in self.columns if column.reference)

    @property
    def reduced(self) -> dict[str, int]:
        """How many cells are reduced in what."""
        return dict(Counter(cell.reduced for cell in self.cells if cell.reduced))

    @cached_property
    def commands(self) -> tuple[str, ...]:
        """The commands that fill the holes."""
        return tuple(holes.commands(self))

    @property
    def notes(self) -> tuple[Note, ...]:
        """What stands below the table."""
        return notes_of(self)

    # ------------------------------------------------------------ what stands above
    @property
    def heading(self) -> str:
        """Names the table, and says if some of it is reduced."""
        run = [cell for cell in self.cells if cell.was_run]
        part = "" if all(cell.reduced for cell in run) else "partly "
        return f"{self.entry.id}{f' ({part}reduced)' if self.reduced else ''}: {self.entry.title}"

    @property
    def outcome(self) -> tuple[tuple[str, int], ...]:
        """How many cells have which verdict, the words without a cell left out."""
        counted = Counter(cell.word or NO_NUMBER for cell in self.cells)
        return tuple((word, counted[word]) for word in OUTCOMES if counted[word])

    @property
    def extent(self) -> str:
        """For how many of the paper's numbers, and for how many cells without one, runs have ended."""
        printed = [cell.word not in self._without_an_answer for cell in self.cells if cell.published]
        others = [cell.word != "missing" for cell in self.cells if not cell.published]
        if not printed:
            return f"{sum(others)} of {count(len(others), 'cell')} run"
        besides = f" and {count(sum(others), 'other cell')}" if any(others) else ""
        return f"{sum(printed)} of {count(len(printed), 'printed number')}{besides} run"

    @property
    def _without_an_answer(self) -> tuple[str, ...]:
        """Words of cells for which nothing was done: a run may fail, but what cannot be counted was not."""
        return ("missing", "failed") if self.counts else ("missing",)

    @property
    def protocol(self) -> tuple[str, ...]:
        """What the numbers are, and how they were taken: rules of selection, seeds, rounds, tuning, what is reduced."""
        rules = "; ".join(f"{RULE_WORDS.get(rule, rule)} ({', '.join(of)})" for rule, of in self.rules.items())
        about = [f"Shown: {self.entry.about}." if self.entry.about else ""]
        about += [
            f"Selection: {rules}." if rules else "",
            *(RULES[rule].caution for rule in self.rules if rule in RULES),
        ]
        about += ["" if self.counts else f"{self._runs}."]
        about += [
            f"Reduced, without verdict ({REDUCED}): {words} ({count(n, 'cell')})." for words, n in self.reduced.items()
        ]
        return tuple(filter(None, about))

    @property
    def rules(self) -> dict[str, list[str]]:
        """The metrics by the name of the rule by which they are taken from a run."""
        rules: dict[str, list[str]] = {}
        for measure in self.entry.measures:
            rules.setdefault(measure.rule, []).append(measure.metric)
        return rules

    @property
    def rounds(self) -> str:
        """The rounds of its runs."""
        return rounds_of(result for cell in self.cells for result in cell.results)

    @property
    def _runs(self) -> str:
        alike = len({frozenset(cell.by_seed) for cell in self.cells if cell.by_seed}) <= 1
        seeds = seeds_in_words(self.seeds).capitalize() + ("" if alike else ", not all of them in each row")
        tuning = TUNING[self.entry.tuned, self.asked.tune] if self.entry.numbers else ""
        return "; ".join(filter(None, [seeds, self.rounds, tuning]))


def rounds_of(results: Iterable[Result]) -> str:
    """The rounds of finished runs, ``150 rounds`` or ``3 to 150 rounds``; empty if there are none."""
    rounds = sorted({result.rounds for result in results if result.status == "done"})
    ends = list(dict.fromkeys(rounds[:1] + rounds[-1:]))
    return " to ".join([*map(str, ends[:-1]), count(ends[-1], "round")]) if ends else ""
