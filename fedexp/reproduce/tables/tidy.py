"""A published table with ours beside it, as rows of a csv file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fedexp.reproduce.entry import Entry
from fedexp.reproduce.results import COLUMNS
from fedexp.reproduce.tables.cells import Column, TableCell
from fedexp.reproduce.tables.table import ReproTable

CSV_COLUMNS = (
    *COLUMNS,
    *("published", "spread", "tolerance", "basis", "difference", "interval_low", "interval_high", "verdict", "why"),
    "spread_of_settings",
    *("reference", "lead", "lead_low", "lead_high"),  # over another method, paired by seed
)


def csv_text(table: ReproTable) -> str:
    """The rows as a csv file."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(csv_rows(table))
    return text.getvalue()


def csv_rows(table: ReproTable) -> list[dict[str, Any]]:
    """One row per cell and run, with the published number and the verdict; cells without runs have one row.

    Other readings that were run come last, under their own names.
    """
    readings = (Column(cell.setting, (cell,), ranked=False) for _, cell in table.readings)
    columns = (*table.columns, *readings)
    return [row for column in columns for cell in column.cells if cell for row in _rows(column, cell, table.entry)]


def _rows(column: Column, cell: TableCell, entry: Entry) -> Iterator[dict[str, Any]]:
    verdict, number = cell.verdict, cell.published
    tolerance = verdict.tolerance if verdict else None
    lead = column.lead(cell)
    low, high = (verdict.interval if verdict else None) or (None, None)
    of_cell = {
        "published": number.printed if number else None,
        "spread": number.spread if number else None,
        "tolerance": tolerance.points if tolerance else None,
        "basis": tolerance.basis if tolerance else "",
        "difference": cell.difference,
        "interval_low": low,
        "interval_high": high,
        "verdict": cell.word,
        "why": verdict.why if verdict else "",
        "spread_of_settings": verdict.spread_of_settings if verdict else None,
        "reference": column.reference.method if column.reference and lead else None,
        "lead": lead.mean if lead else None,
        **dict(zip(("lead_low", "lead_high"), (lead.interval if lead else None) or (None, None), strict=True)),
    }
    names = {"entry": entry.id, "setting": cell.setting, "method": cell.method, "metric": cell.metric}
    bare = {**dict.fromkeys(COLUMNS), **names, "value": cell.ours, "reduced": cell.reduced}
    runs = [asdict(result) for result in cell.results] or [bare]
    return ({**run, **of_cell} for run in runs)
