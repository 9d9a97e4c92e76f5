"""How features and class vectors are drawn: dots and arrows in a square, or points on a map of the sphere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedexp.report.extra import altair
from fedexp.report.figures import style
from fedexp.report.figures.figure import inline

if TYPE_CHECKING:
    import pandas as pd

PLANE, SPHERE = ("feature 1", "feature 2"), ("longitude (°)", "latitude (°)")  # what axes are
WITHIN = 0.99  # of the features are inside the panel
MARGIN = 0.08  # of a panel's side, on each side
UNNAMED = 0.07  # of a panel's side: vectors that are not longer have no label, as many may lie at the origin
LABEL_INSIDE = 6  # pixels from the end of a y axis: labels there do not stick out, so that titles are in one line
IN_A_ROW = 3
GAP = 22


def chart_of(shown: pd.DataFrame, titles: Sequence[Sequence[str]], axes: tuple[str, str]) -> Any:
    """A view for each panel; the words of its title are those in which panels differ."""
    alt = altair()
    in_a_row = 2 if axes == SPHERE or len(titles) == 4 else IN_A_ROW
    in_a_row = min(in_a_row, len(titles))
    side = min(200, (style.WIDTH - 48 - GAP * (in_a_row - 1)) // in_a_row)
    charts = []
    for number, title in enumerate(titles):
        own = shown[shown["panel"] == number]
        place = _axes(axes, own, left=number % in_a_row == 0, bottom=number + in_a_row >= len(titles))
        view = alt.layer(_dots(own, place), *(_diamonds if axes == SPHERE else _arrows)(own, place))
        height = side // 2 if axes == SPHERE else side
        charts.append(
            view.properties(width=side, height=height, title=alt.Title(list(title), fontSize=style.FONT, offset=2))
        )
    return alt.concat(*charts, columns=in_a_row, spacing=6).resolve_scale(color="shared")


def _axes(names: tuple[str, str], own: pd.DataFrame, *, left: bool, bottom: bool) -> dict[str, Any]:
    """The encodings of ``x`` and ``y``; panels at the edge say what the axes are."""
    alt = altair()
    low, high = ((-180, -90), (180, 90)) if names == SPHERE else _box(own)
    few = {"tickCount": 3, "grid": False, "labelOverlap": True}
    return {
        key: kind(f"{key}:Q", scale=alt.Scale(domain=[low[i], high[i]], nice=False),
                  axis=alt.Axis(title=names[i] if told else None, labelFlush=inside, **few))
        for i, (key, kind, told, inside) in enumerate((("x", alt.X, bottom, False), ("y", alt.Y, left, LABEL_INSIDE)))
    }  # fmt: skip


def _colours(own: pd.DataFrame) -> Any:
    """Of more than ten classes some share a colour, and have their number."""
    names = sorted(int(c) for c in own["class"].unique())
    return altair().Scale(domain=names, range=[style.CLASSES[c % len(style.CLASSES)] for c in names])


def _dots(own: pd.DataFrame, place: Mapping[str, Any]) -> Any:
    """Features, hollow if the class is not owned."""
    alt, colours = altair(), _colours(own)
    filled = alt.Fill("class:O", scale=colours, legend=None)
    dots = alt.Chart(inline(own[own["kind"] == "feature"])).mark_point(size=6, strokeWidth=0.7, opacity=0.5, clip=True)
    return dots.encode(
        **place,
        stroke=alt.Stroke("class:O", scale=colours, legend=None),
        fill=alt.when("datum.owned").then(filled).otherwise(alt.value(style.PAPER)),
    )


def _arrows(own: pd.DataFrame, place: Mapping[str, Any]) -> list[Any]:
    """Class vectors from the origin, dashed if the class is not owned, with their labels behind the tips."""
    alt = altair()
    vectors = own[own["kind"] == "vector"]
    low, high = _box(own)
    away = np.radians(vectors["degrees"])
    step = high[0] - low[0]
    seen = np.hypot(vectors["x"], vectors["y"]) > UNNAMED * step
    tips = vectors.assign(
        zero=0.0,
        label=vectors["label"].where(seen, ""),
        turn=90 - vectors["degrees"],
        text_x=vectors["x"] + (0.035 + 0.02 * vectors["label"].str.len().max()) * step * np.cos(away),
        text_y=vectors["y"] + 0.055 * step * np.sin(away),
    )
    base = alt.Chart(inline(tips))
    colour = alt.Color("class:O", scale=_colours(own), legend=None)
    dashes = alt.when("datum.owned").then(alt.value([1, 0])).otherwise(alt.value([3, 2]))
    heads = base.mark_point(shape="triangle", size=30, opacity=1, filled=True)
    return [
        base.mark_rule(strokeWidth=1.4).encode(**place, x2="zero:Q", y2="zero:Q", color=colour, strokeDash=dashes),
        heads.encode(**place, angle=alt.Angle("turn:Q", scale=None), color=colour, tooltip=_tooltip()),
        *_labels(base.encode(x="text_x:Q", y="text_y:Q")),
    ]


def _diamonds(own: pd.DataFrame, place: Mapping[str, Any]) -> list[Any]:
    """Class vectors as points, hollow if the class is not owned."""
    alt, colours = altair(), _colours(own)
    base = alt.Chart(inline(own[own["kind"] == "vector"])).encode(**place)
    filled = alt.Fill("class:O", scale=colours, legend=None)
    points = base.mark_point(shape="diamond", size=90, strokeWidth=1.2, opacity=1).encode(
        stroke=alt.Stroke("class:O", scale=colours, legend=None),
        fill=alt.when("datum.owned").then(filled).otherwise(alt.value(style.PAPER)),
        tooltip=_tooltip(),
    )
    return [points, *_labels(base, dy=-11)]


def _labels(base: Any, **more: Any) -> list[Any]:
    """The text of each vector, on a white ground."""
    text = base.encode(text="label:N")
    ground = text.mark_text(fontSize=style.FONT, stroke=style.PAPER, strokeWidth=3, strokeOpacity=0.85, **more)
    return [ground, text.mark_text(fontSize=style.FONT, color=style.INK, **more)]


def _tooltip() -> list[Any]:
    alt = altair()
    return ["class:O", "owned:N", *(alt.Tooltip(f"{key}:Q", format=".3g") for key in ("norm", "degrees"))]


def _box(own: pd.DataFrame) -> tuple[list[float], list[float]]:
    """A square around most features, all vectors and the origin: its lower left and upper right corner."""
    places = own[own["kind"] == "feature"][["x", "y"]].to_numpy(float)
    ends = np.concatenate([own[own["kind"] == "vector"][["x", "y"]].to_numpy(float), [[0.0, 0.0]]])
    low, high = ends.min(0), ends.max(0)
    if len(places):
        low = np.minimum(low, np.quantile(places, 1 - WITHIN, axis=0))
        high = np.maximum(high, np.quantile(places, WITHIN, axis=0))
    half = (0.5 + MARGIN) * (float((high - low).max()) or 1.0)
    middle = (low + high) / 2
    return (middle - half).tolist(), (middle + half).tolist()
