"""A published table with ours beside it, in LaTeX with the package booktabs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedexp.reproduce.tables.cells import REDUCED, Column, TableCell
from fedexp.reproduce.tables.table import ReproTable

Escape = Callable[[str], str]
MAX_COLUMNS = 4  # side by side; more are set below each other
MARKS = {
    "reproduced": r"$^{=}$",
    "equal": r"$^{=}$",
    "compatible": r"$^{\approx}$",
    "above": r"$^{+}$",
    "below": r"$^{-}$",
    "different": r"$^{\neq}$",
    "reduced": r"$^{\dagger}$",
    "failed": r"$^{\times}$",
}
BELOW = ("Verdicts", "Spread")  # the notes that are set below the table
RANKS = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}
SPECIAL = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "≈": r"$\approx$",
    "√": r"$\surd$",
    "ε": r"$\varepsilon$",
    "†": r"$^{\dagger}$",
    "–": "--",
    "…": r"\dots{}",
    "·": r"$\cdot$",
}


def latex(table: ReproTable) -> str:
    """A floating table: our best number of a column is bold, the second underlined, and so are the paper's."""
    columns = table.shown
    blocks = [columns[start : start + MAX_COLUMNS] for start in range(0, len(columns), MAX_COLUMNS)]
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_caption(table)}}}", rf"\label{{tab:{_label(table)}}}"]
    lines.append(r"\par\medskip")
    for number, block in enumerate(blocks):
        lines += [r"\par\medskip"] if number else []
        lines += _tabular(table, block)
    notes = [line for note in table.notes if note.title in BELOW for line in note.lines]
    lines += [r"\par\smallskip\footnotesize", *map(escaped, notes)] if notes else []
    return "\n".join([*lines, r"\end{table}", ""])


def escaped(text: str) -> str:
    """Text without anything that LaTeX would read as its own."""
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def _label(table: ReproTable) -> str:
    return table.entry.id.replace("/", ":")


def _caption(table: ReproTable) -> str:
    used = {word for column in table.shown for cell in column.cells if cell for word in _words(cell)}
    legend = ", ".join(f"{mark}~{word}" for word, mark in MARKS.items() if word in used)
    sentences = [*map(escaped, [f"{table.heading}.", *table.protocol]), f"{legend}." if legend else ""]
    return " ".join(filter(None, sentences))


def _tabular(table: ReproTable, columns: Sequence[Column]) -> Iterator[str]:
    heads = [_heads(table, column) for column in columns]
    yield rf"\begin{{tabular}}{{l{''.join('r' * len(names) for names in heads)}}}"
    yield r"\toprule"
    titles = (rf"\multicolumn{{{len(h)}}}{{c}}{{{escaped(c.title)}}}" for c, h in zip(columns, heads, strict=True))
    yield table_row(["", *titles])
    yield "".join(rules(heads))
    yield table_row(["setting" if table.counts else "method", *(name for names in heads for name in names)])
    yield r"\midrule"
    for row, name in enumerate(table.rows):
        if any(column.cells[row] for column in columns):
            yield table_row([escaped(name), *(text for column in columns for text in _cells(table, column, row))])
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _heads(table: ReproTable, column: Column) -> list[str]:
    if table.counts:
        return ["printed", "counted"]
    return ["ours", "published"] if column.has_published else ["ours"]


def rules(heads: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines below the titles of columns, of which each has several parts."""
    start = 2
    for names in heads:
        yield rf"\cmidrule(lr){{{start}-{start + len(names) - 1}}}"
        start += len(names)


def _cells(table: ReproTable, column: Column, row: int) -> Iterator[str]:
    cell = column.cells[row]
    fields = column.count_fields if table.counts else column.fields
    ranks = {"ours": column.our_ranks, "published": column.published_ranks}
    for name in _heads(table, column):
        text = RANKS[ranks.get(name, {}).get(row, 0)].format(escaped(fields[name][row].removesuffix(REDUCED)))
        ours = cell is not None and name in ("ours", "counted")
        yield text + "".join(MARKS.get(word, "") for word in _words(cell) if ours)


def _words(cell: TableCell | None) -> list[str]:
    """What is said of a cell by marks: it may be reduced and have failed."""
    if cell is None:
        return []
    return list(dict.fromkeys([*(["reduced"] if cell.reduced else []), cell.word]))


def table_row(fields: Sequence[str]) -> str:
    """A line of a table. A bracket at its beginning would be read as the length that the line break before may have."""
    line = " & ".join(fields)
    return rf"{'{}' if line.startswith('[') else ''}{line} \\"
