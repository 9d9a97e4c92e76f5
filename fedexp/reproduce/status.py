"""The tables as they stand, and their results among the committed ones. Nothing is trained. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fedexp.reproduce.collect import collect, with_computed
from fedexp.reproduce.jobs import special
from fedexp.reproduce.local import begun, noted, our_results
from fedexp.reproduce.request import Request
from fedexp.reproduce.results import Result, known_results, merged, results_file, write_results
from fedexp.reproduce.show import Display
from fedexp.terminal.numbers import count


def show_status(requests: Sequence[Request], committed: Path, display: Display, *, every: bool) -> int:
    """Shows tables; 0 if nothing that is asked for is missing, failed, below or different.

    Args:
        requests: What is asked for.
        committed: The folder with the results of finished runs.
        display: Shows a table.
        every: Whether all entries are asked for: those without results are only counted then.
    """
    complete, empty = True, 0
    for asked in requests:
        if asked.entry.kind in ("text", "partition"):
            if not every:
                display.console.print(f"{asked.entry.id}: {asked.entry.title}. There is nothing to compare.")
            continue
        results = our_results(asked, committed, collect(begun(asked.with_readings)))
        if every and not results:
            complete, empty = False, empty + 1
        else:
            complete = display(asked, results) and complete
    if empty:
        display.console.print(f"{empty} more tables and figures have no results yet: see `list`.")
    return int(not complete)


def export(asked: Request, committed: Path, console: Console) -> int:
    """Puts the results of ended runs on this machine into the csv file of their entry."""
    found = _ended(asked)
    if not found:
        console.print(f"No run of {asked.entry.id} has ended in {asked.out}.", soft_wrap=True)
        return 1
    file = results_file(committed, asked.entry.id)
    known = known_results(committed, asked.entry.id)
    write_results(file, with_computed(asked.entry, merged(known, found)), asked.entry)
    console.print(f"{count(len(found), 'result')} of {asked.entry.id} in {file}.", soft_wrap=True)
    return 0


def _ended(asked: Request) -> list[Result]:
    """What can be committed: counts, or results of runs on this machine that have ended."""
    if asked.entry.kind == "count":
        from fedexp.reproduce.counts import counted

        return [result for result in counted(asked.entry, asked.overrides) if result.status == "done"]
    found = collect(begun(asked.with_readings))
    if not special(asked):  # else only runs of this length, and with these settings, are asked for
        found = merged([r for r in noted(asked.out, asked.entry.id) if asked.includes(r)], found)
    place = str(asked.out.absolute())
    return [replace(r, error=r.error.replace(place, "…")) for r in found if r.status != "partial"]
