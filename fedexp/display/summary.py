"""The few lines a finished run ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedexp.display.live import COLOURS
from fedexp.terminal.numbers import DASH, clock, count, human_bytes, percent

ABSENT = {"aggregation": "no global model", "personalization": "no personal models"}

PAPERS = (("aggregation", "GA"), ("personalization", "PA"))  # what a paper's own protocol adds

MISSING = ("owned", "absent", "rare", "forgotten")  # of the measures of missing classes


def summary(result: Mapping[str, Any], console: Console) -> None:
    """Prints what a run reached, what it sent, where its time went and where its files are."""
    console.print()
    console.print(_accuracies(result))
    console.print()
    console.print(_facts(result))


def _accuracies(result: Mapping[str, Any]) -> Table:
    windows = {result[kind]["window"] for kind in ABSENT if "window" in result.get(kind, ())}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("accuracy", no_wrap=True)
    for heading in ("last", "best", f"mean of last {max(windows, default='few')}", _all_clients(result)):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, reason in ABSENT.items():
        table.add_row(*_accuracy(kind, result[kind]) if kind in result else (kind, DASH, DASH, DASH, DASH, reason))
    return table


def _all_clients(result: Mapping[str, Any]) -> str:
    """Says so if they are not all."""
    detail = result.get("personalization", {}).get("all_clients_detail", {})
    asked, there = len(detail.get("asked", ())), detail.get("of", 0)
    return f"{asked} of {there} clients" if asked < there else "all clients"


def _accuracy(kind: str, block: Mapping[str, Any]) -> tuple[Text, ...]:
    return (
        Text(kind),
        Text(percent(block.get("last")), style=f"bold {COLOURS[kind]}"),
        Text(percent(block.get("best"))),
        Text(percent(block.get("mean"), block.get("std"))),
        Text(percent(block.get("all_clients"))),
    )


def _facts(result: Mapping[str, Any]) -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("run", Text(f"{result.get('run', DASH)}, {count(result.get('rounds', 0), 'round')}"))
    if papers := [f"{name} {percent(result[kind][name])}" for kind, name in PAPERS if name in result.get(kind, ())]:
        facts.add_row("paper's", Text(" · ".join(papers)))
    measured = result.get("missing", {})
    if missing := [f"{key} {percent(measured[key])}" for key in MISSING if key in measured]:
        facts.add_row("classes", Text(" · ".join(missing)))
    if "bytes" in result:
        facts.add_row("sent", Text(" · ".join(f"{human_bytes(count)} {way}" for way, count in result["bytes"].items())))
    if "seconds" in result:
        facts.add_row("time", Text(_time(result["seconds"], result.get("workers", 1))))
    for sentence in result.get("caveats", ()):
        facts.add_row("note", Text(sentence))
    if "path" in result:
        facts.add_row("files", Text(str(result["path"])))
    return facts


def _time(seconds: Mapping[str, float], workers: int) -> str:
    """The time on the clock, then the shares of each kind of work in it, or in the sum over all workers."""
    kinds = {kind: spent for kind, spent in seconds.items() if kind != "elapsed"}
    work = sum(kinds.values())
    elapsed = seconds.get("elapsed", work)
    took = clock(elapsed)
    if workers > 1 and work > elapsed:
        took += f"; {clock(work)} of work by {count(workers, 'worker')}"
    whole = max(elapsed, work)
    kinds["other"] = kinds.get("other", 0.0) + whole - work
    shares = sorted(((spent / whole, kind) for kind, spent in kinds.items() if whole > 0), reverse=True)
    return " · ".join([took, *(f"{kind} {100 * share:.0f} %" for share, kind in shares if share >= 0.005)])
