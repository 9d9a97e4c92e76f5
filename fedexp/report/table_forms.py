"""How a table of results is written: on screen, in Markdown, in LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedexp.report.table import Column, ResultTable
from fedexp.reproduce.tables import latex as latex_form
from fedexp.reproduce.tables import markdown as markdown_form
from fedexp.reproduce.tables.terminal import RANKS, side_by_side
from fedexp.sweep.jobs import TABLE_STYLE

RANK = "mean rank"


# ---------------------------------------------------------------- on screen
def show(table: ResultTable, console: Console) -> None:
    """Prints the table: what it is, as many columns side by side as fit, and notes."""
    console.print(Text(table.caption, style="dim"))
    for grid in side_by_side(table.columns, lambda columns: _grid(table, columns), console):
        console.print()
        console.print(grid)
    for note in table.notes:
        console.print(Text(note, style="yellow"))


def _grid(table: ResultTable, columns: Sequence[Column]) -> Table:
    grid = Table(**{**TABLE_STYLE, "padding": (0, 3, 0, 0)})
    grid.add_column(f"\n{table.stub}", overflow="fold")
    texts: list[list[Text]] = []
    for column in columns:
        for number, (heading, cells) in enumerate(table.fields(column).items()):
            title = "" if number else column.title
            grid.add_column(Text.assemble((title, "bold"), "\n", (heading, "dim")), justify="right", no_wrap=True)
            texts.append([Text(text, style="" if number else _style(column, row)) for row, text in enumerate(cells)])
    if table.ranks and columns[-1] is table.columns[-1]:
        grid.add_column(Text(f"\n{RANK}", style="dim"), justify="right")
        texts.append([Text(text) for text in table.rank_texts])
    for row, name in enumerate(table.rows):
        grid.add_row(Text(name), *(cells[row] for cells in texts))
    return grid


def _style(column: Column, row: int) -> str:
    return RANKS.get(column.best.get(row, 0), "")


# ---------------------------------------------------------------- in Markdown
def markdown(table: ResultTable) -> str:
    """One table, the best of a column bold, the second underlined."""
    escaped, row = markdown_form.escaped, markdown_form.table_row
    heads = [f"{column.title}, {heading}" for column in table.columns for heading in table.fields(column)]
    ranks = [RANK] if table.ranks else []
    lines = [escaped(table.caption), "", row([escaped(table.stub), *map(escaped, heads), *ranks])]
    lines.append(row(["---", *["--:"] * (len(heads) + len(ranks))]))
    for number, name in enumerate(table.rows):
        lines.append(row([escaped(name), *_cells(table, number, markdown_form.RANKS, escaped)]))
    notes = [f"- {escaped(note)}" for note in table.notes]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


# ---------------------------------------------------------------- in LaTeX
def latex(table: ResultTable) -> str:
    """A floating table, the best of a column bold, the second underlined."""
    escaped, row = latex_form.escaped, latex_form.table_row
    heads = [list(table.fields(column)) for column in table.columns]
    ranks = [RANK] if table.ranks else []
    titles = [
        rf"\multicolumn{{{len(names)}}}{{c}}{{{escaped(column.title)}}}"
        for column, names in zip(table.columns, heads, strict=True)
    ]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(table.caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * (sum(map(len, heads)) + len(ranks))}}}",
        r"\toprule",
        row(["", *titles, *[""] * len(ranks)]),
        "".join(latex_form.rules(heads)),
        row([escaped(table.stub), *(escaped(name) for names in heads for name in names), *ranks]),
        r"\midrule",
        *(
            row([escaped(name), *_cells(table, number, latex_form.RANKS, escaped)])
            for number, name in enumerate(table.rows)
        ),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    lines += [r"\par\smallskip\footnotesize", *map(escaped, table.notes)] if table.notes else []
    return "\n".join([*lines, r"\end{table}", ""])


def _cells(table: ResultTable, row: int, ranks: dict[int, str], escaped: latex_form.Escape) -> Iterator[str]:
    for column in table.columns:
        for number, texts in enumerate(table.fields(column).values()):
            yield ranks[0 if number else column.best.get(row, 0)].format(escaped(texts[row]))
    if table.ranks:
        yield table.rank_texts[row]
