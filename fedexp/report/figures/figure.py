"""A figure: its specification, the data in it, and the files it is written to."""

from __future__ import annotations

import io
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas, vl_convert
from fedexp.report.figures import style
from fedexp.system.files import write_atomically, writing

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("html", "svg", "png", "pdf")
PIXELS_PER_POINT = 3.0  # of a PNG, so that it can be printed
OWN_SCALES = dict.fromkeys(("color", "stroke", "fill", "strokeDash", "shape"), "independent")
MENU = {"actions": {"export": True, "source": False, "compiled": False, "editor": False}}  # an editor is on a host


@dataclass(frozen=True)
class Figure:
    """A chart without its heading, what it shows, and what is said above it."""

    chart: Any  # alt.Chart, layered, faceted or joined
    data: pd.DataFrame
    title: str
    caption: str  # which runs: seeds, rounds, what bands are

    def above(self, other: Figure) -> Figure:
        """This figure with another one below it, under one heading."""
        chart = altair().vconcat(self.chart, other.chart, spacing=14).resolve_scale(**OWN_SCALES)
        return replace(
            self, chart=chart, data=pandas().concat([self.data, other.data]), caption=f"{self.caption} {other.caption}"
        )

    @property
    def complete(self) -> Any:
        """The chart with title, caption and our look."""
        letters = int(style.WIDTH / style.LETTER)
        heading = altair().TitleParams(
            textwrap.wrap(self.title, letters - 6), subtitle=textwrap.wrap(self.caption, letters), anchor="start"
        )
        return self.chart.properties(title=heading).configure(**style.configuration())

    def spec(self) -> dict[str, Any]:
        """The specification, checked against the schema of Vega-Lite."""
        made: dict[str, Any] = self.complete.to_dict()
        return made

    def encoded(self, form: str) -> bytes:
        """The figure as a file of this format."""
        vl_convert()  # without which Altair has errors of its own
        if form in ("html", "svg"):
            text = io.StringIO()
            more = {"inline": True, "embed_options": MENU} if form == "html" else {}
            self.complete.save(text, format=form, **more)
            return text.getvalue().encode()
        buffer = io.BytesIO()
        self.complete.save(buffer, format=form, **({"scale_factor": PIXELS_PER_POINT} if form == "png" else {}))
        return buffer.getvalue()

    def save(self, path: Path) -> None:
        """Writes the figure, whole or not at all; the ending of the name is the format.

        Raises:
            ConfigError: If it is none of ours.
            DiskError: If the file cannot be written.
        """
        check_path(path)
        content = self.encoded(path.suffix[1:])
        with writing(path):
            write_atomically(path, content)


def check_path(path: Path, option: str = "to") -> None:
    """Raises ``ConfigError`` if a figure cannot be written where an option says, before it is drawn."""
    if path.suffix[1:] not in FORMATS:
        raise ConfigError(
            f"{option}={path} has to end in {', '.join(f'.{form}' for form in FORMATS[:-1])} or .{FORMATS[-1]}."
        )
    if not path.parent.is_dir():
        raise ConfigError(f"{option}={path}: there is no directory {path.parent}. Make it, or write elsewhere.")


def inline(frame: pd.DataFrame) -> Any:
    """Data as part of the specification, however many rows there are; NaN becomes null."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return altair().InlineData(values=rows)
