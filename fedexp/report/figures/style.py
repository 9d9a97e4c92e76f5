"""How our figures look: one column of a paper wide, letters of 8 points, colours that everyone can tell apart."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from fedexp.errors import ConfigError
from fedexp.report.extra import altair


class TooManyError(ConfigError):
    """More lines or panels than a figure can have."""


WIDTH = 340  # pixels at 96 per inch: a column
PLOT_WIDTH = WIDTH - 62  # without axis and padding
HEIGHT = 190
FONT = 11  # pixels: 8.25 points
LETTER = 5.6  # the mean width of a letter, in pixels
INK, FAINT, GRID = "#222222", "#8a8a8a", "#e4e4e8"
# Okabe and Ito's colours; grey takes the place of yellow, which is too pale for lines on white.
PALETTE = ("#000000", "#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#7F7F7F")
RED, BLUE = PALETTE[1:3]
CLASSES = (*PALETTE, "#999933", "#332288")  # ten
PAPER = "#fdfdfd"  # what is hollow, and text on what is darkest
SCALE = ("#c6dbef", "#08306b")  # from few to many
NOTHING = "#f1f1f4"  # the background of a map
DARK = {  # what colours become on a dark page; those that are not named stay
    INK: "#d7dae0", "#555555": "#a3a8b3", FAINT: "#7c828e", GRID: "#31353d", PAPER: "#10151d",
    "#000000": "#eceef2", "#0072B2": "#3d86d8", "#56B4E9": "#9ad4f7", "#009E73": "#2bb98d",
    "#D55E00": "#e9762b", "#7F7F7F": "#9a9fa9", "#332288": "#9488e6",
    SCALE[0]: "#1c3a5c", SCALE[1]: "#a9d0f5", NOTHING: "#242830", "#6b8eb8": "#5f84b3", "#b5b5b5": "#767c88",
}  # fmt: skip
FIXED = {
    "fedavg": 0, "map": 1, "fedrs": 2, "fedgela": 3, "fedmr": 4, "fedrema": 5, "scaffold": 6, "fedprox": 7,
    "missing": 1, "observed": 2, "observed–missing": 3, "missing–missing": 4, "observed–observed": 6,
    "simplex frame": 7,
}  # fmt: skip
DASHES: tuple[list[int], ...] = ([1, 0], [5, 3])
SHAPES = ("circle", "square")
STROKES: dict[str, Any] = {"symbolType": "stroke", "symbolSize": 250}  # of legends of lines, long enough for dashes
MAX_LINES = len(PALETTE) * len(DASHES)
FEW = 4  # whole numbers between the ends of an axis, from which on Vega finds its marks
PANELS_IN_A_ROW = 2
MAX_PANELS = 12
PANEL_GAP = 16
MAX_STACKED = 4  # panels one below the other
STACKED_HEIGHT = 100


def configuration() -> dict[str, Any]:
    """What all figures have in common."""
    text = {"labelFont": "sans-serif", "titleFont": "sans-serif", "labelFontSize": FONT, "titleFontSize": FONT}
    return {
        "font": "sans-serif",
        "background": "white",
        "padding": 6,
        "title": {"fontSize": FONT + 2, "subtitleFontSize": FONT, "subtitleColor": "#555555", "offset": 8,
                  "color": INK, "subtitlePadding": 4},
        "axis": {**text, "titleFontWeight": "normal", "labelColor": INK, "titleColor": INK, "gridColor": GRID,
                 "gridWidth": 0.7,
                 "domainColor": FAINT, "tickColor": FAINT, "titlePadding": 5, "labelFlush": False},
        "legend": {**text, "title": None, "labelColor": INK, "titleColor": INK, "labelLimit": 160, "symbolOpacity": 1,
                   "symbolStrokeWidth": 2, "columnPadding": 12, "rowPadding": 2,
                   "symbolSize": 50},
        "header": {**text, "title": None, "labelColor": INK, "labelFontWeight": "bold", "labelPadding": 4,
                   "labelLimit": WIDTH // 2},
        "view": {"stroke": None},
    }  # fmt: skip


def looks(labels: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The colour and the dash of each method. A method has the same in all figures, unless another has taken it.

    Raises:
        TooManyError: If they cannot be told apart.
    """
    if len(labels) > MAX_LINES:
        raise TooManyError(
            f"{len(labels)} lines cannot be told apart in one figure. Choose at most {MAX_LINES}, as in "
            f"algo={','.join(list(labels)[:3])}."
        )
    found: dict[str, tuple[int, int]] = {}
    for label in sorted(labels, key=lambda name: (name not in FIXED, name)):
        first = FIXED.get(label, crc32(label.encode()) % len(PALETTE))
        places = (((first + step) % len(PALETTE), step // len(PALETTE)) for step in range(MAX_LINES))
        found[label] = next(place for place in places if place not in found.values())
    return found


def colour(labels: Sequence[str], field: str = "method", **legend: Any) -> Any:
    """The encoding of methods by colour, with a legend below."""
    alt, chosen = altair(), looks(labels)
    scale = alt.Scale(domain=list(labels), range=[PALETTE[chosen[label][0]] for label in labels])
    return alt.Color(f"{field}:N", scale=scale, legend=below(labels, **legend))


def dash(labels: Sequence[str], field: str = "method") -> Any:
    """The encoding of methods by dashes, in the same legend."""
    alt, chosen = altair(), looks(labels)
    scale = alt.Scale(domain=list(labels), range=[DASHES[chosen[label][1]] for label in labels])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=below(labels, **STROKES))


def shape(labels: Sequence[str], field: str = "method") -> Any:
    """The encoding of methods by shapes of points, in the same legend."""
    alt, chosen = altair(), looks(labels)
    scale = alt.Scale(domain=list(labels), range=[SHAPES[chosen[label][1]] for label in labels])
    return alt.Shape(f"{field}:N", scale=scale, legend=below(labels))


def below(labels: Sequence[str], **more: Any) -> Any:
    """A legend below the figure, in as many columns as fit."""
    columns = max(1, int(WIDTH // (max(map(len, labels)) * LETTER + 34)))
    return altair().Legend(orient="bottom", columns=min(columns, len(labels)), **more)


def whole(points: Sequence[float]) -> Any:
    """The axis of whole numbers, such as rounds and classes: nothing is marked between two of them."""
    low, high = int(min(points)), int(max(points))
    marks = {"tickMinStep": 1} if high - low >= FEW else {"values": list(range(low, high + 1))}
    return altair().Axis(format="d", **marks)


def axis_title(words: str, length: int = HEIGHT) -> list[str]:
    """A title in lines that are no longer than the axis."""
    return textwrap.wrap(words, int(length / LETTER))


def x_title(words: str, panels: int) -> list[str]:
    """The title of the horizontal axis, in lines that are no longer than one of so many panels."""
    return axis_title(words, PLOT_WIDTH if panels < 2 else (PLOT_WIDTH - PANEL_GAP) // PANELS_IN_A_ROW)


def paneled(layers: Any, panels: Sequence[str], *, height: int = HEIGHT, own_scales: bool = False) -> Any:
    """One view, or one per panel; a line break in the name of a panel is one in its heading.

    Panels with scales of their own are of different quantities: up to four stand one below the other.

    Raises:
        TooManyError: If there are too many panels.
    """
    if len(panels) > MAX_PANELS:
        raise TooManyError(
            f"{len(panels)} panels do not fit in one figure. Choose at most {MAX_PANELS} by KEY=VALUE,…."
        )
    alt = altair()
    if len(panels) < 2:
        return layers.properties(width=PLOT_WIDTH, height=height)
    stacked = own_scales and len(panels) <= MAX_STACKED
    width = PLOT_WIDTH if stacked else (PLOT_WIDTH - PANEL_GAP) // PANELS_IN_A_ROW
    header = alt.Header(
        title=None,
        labelLimit=width + PANEL_GAP,
        labelExpr="split(replace(datum.label, ': ', '\\n'), '\\n')",
        labelAnchor="start" if stacked else "middle",
    )
    facet = alt.Facet("panel:N", sort=list(panels), header=header)
    view = layers.properties(width=width, height=STACKED_HEIGHT if stacked else int(width * 0.85))
    made = view.facet(facet, columns=1 if stacked else PANELS_IN_A_ROW, spacing=PANEL_GAP)
    return made.resolve_scale(y="independent") if own_scales else made
