"""The page of all results, ``multirun/results/README.md``, generated from the csv files beside it. Free of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from fedexp.reproduce.entry import REPRODUCIBLE, Entry
from fedexp.reproduce.jobs import STAND_IN
from fedexp.reproduce.request import every_scene, request
from fedexp.reproduce.results import Result, known_results
from fedexp.reproduce.show import table_of
from fedexp.reproduce.tables.holes import PROGRAM
from fedexp.reproduce.tables.markdown import escaped, table_row
from fedexp.reproduce.tables.table import OUTCOMES, ReproTable, rounds_of
from fedexp.system.files import read_text, write_atomically, writing
from fedexp.terminal.numbers import count

NAME = "README.md"
COMMAND = " ".join(PROGRAM)
COMPARED = ("reproduced", "compatible", "above", "below", "unjudged", "equal", "different")
VERDICTS = (
    "*reproduced*: our 90 % interval over three seeds or more lies within the tolerance around the printed number. "
    "*compatible*: it overlaps the tolerance, or there are fewer seeds and their mean is near enough. *above* and "
    "*below*: outside. *unjudged*: the paper prints no error, as of seconds. *reduced* (†): runs shorter than the "
    "paper's, or stand-ins, with smaller data or another network; they get no verdict. *equal* and *different* are "
    "said of counts. *failed*: a run ended without a number. *without a published number*: the figure has no "
    "numbers. *missing*: not run. Tolerances and rules stand below each table."
)
CLAIMS = (
    "*confirmed*: the 95 % interval of the difference, paired by seed, lies above the margin (0 if none is given). "
    "*refuted*: it lies below. *undecided*: it includes the margin, or there are fewer than three seeds. A claim of "
    "several parts is refuted if one of them is. The intervals are those of one comparison and one look: where the "
    "truth is at the margin, one comparison in forty is refuted by chance, and more often when seeds are added."
)


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
    """The table of an entry with all results that there are; tuned, if any setting of a grid was run for it.

    What the paper leaves open in all of its tables is left out: the page says it once.
    """
    own = tuple(note for note in entry.notes if note not in entry.paper_notes)
    judged = {number.cell for number in entry.numbers}
    tuned = entry.tuned and any(result.tuning and result.cell in judged for result in results)
    asked = request(entry, settings=every_scene(entry), tune="paper" if tuned else "none")
    return table_of(replace(asked, entry=replace(entry, notes=own, paper_notes=())), results)


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
    with_results, known = {table.entry.id for table in tables}, list(entries)
    parts = [
        _introduction(tables, known),
        _overview(tables),
        f"## Claims\n\n{CLAIMS}\n\n{claims.strip()}\n" if claims.strip() else "",
        *(
            _of_paper(paper, list(group), known)
            for paper, group in groupby(tables, key=lambda table: table.entry.paper)
        ),
        _not_run(entry for entry in known if entry.kind in REPRODUCIBLE and entry.id not in with_results),
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
def _introduction(tables: Sequence[ReproTable], entries: Sequence[Entry]) -> str:
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
        [
            *lines,
            *(_about(runs) if runs else ["So far these are counts; nothing has been trained for them."]),
            *_by_paper(tables, entries),
            "",
        ]
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
        stand_ins = sum(STAND_IN in run.reduced for run in runs.values())
        kinds = f"{reduced - stand_ins} shorter than the paper's or changed otherwise, {count(stand_ins, 'stand-in')}"
        yield f"- {count(reduced, 'run')} reduced (†): {kinds}"
    for versions, n in Counter(run.versions for run in runs.values()).most_common():
        yield f"- {escaped(versions or 'versions not recorded')}: {count(n, 'run')}"


def _by_paper(tables: Sequence[ReproTable], entries: Iterable[Entry]) -> Iterator[str]:
    """How many of a paper's printed numbers were compared with ours, and what came out; counts by themselves."""
    words: dict[tuple[str, bool], Counter[str]] = {}
    for table in tables:
        words.setdefault((table.entry.paper, table.counts), Counter()).update(
            c.word for c in table.cells if c.published
        )
    for paper, group in groupby(entries, key=lambda entry: entry.paper):
        printed = Counter[bool]()
        for entry in group:
            printed[entry.kind == "count"] += len(entry.numbers)
        told = [
            _compared(printed[counts], "count" if counts else "result", words.get((paper, counts), Counter()))
            for counts in (False, True)
            if printed[counts]
        ]
        if told:
            yield f"- {paper}: {'; '.join(told)}"


def _compared(printed: int, what: str, words: Counter[str]) -> str:
    compared = {word: words[word] for word in COMPARED if words[word]}
    said = f" ({', '.join(f'{n} {word}' for word, n in compared.items())})" if compared else ""
    return f"{sum(compared.values())} of {count(printed, f'printed {what}')} compared{said}"


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
    return "\n".join(["## Cells by verdict", "", VERDICTS, "", *lines, ""])


def _anchor(table: ReproTable) -> str:
    return table.entry.id.replace("/", "-")


def _of_paper(paper: str, tables: Iterable[ReproTable], entries: Iterable[Entry]) -> str:
    """The tables of a paper, below what it leaves open in all of them."""
    notes = dict.fromkeys(note for entry in entries if entry.paper == paper for note in entry.paper_notes)
    lines = [f"## {paper}", "", *(f"- {escaped(note)}" for note in notes), *([""] if notes else [])]
    return "\n".join([*lines, *(f'<a id="{_anchor(table)}"></a>\n\n{table.markdown(level=3)}' for table in tables)])


def _not_run(entries: Iterable[Entry]) -> str:
    by_paper = [(paper, list(group)) for paper, group in groupby(entries, key=lambda entry: entry.paper)]
    if not by_paper:
        return ""
    lines = [f"- {paper}: {', '.join(entry.id.partition('/')[2] for entry in group)}" for paper, group in by_paper]
    how = f"`{COMMAND} list` says what each would cost, which for some is years without a GPU."
    return "\n".join(["## Without results", "", *lines, "", how, ""])


def _others(names: Sequence[str]) -> str:
    if not names:
        return ""
    links = ", ".join(f"[{escaped(name)}]({name})" for name in names)
    about = "[Described one folder up](../README.md). They record neither run ids nor versions, so they get no verdict:"
    return "\n".join(["## Older files", "", f"{about} {links}.", ""])
