"""The page of all results, ``multirun/results/README.md``, generated from the csv files beside it. Free of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from fedexp.reproduce.entry import REPRODUCIBLE, Entry
from fedexp.reproduce.results import Result, known_results
from fedexp.reproduce.tables.holes import PROGRAM
from fedexp.reproduce.tables.making import make_table
from fedexp.reproduce.tables.markdown import escaped, table_row
from fedexp.reproduce.tables.table import OUTCOMES, ReproTable, rounds_of
from fedexp.system.files import read_text, write_atomically, writing
from fedexp.terminal.numbers import count

NAME = "README.md"
COMMAND = " ".join(PROGRAM)


def generated(folder: Path) -> str:
    """The page of the results in a folder.

    Raises:
        DamagedError: If one of the files cannot be read.
    """
    from fedexp.reproduce import claim_text
    from fedexp.reproduce.claim_verdict import judged
    from fedexp.reproduce.published import entries

    known = {entry.id: known_results(folder, entry.id) for entry in entries().values()}
    every = [result for results in known.values() for result in results]
    return page(
        [judged_table(entry, known[entry.id]) for entry in entries().values() if known[entry.id]],
        entries().values(),
        claims=claim_text.markdown(judged(every)) if every else "",
        others=other_files(folder),
    )


def judged_table(entry: Entry, results: Sequence[Result]) -> ReproTable:
    """The table of an entry with all results that there are, what only claims need left out."""
    from fedexp.reproduce.jobs import tunings_by_method
    from fedexp.reproduce.published import readings, scene
    from fedexp.reproduce.request import runnable
    from fedexp.reproduce.show import of_table
    from fedexp.reproduce.verdict import judge, remarks

    judged = {number.cell for number in entry.numbers}
    tune = "paper" if entry.tuned and any(result.tuning and result.cell in judged for result in results) else "none"
    results = of_table(entry, results, tune)
    methods = runnable(entry)
    return make_table(
        replace(entry, methods=tuple(method.name for method in methods)),  # no command can fill the others
        {number.cell: judge(number, entry, results, tune=tune) for number in entry.numbers},
        results,
        tune=tune,
        remarks=remarks(entry, entry.numbers, tune=tune),
        scenes=[scene(entry.paper, name) for name in (*entry.scenes, *entry.stand_ins)],
        tunings=tunings_by_method(methods, entry, tune),
        readings=readings(entry),
    )


def page(
    tables: Sequence[ReproTable], entries: Iterable[Entry], *, claims: str = "", others: Iterable[str] = ()
) -> str:
    """The text of the page.

    Args:
        tables: Those with results, in the papers' order.
        entries: All of them, to name those without results.
        claims: What the results say of the papers' claims, in Markdown.
        others: Names of further files in the folder, to be linked.
    """
    with_results = {table.entry.id for table in tables}
    parts = [
        _introduction(tables),
        _overview(tables),
        f"## Claims\n\n{claims.strip()}\n" if claims.strip() else "",
        *(f'<a id="{_anchor(table)}"></a>\n\n{table.markdown(level=2)}' for table in tables),
        _not_run(entry for entry in entries if entry.kind in REPRODUCIBLE and entry.id not in with_results),
        _others(list(others)),
    ]
    return "\n".join(filter(None, parts))


def write_page(path: Path, text: str) -> bool:
    """Writes the page; returns whether it has changed.

    Raises:
        DiskError: If it cannot be written.
    """
    if path.exists() and read_text(path) == text:
        return False
    with writing(path):
        write_atomically(path, text.encode())
    return True


def other_files(folder: Path) -> list[str]:
    """The csv files in the folder itself, which are not results of an entry: those are in a folder for each paper."""
    return sorted(path.name for path in folder.glob("*.csv"))


# ---------------------------------------------------------------- parts
def _introduction(tables: Sequence[ReproTable]) -> str:
    runs = _runs(tables)
    lines = [
        "# Results",
        "",
        f"Our numbers beside those of the papers. This page is written by `{COMMAND} page` from the csv files in this "
        "folder, which have one line per cell, seed and hyper-parameter setting, each with its command, versions and "
        f"partition. `{COMMAND} status` shows the same tables in the terminal.",
        "",
    ]
    return "\n".join(
        [*lines, *(_about(runs) if runs else ["So far these are counts; nothing has been trained for them."]), ""]
    )


def _runs(tables: Iterable[ReproTable]) -> dict[str, Result]:
    """The runs by their ids: one run may give numbers to several cells and tables."""
    cells = (cell for table in tables for cell in (*table.cells, *(cell for _, cell in table.readings)))
    return {result.run: result for cell in cells for result in cell.results if result.run}


def _about(runs: dict[str, Result]) -> Iterator[str]:
    ended = ", ".join(f"{n} {status}" for status, n in Counter(run.status for run in runs.values()).items())
    hours = sum(run.seconds or 0.0 for run in runs.values()) / 3600
    seeds = ", ".join(map(str, sorted({run.seed for run in runs.values()})))
    reduced = sum(bool(run.reduced) for run in runs.values())
    yield f"- {count(len(runs), 'run')} ({ended}), {hours:.1f} hours of training in all"
    yield f"- {'; '.join(filter(None, [f'seeds {seeds}', rounds_of(runs.values())]))}"
    if reduced:
        yield f"- {count(reduced, 'run')} reduced, that is, less than the paper's: without verdict, and marked by †"
    for versions, n in Counter(run.versions for run in runs.values()).most_common():
        yield f"- {escaped(versions or 'versions not recorded')}: {count(n, 'run')}"


def _overview(tables: Sequence[ReproTable]) -> str:
    """How many cells of each table have which verdict."""
    outcomes = [dict(table.outcome) for table in tables]
    words = [word for word in OUTCOMES if any(word in outcome for outcome in outcomes)]
    if not words:
        return ""
    lines = [table_row(["", *words]), table_row(["---", *("--:" for _ in words)])]
    for table, outcome in zip(tables, outcomes, strict=True):
        lines.append(
            table_row([f"[{table.entry.id}](#{_anchor(table)})", *(str(outcome.get(word, "")) for word in words)])
        )
    lines.append(table_row(["all", *(str(sum(outcome.get(word, 0) for outcome in outcomes)) for word in words)]))
    return "\n".join(["## Cells by verdict", "", *lines, ""])


def _anchor(table: ReproTable) -> str:
    return table.entry.id.replace("/", "-")


def _not_run(entries: Iterable[Entry]) -> str:
    by_paper = [(paper, list(group)) for paper, group in groupby(entries, key=lambda entry: entry.paper)]
    if not by_paper:
        return ""
    lines = [f"- {paper}: {', '.join(entry.id.partition('/')[2] for entry in group)}" for paper, group in by_paper]
    how = f"`{COMMAND} list` says what each would cost, `{COMMAND} {by_paper[0][1][0].id}` runs the first of them."
    return "\n".join(["## Without results", "", *lines, "", how, ""])


def _others(names: Sequence[str]) -> str:
    if not names:
        return ""
    links = ", ".join(f"[{escaped(name)}]({name})" for name in names)
    about = "[Described one folder up](../README.md). They record neither run ids nor versions, so they get no verdict:"
    return "\n".join(["## Older files", "", f"{about} {links}.", ""])
