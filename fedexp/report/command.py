"""``python -m fedexp.runs table`` and ``plot``: what came out of runs, from the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from rich.console import Console

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.report.load import Runs, load
from fedexp.report.table import ResultTable, make_table
from fedexp.system.files import write_atomically, writing

FORMATS: dict[str, Callable[[ResultTable], str]] = {
    "markdown": ResultTable.markdown,
    "latex": ResultTable.latex,
    "csv": ResultTable.csv,
}
TERMINAL = "terminal"
SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv"}
TABLE_LISTS = ("metric", "rows", "columns")


def table(argv: Sequence[str], console: Console) -> int:
    """Shows or writes a table of runs; returns the exit code."""
    names, given = _arguments(argv)
    if len(names) != 1:
        raise ConfigError(
            "table needs one folder, as in `python -m fedexp.runs table multirun/main metric=aggregation.mean`."
        )
    to = Path(given.pop("to")) if "to" in given else None
    form = given.pop("format", SUFFIXES.get(to.suffix, TERMINAL) if to else TERMINAL)
    if form not in (TERMINAL, *FORMATS):
        raise ConfigError(f"format={form}: there is no such format. {nearest(form, [TERMINAL, *FORMATS])}")
    if to and form == TERMINAL:
        raise ConfigError(f"to={to} has to end in {', '.join(SUFFIXES)}, or name a format: format=markdown.")
    own, runs = _chosen(load(names[0]), given, set(signature(make_table).parameters) - {"runs"})
    options: dict[str, Any] = {k: _listed(v) if k in TABLE_LISTS else v for k, v in own.items()}
    made = make_table(runs, **options)
    if form == TERMINAL:
        made.print(console)
    elif to:
        with writing(to):
            write_atomically(to, FORMATS[form](made).encode())
        console.print(f"written   {to}")
    else:
        console.out(FORMATS[form](made), end="", highlight=False)
    return 0


def plot(argv: Sequence[str], console: Console) -> int:
    """Draws a figure of runs to a file; returns the exit code."""
    from fedexp.report.figures.figure import check_path
    from fedexp.report.figures.kinds import KINDS, kind

    names, given = _arguments(argv)
    if len(names) != 2:
        kinds = "\n".join(f"  {name:<10} {each.about}" for name, each in KINDS.items())
        raise ConfigError(
            "plot needs a kind of figure and a folder, as in `python -m fedexp.runs plot curves multirun/main "
            f"to=curves.html`. Kinds are\n{kinds}\nor a figure of a paper, map/fig9."
        )
    if "to" not in given:
        raise ConfigError("to: name the file to write, as in to=figure.html, .svg, .png or .pdf.")
    to = Path(given.pop("to"))
    check_path(to)
    if "/" in names[0]:
        from fedexp.reproduce.figure import check_figure, figure_of

        check_figure(names[0], to)
        _, runs = _chosen(load(names[1]), given, set())
        figure = figure_of(names[0], runs)
    else:
        drawn = kind(names[0])
        own, runs = _chosen(load(names[1]), given, set(drawn.options))
        figure = drawn(runs, own)
    figure.save(to)
    for complaint in runs.complaints.values():
        console.print(f"Not read: {complaint}")
    console.print(f"figure    {to}")
    console.print(f"          {figure.title}. {figure.caption}")
    return 0


def _arguments(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Words, and ``key=value``."""
    pairs = [a.lstrip("-").partition("=")[::2] for a in argv if "=" in a]
    twice = [key for number, (key, _) in enumerate(pairs) if key in [k for k, _ in pairs[:number]]]
    if twice:
        raise ConfigError(f"{twice[0]} is given twice. Separate its values by commas.")
    words = [a for a in argv if "=" not in a]
    if unknown := [word for word in words if word.startswith("-")]:
        raise ConfigError(f"{unknown[0]} is not known here. Options are given as key=value.")
    return words, dict(pairs)


def _chosen(runs: Runs, given: dict[str, str], options: set[str]) -> tuple[dict[str, str], Runs]:
    """The options of a command, and the runs that the other arguments choose by their settings."""
    own = {key: value for key, value in given.items() if key in options}
    filters = {key: _listed(value) for key, value in given.items() if key not in options}
    for key in filters:
        if key not in runs.config.columns:
            raise ConfigError(
                f"{key}: this is neither an option nor a setting of these runs. "
                f"{nearest(key, [*sorted(options), *runs.config.columns[2:]])}"
            )
    chosen = runs.where(filters) if filters else runs
    if not chosen.done.found:
        raise ConfigError("None of these runs is finished. `python -m fedexp.runs status` shows how they stand.")
    return own, chosen


def _listed(text: str) -> tuple[str, ...]:
    """The values between commas; those inside of brackets are part of a value, ``[8, 8]``."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(filter(None, parts))
