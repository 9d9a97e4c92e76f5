"""A published table with ours beside it, on screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedexp.reproduce.tables.cells import REDUCED, Column, lead_title
from fedexp.reproduce.tables.notes import Note
from fedexp.reproduce.tables.table import COMPARED, ReproTable
from fedexp.sweep.jobs import TABLE_STYLE, say

C = TypeVar("C")  # a column
STYLES = {
    "reproduced": "green",
    "equal": "green",
    "compatible": "cyan",
    "above": "yellow",
    "below": "bold red",
    "different": "bold red",
    "failed": "bold red",
    "reduced": "magenta",
    "unjudged": "dim",
    "missing": "dim",
}
RANKS = {1: "bold", 2: "underline"}
LEFT = ("verdict", "equal?")  # the other parts are numbers
GAP = "  "


def show(table: ReproTable, console: Console) -> None:
    """Prints the table: what came out, how it was taken, as many columns side by side as fit, and the notes."""
    console.print(Text(table.heading, style="bold"))
    console.print(_outcome(table))
    for line in table.protocol:
        console.print(Text(line, style="magenta" if REDUCED in line else "dim"))
    for grid in side_by_side(table.shown, lambda columns: _grid(table, columns), console):
        console.print()
        console.print(grid)
    if table.compared:
        console.print(f"\n{COMPARED}")
        for grid in side_by_side(table.compared, lambda columns: _leads(table, columns), console):
            console.print(Padding(grid, (0, 0, 0, 2), expand=False))
    for note in table.notes:
        _show_note(note, console)
    if table.notes:  # which are long: what came out may be out of sight by now
        console.print(Text(f"\n{table.entry.id}: ").append_text(_outcome(table)))


def _outcome(table: ReproTable) -> Text:
    words = [Text(f"{cells} {word}", style=STYLES.get(word, "")) for word, cells in table.outcome]
    return Text(f"{table.extent}: ").append_text(Text(", ").join(words))


def _show_note(note: Note, console: Console) -> None:
    console.print(Text(f"\n{note.title}"))
    for line in note.lines:
        if note.commands:
            say(console, f"  {line}")
        else:
            console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2), expand=False))


def side_by_side(columns: Sequence[C], grid: Callable[[Sequence[C]], Table], console: Console) -> Iterator[Table]:
    """Tables that fit, each with the names of the rows and at least one column."""
    while columns:
        taken = 1
        while taken < len(columns) and _fits(grid(columns[: taken + 1]), console):
            taken += 1
        yield grid(columns[:taken])
        columns = columns[taken:]


def _fits(grid: Table, console: Console) -> bool:
    return console.measure(grid, options=console.options.update(width=1000)).maximum <= console.width


def _grid(table: ReproTable, columns: Sequence[Column]) -> Table:
    grid = Table(**{**TABLE_STYLE, "padding": (0, 4, 0, 0)})
    grid.add_column("\nsetting" if table.counts else "\nmethod", overflow="fold")
    cells: list[list[Text]] = []
    for column in columns:
        heading, texts = _texts(column, counts=table.counts)
        grid.add_column(heading, no_wrap=True)
        cells.append(texts)
    for row, name in enumerate(table.rows):
        if any(column.cells[row] for column in columns):
            grid.add_row(Text(name), *(texts[row] for texts in cells))
    return grid


def _leads(table: ReproTable, columns: Sequence[Column]) -> Table:
    grid = Table(**{**TABLE_STYLE, "padding": (0, 4, 0, 0)})
    grid.add_column("method", overflow="fold")
    for column in columns:
        grid.add_column(lead_title(column), no_wrap=True)
    for row, name in enumerate(table.rows):
        if any(column.leads[row] for column in columns):
            grid.add_row(Text(name), *(Text(column.leads[row]) for column in columns))
    return grid


def _texts(column: Column, *, counts: bool) -> tuple[Text, list[Text]]:
    """The heading of a column and its rows, the parts of which stand below each other."""
    parts = column.count_fields if counts else column.fields
    heading = Text(f"{column.title}\n", style="bold")
    rows = [Text() for _ in column.cells]
    for number, (name, texts) in enumerate(parts.items()):
        aligned = _aligned([name, *_below_each_other(texts)], left=name in LEFT)
        gap = GAP if number else ""
        heading.append(gap + aligned[0], style="not bold dim")
        for row, text in enumerate(aligned[1:]):
            rows[row].append(gap)
            rows[row].append_text(_styled(text, _style(column, name, row)))
    return heading, rows


def _below_each_other(texts: Sequence[str]) -> list[str]:
    """Makes room for the mark of reduced numbers behind the others."""
    marked = any(text.endswith(REDUCED) for text in texts)
    return [f"{text} " if marked and text and not text.endswith(REDUCED) else text for text in texts]


def _aligned(texts: Sequence[str], *, left: bool) -> list[str]:
    width = max(map(cell_len, texts))
    return [text.ljust(width) if left else text.rjust(width) for text in texts]


def _style(column: Column, part: str, row: int) -> str:
    cell = column.cells[row]
    if cell is None:
        return ""
    if part == "ours" and cell.ours is None:
        return STYLES.get(cell.word, "")
    ranks = {"ours": column.our_ranks, "published": column.published_ranks}.get(part, {})
    return STYLES.get(cell.word, "") if part in LEFT else RANKS.get(ranks.get(row, 0), "")


def _styled(text: str, style: str) -> Text:
    """Styles a text, but not the space around it, which would be underlined."""
    bare = text.strip()
    start = text.find(bare)
    return Text.assemble(text[:start], (bare, style), text[start + len(bare) :])
