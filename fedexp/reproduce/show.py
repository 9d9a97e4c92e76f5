"""Shows the table of a request, on screen or in a file. Free of torch."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedexp.reproduce.jobs import STAND_IN, special
from fedexp.reproduce.request import Request
from fedexp.reproduce.results import Result
from fedexp.reproduce.tables.making import make_table
from fedexp.reproduce.tables.table import ReproTable
from fedexp.reproduce.verdict import judge
from fedexp.system.files import write_atomically, writing
from fedexp.terminal.console import open_console

FORMATS = ("terminal", "markdown", "latex", "csv")
WANTING = ("missing", "failed", "below", "different")  # of a table's cells
WIDTH_IN_A_FILE = 120  # columns


@dataclass(frozen=True)
class Display:
    """How tables are shown, and where."""

    console: Console
    form: str = "terminal"
    to: Path | None = None  # a file instead of the screen

    def __call__(self, asked: Request, results: Sequence[Result]) -> bool:
        """Shows a table; returns whether nothing is missing, shorter than asked for, failed, below or different."""
        table = table_of(asked, results)
        if self.form == "terminal" and self.to is None:
            table.show(self.console)
        elif self.to is None:
            self.console.print(_written(table, self.form), soft_wrap=True, end="")
        else:
            write_text(self.to, _written(table, self.form))
            self.console.print(f"{asked.entry.id} is in {self.to}.", soft_wrap=True)
        exact = not asked.any_seed or asked.tune == "paper" or asked.entry.of_grids  # each of the runs is asked for
        readings = {(scene.name, m.name) for scene in asked.scenes for m in asked.methods if m.reading_of}
        absent = readings - {(cell.setting, method.name) for method, cell in table.readings}
        enough = ("", STAND_IN)
        short = not special(asked) and any(cell.reduced not in enough for cell in table.wanted)
        lacking = absent or short or any(cell.word in WANTING for cell in table.wanted)
        return not (lacking or (exact and table.commands))


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole or not at all, in a folder that is made if it is not there."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())


def table_of(asked: Request, results: Iterable[Result]) -> ReproTable:
    """The table with what is asked for. What only claims need is left out."""
    found = _of_table(asked, results)
    verdicts = {n.cell: judge(n, asked.entry, found, tune=asked.tune) for n in asked.shown.numbers}
    return make_table(asked, verdicts, [result for result in found if asked.includes(result)])


def _of_table(asked: Request, results: Iterable[Result]) -> list[Result]:
    """The results that a table shows: not what only claims need, nor settings that were not tried for it."""
    entry = asked.entry
    printed = {measure.metric for measure in entry.measures}
    known = (*entry.runnable, *entry.readings) if entry.numbers and asked.tune == "paper" else ()
    tried = {method.name: entry.tuning_names(method, asked.tune) for method in known}
    return [r for r in results if r.metric in printed and r.tuning in tried.get(r.method, (r.tuning,))]


def _written(table: ReproTable, form: str) -> str:
    text = io.StringIO(newline="")
    if form == "terminal":
        table.show(open_console(file=text, width=WIDTH_IN_A_FILE, highlight=False, markup=False))
    else:
        text.write({"markdown": table.markdown, "latex": table.latex, "csv": table.csv}[form]())
    return text.getvalue().rstrip("\n") + "\n"
