"""Reports of what can be named on the command line: a folder of runs, a folder of results, an entry of a paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fedexp.errors import ConfigError
from fedexp.report.html.blocks import Folded, Gallery, Paragraph, Report, Section, words
from fedexp.report.html.cost import cost
from fedexp.report.html.failures import failures
from fedexp.report.html.figures import Figures, drawing, figures_of
from fedexp.report.html.layout import SEED, Layout
from fedexp.report.html.published import beside, claimed, overview
from fedexp.report.html.ran import facts, ran
from fedexp.report.html.results import results
from fedexp.report.load import Runs, load
from fedexp.reproduce import claim_verdict, published
from fedexp.reproduce.collect import collect
from fedexp.reproduce.figure import figure_of
from fedexp.reproduce.local import NOTED, begun, on_file, our_results
from fedexp.reproduce.page import judged_table
from fedexp.reproduce.request import Request, every_scene, request
from fedexp.reproduce.results import Result, known_results, results_file
from fedexp.reproduce.show import table_of
from fedexp.reproduce.tables.table import ReproTable
from fedexp.terminal.numbers import count

NO_NUMBERS = ("text", "partition")  # kinds of entries


def holds_results(folder: Path) -> bool:
    """Whether a folder has csv files of results of entries."""
    return any(results_file(folder, name).is_file() for name in published.entries())


def of_folder(folder: Path, committed: Path) -> Report:
    """The report of the runs below a folder, with the published numbers that any of them has an answer to.

    Raises:
        FedexpError: If there is no run.
    """
    runs = load(folder)
    if runs.config.empty:
        raise ConfigError(
            f"None of the {count(len(runs.found), 'run')} in {folder} has begun. "
            "`python -m fedexp.runs status` shows how they stand."
        )
    tables = _tables_with(runs, folder, committed)
    chapters = _chapters(runs, folder)
    return Report(
        title=_title(folder),
        about=_about(runs, Layout.of(runs)),
        facts=facts(runs, Layout.of(runs)),
        sections=(*chapters[:1], *beside(tables), *chapters[1:]),
    )


def of_results(folder: Path) -> Report:
    """The report of results on file."""
    entries = published.entries().values()
    known = {entry.id: known_results(folder, entry.id) for entry in entries}
    tables = [judged_table(entry, known[entry.id]) for entry in entries if known[entry.id]]
    every = [result for found in known.values() for result in found]
    return Report(
        title="Reproduced results",
        about=f"Our numbers beside those of the papers, from the files in {folder}.",
        facts=_of_results(every, len(tables)),
        sections=(*overview(tables), *claimed(claim_verdict.judged(every)), *beside(tables)),
    )


def of_entry(name: str, out: Path, committed: Path) -> Report:
    """The report of a table or figure of a paper: results on file, and the runs on this machine.

    Raises:
        ConfigError: If there is no such entry, or nothing of it has a number.
    """
    entry = published.entry(name)
    if entry.kind in NO_NUMBERS:
        raise ConfigError(f"{entry.id}: {entry.title}. There is nothing to compare.")
    asked = request(entry, settings=every_scene(entry), out=str(out))
    found = our_results(asked, committed, collect(begun(asked)))
    runs = _runs_of(asked, found)
    if not found:
        raise ConfigError(
            f"{entry.id}: there are no results yet, neither in {committed} nor of runs in {out}. "
            f"`python -m fedexp.reproduce {entry.id} plan=true` says what to run."
        )
    table = table_of(asked, found)
    own = [
        verdict for verdict in claim_verdict.judged(found) if any(c.entry == name for c in verdict.claim.comparisons)
    ]
    chapters = _chapters(runs, None) if runs.found and not runs.config.empty else ()
    return Report(
        title=f"{entry.id}: {entry.title}",
        about=f"Our numbers beside the published ones; {table.extent}.",
        facts=facts(runs, Layout.of(runs)) if chapters else _of_results(found, 1),
        sections=(*beside([table]), *_figure(entry.id, runs), *claimed(own), *chapters),
    )


# ---------------------------------------------------------------- runs
def _chapters(runs: Runs, folder: Path | None) -> tuple[Section, ...]:
    """Results first, what ran and what failed after them."""
    layout = Layout.of(runs)
    figures = figures_of(runs, layout) if runs.done.found else Figures({}, ())
    last = ran(runs, layout, folder)
    if figures.refused:
        last = replace(
            last, blocks=(*last.blocks, Folded("Figures that these runs do not give", words(figures.refused)))
        )
    return (*results(runs, layout, figures), *cost(runs, layout, figures), *failures(runs), last)


def _title(folder: Path) -> str:
    named = folder.resolve()
    return f"{named.parent.name}/{named.name}" if named.parent.name else named.name


def _about(runs: Runs, layout: Layout) -> str:
    scenes = len(layout.by_scene(runs))
    told = [count(len(layout.labels(runs)), "method"), count(scenes, "scene") if scenes > 1 else ""]
    told.append(count(runs.config[SEED].nunique(), "seed"))
    done = len(runs.done.found)
    every = "finished" if done == len(runs.found) else f"{done} of them finished"
    return f"{', '.join(filter(None, told))}: {count(len(runs.found), 'run')}, {every}."


def _runs_of(asked: Request, found: Iterable[Result]) -> Runs:
    """The runs of results that are on this machine, whatever their state."""
    experiments = {scene.name: scene.experiment for scene in asked.scenes}
    paths = {asked.out / experiments[r.setting] / r.run for r in found if r.run and r.setting in experiments}
    folders = sorted({path.parent for path in paths if path.is_dir()})
    return Runs(tuple(run for folder in folders for run in load(folder).found if run.path in paths))


def _figure(name: str, runs: Runs) -> tuple[Section, ...]:
    """The figure of the paper, drawn from our runs, if it is one."""
    if not published.entry(name).figure or not runs.done.found:
        return ()
    try:
        made = figure_of(name, runs.done)
    except ConfigError as reason:
        return (Section("figure", "The figure from our runs", (Paragraph(f"It cannot be drawn: {reason}"),)),)
    return (Section("figure", "The figure from our runs", (Gallery((drawing(made, "figure-paper"),)),)),)


# ---------------------------------------------------------------- results
def _tables_with(runs: Runs, folder: Path, committed: Path) -> list[ReproTable]:
    """The tables with numbers of these runs, by what is noted beside them or committed."""
    ids = {run.path.name for run in runs.found}
    places = [place for place in (folder, *folder.resolve().parents) if (place / NOTED).is_dir()]
    tables: list[ReproTable] = []
    for entry in published.entries().values():
        found = on_file(entry.id, committed, places[0] if places else folder)
        if any(result.run in ids for result in found):
            tables.append(judged_table(entry, found))
    return tables


def _of_results(found: Iterable[Result], tables: int) -> tuple[tuple[str, str], ...]:
    known = list(found)
    runs = {result.run for result in known if result.run}
    return (
        ("tables", str(tables)),
        ("numbers", f"{len(known):,}"),
        ("runs", f"{len(runs):,}" if runs else "none, these are counts"),
        ("seeds", ", ".join(map(str, sorted({result.seed for result in known})))),
        ("versions", _versions([result.versions for result in known])),
    )


def _versions(told: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, told)))
