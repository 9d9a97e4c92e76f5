"""A published table with ours beside it, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedexp.reproduce.tables.cells import Column, lead_title
from fedexp.reproduce.tables.notes import Note
from fedexp.reproduce.tables.table import COMPARED, ReproTable

RANKS = {0: "{}", 1: "**{}**", 2: "<ins>{}</ins>"}
WORDS = {"below": "**below**", "failed": "**failed**", "different": "**different**"}
LEFT = ("verdict", "equal?")


def markdown(table: ReproTable, level: int) -> str:
    """One table per column, so that each stays narrow; counts, which are short, are in one."""
    lines = [f"{'#' * level} {escaped(table.heading)}", "", _outcome(table), ""]
    lines += [f"- {escaped(line)}" for line in table.protocol]
    for column in table.shown:
        lines += ["", f"**{escaped(column.title)}**", "", *_grid(table, column)]
    if table.compared:
        lines += ["", f"{COMPARED}:", "", *_leads(table)]
    for note in table.notes:
        lines += ["", *_note(note)]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text without anything that Markdown would read as its own."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def _outcome(table: ReproTable) -> str:
    return f"{table.extent}: {', '.join(f'{cells} {WORDS.get(word, word)}' for word, cells in table.outcome)}"


def _grid(table: ReproTable, column: Column) -> Iterator[str]:
    parts = column.count_fields if table.counts else column.fields
    yield table_row(["setting" if table.counts else "method", *parts])
    yield table_row(["---", *("---" if name in LEFT else "--:" for name in parts)])
    for row, name in enumerate(table.rows):
        if column.cells[row]:
            yield table_row([escaped(name), *_cells(column, parts, row)])


def _leads(table: ReproTable) -> Iterator[str]:
    columns = table.compared
    yield table_row(["method", *(escaped(lead_title(column)) for column in columns)])
    yield table_row(["---", *("--:" for _ in columns)])
    for row, name in enumerate(table.rows):
        if any(column.leads[row] for column in columns):
            yield table_row([escaped(name), *(escaped(column.leads[row]) for column in columns)])


def _cells(column: Column, parts: Mapping[str, Sequence[str]], row: int) -> Iterator[str]:
    ranks = {"ours": column.our_ranks, "published": column.published_ranks}
    for name, texts in parts.items():
        text = WORDS.get(texts[row], escaped(texts[row]))
        yield RANKS[ranks.get(name, {}).get(row, 0)].format(text)


def table_row(fields: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(fields)} |"


def _note(note: Note) -> list[str]:
    if note.commands:
        return [f"{note.title}:", "", "```bash", *note.lines, "```"]
    return [f"{note.title}:", "", *(f"- {escaped(line)}" for line in note.lines)]
