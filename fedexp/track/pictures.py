"""Figures of one run as PNG, for trackers that show pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas, vl_convert

KINDS = ("partition", "curves", "fairness", "classes")  # of ``python -m fedexp.runs plot``: those of a single run


def check(figures: Sequence[str], key: str) -> None:
    """Raises ``ConfigError`` if there is no such figure, or if what figures need is not installed."""
    for name in figures:
        if name not in KINDS:
            raise ConfigError(f"{key}: there is no figure {name!r} of one run. {nearest(name, KINDS)}")
    if figures:
        try:
            altair(), pandas(), vl_convert()
        except ConfigError as error:
            raise ConfigError(f"{error}; or do without figures: {key}=[]") from error


def picture(path: Path, name: str) -> bytes:
    """A figure of a finished run's own files. The first one takes seconds, because of what it imports."""
    from fedexp.report.figures.kinds import kind
    from fedexp.report.load import load_paths

    return kind(name)(load_paths([path]), {}).encoded("png")
