"""The chapter on what runs cost: bytes by message, seconds by kind of work."""

from __future__ import annotations

from collections.abc import Iterator

from fedexp.report import frames
from fedexp.report.html.blocks import Cell, Gallery, Heading, Paragraph, Section, Table
from fedexp.report.html.figures import Figures
from fedexp.report.html.layout import Layout
from fedexp.report.html.tables import EMPTY, Metrics, key_heading, results_table
from fedexp.report.load import Runs
from fedexp.terminal.numbers import human_bytes

SECONDS = {
    "train": "Training of clients.",
    "evaluate": "Tests of the server's model and of clients, within rounds.",
    "aggregate": "Adding up uploads, and the server's step.",
    "transfer": "Handing tensors to workers and back.",
    "setup": "Building networks and data.",
    "write": "Writing files.",
    "probe": "What probes observe.",
    "final": "All clients once more after the last round.",
    "elapsed": "The clock.",
}
ABOUT = (
    "Bytes are what a real federation would send, means over seeds. Seconds of work are summed over workers; elapsed "
    "is the clock."
)


def cost(runs: Runs, layout: Layout, figures: Figures) -> Iterator[Section]:
    """The chapter, if any run is finished."""
    if not runs.done.found:
        return
    tables = [_bytes(runs.done, layout), _seconds(runs, layout)]
    drawn = [Gallery(figures.of("cost"))] if figures.of("cost") else []
    yield Section("cost", "Cost", (Paragraph(ABOUT), *(table for table in tables if table), *drawn))


def _bytes(runs: Runs, layout: Layout) -> Table | None:
    """The bytes of a run by direction and message, means over seeds."""
    ledger = runs.ledger
    if ledger.empty:
        return None
    totals = ledger.groupby(["run", "direction", "name"])["bytes"].sum()
    visits = ledger.groupby("run")[["round", "client"]].apply(lambda rows: len(rows.drop_duplicates()))
    messages = sorted({(direction, name) for _, direction, name in totals.index})
    rows = []
    for scene, own in layout.by_scene(runs):
        names = dict(zip(own.config["run"], frames.labels(own.config, layout.methods), strict=True))
        for label, values in layout.labels(own).items():
            mine = [run for run, named in names.items() if named == label]
            each = [sum(totals.get((run, *message), 0) for run in mine) / len(mine) for message in messages]
            share = sum(totals[run].sum() / visits[run] for run in mine if run in visits) / len(mine)
            numbers = [_sized(value) for value in (*each, sum(each), share)]
            rows.append((*map(Cell, (*scene, *values)), *numbers))
    headings = [*map(key_heading, layout.keys), *(_message(*message) for message in messages)]
    headings.append(Heading("all", numeric=True, about="Up and down together."))
    headings.append(Heading("per client and round", numeric=True, about="Up and down together."))
    return Table("Bytes of a run by message", tuple(headings), tuple(rows))


def _message(direction: str, name: str) -> Heading:
    return Heading(name, numeric=True, group=direction)


def _sized(value: float) -> Cell:
    return Cell(human_bytes(value), float(value)) if value else EMPTY


def _seconds(runs: Runs, layout: Layout) -> Table | None:
    there = [name.removeprefix("seconds.") for name in runs.done.results if name.startswith("seconds.")]
    kinds = sorted(there, key=lambda kind: list(SECONDS).index(kind) if kind in SECONDS else len(SECONDS) - 1.5)
    metrics: Metrics = {f"seconds.{kind}": (kind, SECONDS.get(kind, "")) for kind in kinds}
    return results_table(runs, layout, metrics, "Seconds of a run by kind of work", marked=False)
