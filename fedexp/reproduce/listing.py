"""All tables and figures: what they need, how long that takes here, how far we are. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedexp.reproduce import published
from fedexp.reproduce.cost import Cost, Costs
from fedexp.reproduce.entry import Entry
from fedexp.reproduce.local import on_file
from fedexp.reproduce.request import every_scene, request
from fedexp.reproduce.results import Result
from fedexp.reproduce.run import duration
from fedexp.reproduce.show import table_of
from fedexp.terminal.numbers import DASH

WITH_TITLES = 120  # columns
KINDS = (
    "kind: train (federated runs), probe (a diagnostic on top of runs), count and partition (no runs), text (nothing "
    "to compute)"
)


def show_list(committed: Path, out: Path, console: Console) -> None:
    """Prints every entry. Cells are counted by the results that are committed or were left by runs in ``out``."""
    entries = published.entries()
    results = {name: on_file(name, committed, out) for name in entries}
    costs = Costs(result for found in results.values() for result in found)
    headings = ("entry", "kind", "runs", "time", "state", *(["title"] if console.width >= WITH_TITLES else []))
    grid = Table(*headings, box=None, pad_edge=False, header_style="dim")
    for column in grid.columns[:4]:
        column.no_wrap = True
    grid.columns[2].justify = "right"
    for name, entry in entries.items():
        row = (name, entry.kind, *_work(entry, costs), _state(entry, results[name]), entry.title)
        grid.add_row(*row[: len(headings)])
    console.print(grid)
    console.print(f"\n{len(entries)} entries. {KINDS}.")
    console.print(
        "time: one run after another on this machine, with the paper's scenes, methods and seeds and one setting of "
        "hyper-parameters; as finished runs took (=), partly so or scaled by them (≈), or by the cost model (~). "
        "state: the cells of the table."
    )


def _work(entry: Entry, costs: Costs) -> tuple[str, str]:
    """The number of runs, and their time."""
    if entry.kind not in ("train", "probe"):
        return DASH, DASH if entry.kind == "text" else "seconds"
    scenes = [published.scene(entry.paper, name) for name in entry.scenes]
    cost = costs.of_entry(entry, scenes)
    runs = len(scenes) * entry.n_runs
    return (str(runs), _marked(cost)) if runs else (DASH, DASH)


def _marked(cost: Cost) -> str:
    mark = "=" if not cost.scaled + cost.modelled + cost.unknown else "≈" if cost.measured + cost.scaled else "~"
    return f"{mark} {duration(cost).removeprefix('about ')}"


def _state(entry: Entry, results: Sequence[Result]) -> str:
    """How many cells are done, reduced, failed and missing; reduced ones are also those of stand-in scenes."""
    if entry.kind == "text":
        return DASH
    if entry.kind in ("count", "partition"):
        return "computed when asked for"
    if entry.kind == "probe" and not entry.probes:
        return "no runs"
    if not entry.scenes:
        return f"of the runs of {', '.join(entry.depends_on)}"
    outcome = dict(table_of(request(entry, settings=every_scene(entry)), results).outcome)
    others = {word: outcome.pop(word, 0) for word in ("reduced", "failed", "missing")}
    counted = {"done": sum(outcome.values()), **others}
    return ", ".join(f"{number} {word}" for word, number in counted.items() if number)
