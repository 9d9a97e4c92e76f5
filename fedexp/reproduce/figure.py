"""The papers' figures, drawn from our runs: ``figure:`` in ``published/<paper>.yaml`` says how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.report import extra, frames
from fedexp.report.load import Runs, load_paths
from fedexp.reproduce import published
from fedexp.reproduce.entry import Entry

if TYPE_CHECKING:
    from fedexp.report.figures.figure import Figure

KEYS = ("by", "panels", "across", "scenes")  # options that are lists of settings
NOT_OPTIONS = ("kind", "below")


def figure_of(entry_id: str, runs: Runs) -> Figure:
    """The figure of an entry, from those of the runs that are of its methods.

    Raises:
        ConfigError: If there is no such entry, it is not a figure that runs can give, or no run is of its methods.
    """
    entry = check_drawable(entry_id)
    chosen = _of_methods(entry, runs)
    made = _made(dict(entry.figure), chosen)
    used = chosen.done.config[["data", "model"]].drop_duplicates().itertuples(index=False, name=None)
    ours = f"Our runs: {', '.join(f'{data} with {model}' for data, model in used)}."
    return replace(made, title=f"{entry.id}: {entry.title}", caption=f"{ours} {made.caption}")


def _made(told: dict[str, Any], runs: Runs) -> Figure:
    """The figure that the yaml tells of: a kind and its options, and perhaps another one ``below``."""
    from fedexp.report.figures.kinds import kind

    own = {key: _known(value, runs) if key in KEYS else value for key, value in told.items() if key not in NOT_OPTIONS}
    made = kind(told["kind"])(runs, own)
    return made.above(_made(told["below"], runs)) if "below" in told else made


def draw(entry_id: str, paths: Iterable[Path], to: Path) -> Figure:
    """Draws the figure of an entry to a file, from the finished ones of the runs in these directories.

    Raises:
        ConfigError: As ``figure_of``; and if none is finished, or the file's ending is not that of a figure.
    """
    check_figure(entry_id, to)
    runs = load_paths(paths)
    if not runs.found:
        raise ConfigError(f"{entry_id}: none of its runs is finished, so there is nothing to draw.")
    made = figure_of(entry_id, runs)
    made.save(to)
    return made


def check_figure(entry_id: str, to: Path) -> None:
    """Raises ``ConfigError`` if the figure of an entry cannot be drawn to a file, before its runs are made."""
    from fedexp.report.figures.figure import check_path

    check_drawable(entry_id)
    check_path(to, "figure")
    extra.altair()
    extra.vl_convert()


def check_drawable(entry_id: str) -> Entry:
    """The entry, if its figure can be drawn.

    Raises:
        ConfigError: If it cannot.
    """
    entry = published.entry(entry_id)
    if not entry.figure:
        drawable = [name for name, each in published.entries().items() if each.figure]
        raise ConfigError(f"{entry_id} is no figure that is drawn from runs. {nearest(entry_id, drawable)}")
    return entry


def _known(keys: list[str], runs: Runs) -> tuple[str, ...]:
    """Settings that some run has; others cannot tell runs apart."""
    return tuple(key for key in keys if key in runs.config.columns)


def _of_methods(entry: Entry, runs: Runs) -> Runs:
    if not entry.methods:
        return runs
    settings = {run: dict(row) for run, row in runs.config.set_index("run").iterrows()}
    wanted = [overrides for method in entry.runnable for overrides in method.all_overrides]
    chosen = [run for run, own in settings.items() if any(_is_of(own, overrides) for overrides in wanted)]
    if not chosen:
        raise ConfigError(f"{entry.id}: no run is of its methods, {', '.join(entry.rows)}.")
    return runs.only(chosen)


def _is_of(own: dict[str, object], overrides: tuple[str, ...]) -> bool:
    wanted = dict(override.lstrip("+").partition("=")[::2] for override in overrides)  # the last of a key counts
    return all(frames.same(own.get(key), value) for key, value in wanted.items())
