"""The chapter on what went wrong: runs that are not finished, files that cannot be read, clients that were left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedexp.report.html.blocks import Cell, Commands, Heading, Part, Section, Table, words
from fedexp.report.load import Runs
from fedexp.terminal.numbers import count

OK = "ok"


def failures(runs: Runs) -> Iterator[Section]:
    """The chapter, if anything went wrong."""
    blocks: list[Any] = []
    if left := [run for run in runs.found if run.status != "done"]:
        rows = tuple(
            (Cell(r.name, look="code"), Cell(r.status, look="bad"), Cell(r.rounds), Cell(r.note, look="wrapped"))
            for r in left
        )
        caption = f"{count(len(left), 'run')} not finished, and in no table or figure"
        blocks.append(Table(caption, tuple(map(Heading, ("run", "status", "rounds", "what is known"))), rows))
        if lines := [run.command for run in left if run.command]:
            blocks.append(Part("continue", "To go on", (Commands(tuple(lines)),)))
    if runs.complaints:
        told = [f"{name}: {complaint}" for name, complaint in runs.complaints.items()]
        blocks.append(Part("unread", "Files that could not be read", words(told)))
    if table := _clients(runs):
        blocks.append(table)
    if blocks:
        yield Section("failures", "Failures", tuple(blocks))


def _clients(runs: Runs) -> Table | None:
    """How often clients were left out of a round, and why."""
    rows = runs.clients
    if "status" not in rows or (troubled := rows[rows["status"] != OK]).empty:
        return None
    counted = troubled.groupby(["run", "status"]).size()
    return Table(
        "Clients that were left out of a round",
        (Heading("run"), Heading("why"), Heading("times", numeric=True)),
        tuple(
            (Cell(run, look="code"), Cell(why, look="wrapped"), Cell(f"{times:,}", float(times)))
            for (run, why), times in counted.items()
        ),
    )
