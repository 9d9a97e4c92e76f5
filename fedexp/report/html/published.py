"""The chapters that put our numbers beside published ones: tables with verdicts, and the papers' claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedexp.report.html.blocks import Cell, Commands, Folded, Heading, Listing, Paragraph, Part, Section, Table
from fedexp.reproduce.claim_verdict import ClaimVerdict
from fedexp.reproduce.tables.cells import Column, TableCell
from fedexp.reproduce.tables.table import OUTCOMES, ReproTable
from fedexp.terminal.numbers import count

LOOKS = {
    "reproduced": "good", "equal": "good", "confirmed": "good",
    "below": "bad", "failed": "bad", "different": "bad", "refuted": "bad",
    "missing": "quiet", "not run": "quiet",
}  # fmt: skip
NUMBERS = ("ours", "counted", "seeds", "published", "printed", "difference")
RANKED = {"ours": "our_ranks", "published": "published_ranks"}
RANKS = {1: "best", 2: "second"}


def overview(tables: Sequence[ReproTable]) -> Iterator[Section]:
    """How many cells of each table have which verdict, if there are several tables."""
    if len(tables) < 2:
        return
    outcomes = [dict(table.outcome) for table in tables]
    known = [word for word in OUTCOMES if any(word in outcome for outcome in outcomes)]
    rows = [
        (Cell(table.entry.id), Cell(table.entry.title, look="wrapped"), *(_counted(outcome, word) for word in known))
        for table, outcome in zip(tables, outcomes, strict=True)
    ]
    headings = (Heading("table"), Heading("what"), *(Heading(word, numeric=True) for word in known))
    yield Section("verdicts", "Verdicts", (Table("Cells by verdict", headings, tuple(rows)),))


def _counted(outcome: dict[str, int], word: str) -> Cell:
    number = outcome.get(word, 0)
    return Cell(str(number or ""), float(number), LOOKS.get(word, "") if number else "")


def beside(tables: Sequence[ReproTable]) -> Iterator[Section]:
    """Each table, ours beside the published one."""
    if tables:
        parts = tuple(Part(_anchor(table), table.heading, tuple(_blocks(table))) for table in tables)
        yield Section("published", "Published and ours", parts)


def _anchor(table: ReproTable) -> str:
    return table.entry.id.replace("/", "-")


def _blocks(table: ReproTable) -> Iterator[Any]:
    said = ", ".join(f"{number} {word}" for word, number in table.outcome)
    yield Paragraph(f"{table.extent}: {said}.")
    if table.protocol:
        yield Listing(table.protocol)
    ran = list(_rows(table, ran=True))
    if ran:
        yield _table(table, "Ours beside the published numbers", ran)
    if rest := list(_rows(table, ran=False)):
        yield Folded(f"{count(len(rest), 'published number')} not run yet", (_table(table, "Not run yet", rest),))
    if commands := tuple(dict.fromkeys(result.command for cell in table.cells for result in cell.results)):
        yield Folded("Commands of these numbers", (Commands(commands),))
    for note in table.notes:
        inside = Commands(note.lines) if note.commands else Listing(note.lines)
        yield Folded(note.title, (inside,))


def _table(table: ReproTable, caption: str, rows: Sequence[dict[str, Cell]]) -> Table:
    """A row for each cell; columns in which all rows are the same, or nothing is, are left out."""
    names = dict.fromkeys(name for row in rows for name in row)
    told = [
        name for name in names
        if name in ("verdict", "equal?") or any(row.get(name, Cell("")).text for row in rows)
        if name != "metric" or len({row["metric"].text for row in rows}) > 1
    ]  # fmt: skip
    headings = tuple(Heading(name, numeric=name in NUMBERS) for name in told)
    cells = tuple(tuple(row.get(name, Cell("")) for name in told) for row in rows)
    notes = ("† reduced: less than the paper's, without verdict.",) if table.reduced else ()
    return Table(f"{table.entry.id}: {caption[0].lower()}{caption[1:]}", headings, cells, notes=notes)


def _rows(table: ReproTable, *, ran: bool) -> Iterator[dict[str, Cell]]:
    for column in table.columns:
        fields = column.count_fields if table.counts else column.fields
        for number, cell in enumerate(column.cells):
            if cell is not None and cell.was_run == ran and (ran or cell.published):
                named = {
                    "setting": cell.setting,
                    "method": f"{cell.method} {cell.tuning}".strip(),
                    "metric": cell.metric,
                }
                yield {
                    **{name: Cell(text) for name, text in named.items()},
                    **{name: _field(column, cell, number, name, texts[number]) for name, texts in fields.items()},
                }


def _field(column: Column, cell: TableCell, row: int, name: str, text: str) -> Cell:
    if name in ("verdict", "equal?"):
        return Cell(text, look=LOOKS.get(text, ""), about=cell.verdict.why if cell.verdict else "")
    values = {"ours": cell.ours, "counted": cell.ours, "difference": cell.difference}
    values |= dict.fromkeys(("published", "printed"), cell.published.value if cell.published else None)
    ranks: dict[int, int] = getattr(column, RANKED[name]) if name in RANKED else {}
    runs = "\n".join(dict.fromkeys(_told(cell))) if name in ("ours", "counted") else ""
    return Cell(text, values.get(name), RANKS.get(ranks.get(row, 0), ""), about=runs)


def _told(cell: TableCell) -> Iterator[str]:
    """How the runs of a cell are made."""
    return (": ".join(filter(None, [result.run, result.command])) for result in cell.results)


# ---------------------------------------------------------------- claims
def claimed(verdicts: Iterable[ClaimVerdict]) -> Iterator[Section]:
    """What the papers claim, and what our runs say of it."""
    known = list(verdicts)
    if not known:
        return
    tally = ", ".join(f"{number} {word}" for word, number in Counter(v.word for v in known).items())
    rows = tuple(
        (
            Cell(verdict.claim.paper),
            Cell(verdict.said, look=LOOKS.get(verdict.word, "")),
            Cell(verdict.claim.says, look="wrapped", about=verdict.claim.source),
            Cell("\n".join(verdict.notes), look="wrapped lines"),
        )
        for verdict in known
    )
    headings = tuple(map(Heading, ("paper", "verdict", "claim", "evidence")))
    blocks: list[Any] = [Table(f"{count(len(known), 'claim')}: {tally}", headings, rows)]
    if commands := tuple(dict.fromkeys(command for verdict in known for command in verdict.commands)):
        blocks.append(Folded("To decide the others", (Commands(commands),)))
    yield Section("claims", "Claims", tuple(blocks))
