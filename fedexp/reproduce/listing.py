"""All tables and figures: what they need, how long that takes here, how far we are. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedexp.reproduce import published
from fedexp.reproduce.cost import Cost, Costs
from fedexp.reproduce.entry import Entry
from fedexp.reproduce.local import on_file
from fedexp.reproduce.results import Result
from fedexp.reproduce.run import duration
from fedexp.terminal.numbers import DASH

KINDS = (
    "kind: train (federated runs), probe (a diagnostic on top of runs), count and partition (no runs), text (nothing "
    "to compute)"
)


def show_list(committed: Path, out: Path, console: Console) -> None:
    """Prints every entry. Cells are counted by the results that are committed or were left by runs in ``out``."""
    entries = published.entries()
    results = {name: on_file(name, committed, out) for name in entries}
    costs = Costs(result for found in results.values() for result in found)
    grid = Table("entry", "kind", "runs", "time", "state", "title", box=None, pad_edge=False, header_style="dim")
    grid.columns[2].justify = "right"
    for name, entry in entries.items():
        grid.add_row(name, entry.kind, *_work(entry, costs), _state(entry, results[name]), entry.title)
    console.print(grid)
    console.print(f"\n{len(entries)} entries. {KINDS}.")
    console.print(
        "time: one run after another on this machine, with the paper's scenes, methods and seeds and one setting of "
        "hyper-parameters; as finished runs took (=), partly so or scaled by them (≈), or by the cost model (~)."
    )


def _work(entry: Entry, costs: Costs) -> tuple[str, str]:
    """The number of runs, and their time."""
    if entry.kind not in ("train", "probe"):
        return DASH, DASH if entry.kind == "text" else "seconds"
    scenes = [published.scene(entry.paper, name) for name in entry.scenes]
    cost = costs.of_entry(entry, scenes)
    runs = len(scenes) * len(entry.runnable) * entry.seeds * len(entry.variations)
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
    best: dict[tuple[str, str, str], str] = {}
    for result in results:
        best[result.cell] = max(best.get(result.cell, ""), _standing(result), key=_RANK.__getitem__)
    states = [best.get(cell, "missing") for cell in _cells(entry)]
    metrics = {measure.metric for measure in entry.measures}
    states += [
        s for (setting, row, k), s in best.items() if setting in entry.stand_ins and row in entry.rows and k in metrics
    ]
    counted: Mapping[str, int] = {word: states.count(word) for word in ("done", "reduced", "failed", "missing")}
    return ", ".join(f"{number} {word}" for word, number in counted.items() if number)


_RANK = {"": 0, "missing": 1, "failed": 2, "reduced": 3, "done": 4}


def _standing(result: Result) -> str:
    if result.status == "done":
        return "reduced" if result.reduced else "done"
    return "missing" if result.status == "partial" else "failed"


def _cells(entry: Entry) -> list[tuple[str, str, str]]:
    """The cells that runs can fill: of printed numbers, or of all scenes and methods where none is printed."""
    methods = [method.name for method in entry.runnable]
    metrics = [measure.metric for measure in entry.measures]
    printed = [
        n.cell for n in entry.numbers if n.setting in entry.scenes and n.method in methods and n.metric in metrics
    ]
    return printed or [(s, m, each.metric) for s in entry.scenes for m in methods for each in entry.measured_in(s)]
