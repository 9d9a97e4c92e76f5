"""Runs what a table is made of, after saying what that is and how long it takes, and shows the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedexp.reproduce import published
from fedexp.reproduce.collect import collect
from fedexp.reproduce.cost import Cost, Costs
from fedexp.reproduce.jobs import ReproJob, distinct, jobs_of
from fedexp.reproduce.launch import check_launcher, finished, launch, missing_data
from fedexp.reproduce.local import note, on_file, our_results
from fedexp.reproduce.request import Request
from fedexp.reproduce.results import Result
from fedexp.sweep.progress import roughly
from fedexp.terminal.numbers import DASH, count

Show = Callable[[Request, Sequence[Result]], bool]  # shows a table; whether it is complete


def run(asked: Request, committed: Path, show: Show, console: Console, *, dry: bool) -> int:
    """Runs what is missing on this machine, and shows the table; returns the exit code.

    Args:
        asked: What is asked for.
        committed: The folder with the results of finished runs.
        show: Shows the table.
        console: Where the rest is said.
        dry: Only say what would run.
    """
    with console.status("composing the runs"):
        jobs = jobs_of(asked)
    runs = distinct(jobs)
    lines = check_launcher(asked.launcher, len(runs))
    known = [result for name in published.entries() for result in on_file(name, committed, asked.out)]
    on_record = {result.run for result in known if result.status == "done"}
    _announce(asked, runs, Costs([*known, *collect(jobs)]), on_record, console)
    due = [job for job in runs if not finished(job)]
    if dry:
        return 0
    lacking = missing_data(due, console) if due else {}
    for scene, complaint in lacking.items():
        console.print(f"{scene} cannot be run, because its data are missing. {complaint}", soft_wrap=True)
    try:
        launched = launch([job for job in runs if job.scene.name not in lacking], lines, console)
    finally:  # also after Ctrl-C
        note(jobs, asked.out)
    show(asked, our_results(asked, committed, collect(jobs, launched.errors)))
    for job in (job for job in due if job.path in launched.errors):
        console.print(f"failed: {job.command}: {launched.errors[job.path]}", soft_wrap=True)
    if lacking:
        console.print(f"not run, because data are missing (see above): {', '.join(lacking)}", soft_wrap=True)
    if launched.trouble:
        console.print(f"{launched.trouble} The same command runs what is missing.", soft_wrap=True)
    return int(bool(lacking or launched.errors or launched.trouble))


def _announce(asked: Request, runs: Sequence[ReproJob], costs: Costs, on_record: Set[str], console: Console) -> None:
    """Says what will run, and how long that takes; ``on_record`` are the runs with results on file."""
    due = [job for job in runs if not finished(job)]
    parts = [count(len(asked.scenes), "setting"), count(len(asked.methods), "method"), count(len(asked.seeds), "seed")]
    console.print(f"{asked.entry.id}: {asked.entry.title}")
    known = sum(job.run in on_record for job in due)
    more = f" {known} of the others have results on file, which `status` shows." if known else ""
    done = f"{len(runs) - len(due)} of them done on this machine."
    console.print(f"{' × '.join(parts)}: {count(len(runs), 'run')}, {done}{more}", soft_wrap=True)
    grid = Table("setting", "rounds", "runs", "done", "left to run", box=None, pad_edge=False, header_style="dim")
    for scene in dict.fromkeys(job.scene for job in runs):
        own = [job for job in runs if job.scene == scene]
        left = [job for job in own if not finished(job)]
        rounds, papers = own[0].config["rounds"], own[0].paper_rounds
        grid.add_row(
            scene.name, str(rounds) if rounds == papers else f"{rounds} of {papers}", str(len(own)),
            str(len(own) - len(left)), duration(sum(map(costs.of_job, left), Cost())) if left else DASH,
        )  # fmt: skip
    console.print(grid)
    total = sum(map(costs.of_job, due), Cost())
    if due:
        console.print(
            f"{count(len(due), 'run')} to do, {duration(total)} one after another ({basis(total)}). Stop at any "
            "time: the same command goes on where it was."
        )


def duration(cost: Cost) -> str:
    """Seconds in words."""
    if not cost.measured + cost.scaled + cost.modelled:
        return "unknown"
    return f"about {roughly(cost.seconds)}" + (" and more" if cost.unknown else "")


def basis(cost: Cost) -> str:
    """Where seconds are from."""
    if not cost.scaled + cost.modelled + cost.unknown:
        return "as measured in finished runs of the same scenes"
    parts = {
        "measured in finished runs of the same scenes": cost.measured,
        "by the cost model, scaled by finished runs with the same network": cost.scaled,
        "by the cost model": cost.modelled,
        "unknown": cost.unknown,
    }
    return ", ".join(f"{number} {words}" for words, number in parts.items() if number)
