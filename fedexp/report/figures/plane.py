"""Both goals in one plane, with the methods that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure, inline
from fedexp.report.figures.lines import BANDS, about, check
from fedexp.report.load import Runs
from fedexp.report.measure import LAST, Metric, Spread, cells, in_order, values

if TYPE_CHECKING:
    import pandas as pd

HEIGHT = 250
NAMED = 8  # methods that have a colour and a name: those that the fewest others beat, all of the front, the reference


def plane(
    runs: Runs,
    *,
    x: str = "aggregation.mean",
    y: str = "personalization.mean",
    by: Sequence[str] = ("algo",),
    across: Sequence[str] = (),
    over: str = "seed",
    band: str = "std",
    reference: str = "fedavg",
    rule: str = LAST,
) -> Figure:
    """Two metrics of each method against each other, with error bars over seeds and the Pareto front."""
    check("band", band, BANDS)
    shown, left = data(runs, Metric(x), Metric(y), by, across, over, band, rule)
    shown["named"] = (shown["beaten"].rank(method="first") <= NAMED) | shown["front"] | (shown["method"] == reference)
    chart = _chart(shown, Metric(x).title, Metric(y).title)
    caption = about(runs, shown, over, band)
    if shown["front"].sum() > 1:
        caption += " The dashed line joins methods that no other beats in both."
    if not shown["named"].all():
        caption += f" Grey: {(~shown['named']).sum()} other methods."
    if across:
        caption += f" Each point is a mean over {', '.join(across)}."
    if left:
        caption += (
            f" Without both numbers: {', '.join(left[:3])}{f' and {len(left) - 3} more' if len(left) > 3 else ''}."
        )
    return Figure(chart, shown, "Both goals", caption)


def data(
    runs: Runs, x: Metric, y: Metric, by: Sequence[str], across: Sequence[str], over: str, band: str, rule: str
) -> tuple[pd.DataFrame, list[str]]:
    """One row per method with both means and their bands, and the methods that lack one of the numbers.

    With ``across``, a seed's value is the mean over those settings; methods that lack some of them are left out.
    """
    both = values(runs, x, rule).merge(values(runs, y, rule), on="run", suffixes=("_x", "_y"))
    found = cells(runs.done, both, {"method": by, "scene": across}, over)
    everyone = set(cells(runs.done, runs.done.config[["run"]], {"method": by, "scene": across}, over)["method"])
    scenes = found["scene"].nunique()
    rows: list[dict[str, Any]] = []
    for method, own in found.groupby("method"):
        seeds = [seed for _, seed in own.groupby("over") if seed["scene"].nunique() == scenes]
        if seeds:
            one = Spread(tuple(s["value_x"].mean() for s in seeds)).row(band)
            two = Spread(tuple(s["value_y"].mean() for s in seeds)).row(band)
            rows.append({"method": method, **_named(one, "x"), **_named(two, "y"), "n": one["n"]})
    if not rows:
        where = f" in each of {', '.join(in_order(found['scene']))}. Choose fewer scenes" if across else ""
        raise ConfigError(f"No method has both {x.name} and {y.name}{where}.")
    points = [(x.more_is_better, y.more_is_better, row["x"], row["y"]) for row in rows]
    made = pandas().DataFrame(rows).assign(beaten=[_beaten(p, points) for p in points])
    made["front"] = made["beaten"] == 0
    return made, in_order(list(everyone - {row["method"] for row in rows}))


def _named(spread: dict[str, Any], axis: str) -> dict[str, Any]:
    return {axis: spread["mean"], f"{axis}_low": spread["low"], f"{axis}_high": spread["high"]}


def _beaten(point: tuple[Any, ...], points: Sequence[tuple[Any, ...]]) -> int:
    """How many other points are at least as good in both and better in one; none of a point of the front."""
    x_sign, y_sign = (1 if more else -1 for more in point[:2])
    own = (x_sign * point[2], y_sign * point[3])
    others = ((x_sign * other[2], y_sign * other[3]) for other in points)
    return sum(a >= own[0] and b >= own[1] and (a, b) != own for a, b in others)


def _chart(shown: pd.DataFrame, x_title: str, y_title: str) -> Any:
    alt = altair()
    named = in_order(shown[shown["named"]]["method"])
    base, some = alt.Chart(inline(shown)), alt.Chart(inline(shown[shown["named"]]))
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(zero=False, nice=True, padding=8))
    y = alt.Y("y:Q", title=style.axis_title(y_title, HEIGHT), scale=alt.Scale(zero=False, nice=True, padding=8))
    numbers = [alt.Tooltip(f"{axis}:Q", format=".2f") for axis in ("x", "x_low", "x_high", "y", "y_low", "y_high")]
    tooltip = [alt.Tooltip("method:N"), *numbers, alt.Tooltip("n:Q")]
    front = base.transform_filter("datum.front").mark_line(color=style.FAINT, strokeWidth=1, strokeDash=[3, 2])
    others = base.transform_filter("!datum.named").mark_point(filled=True, size=16, color=style.FAINT)
    bars = some.mark_rule(strokeWidth=1, opacity=0.5)
    colour = style.colour(named)
    layers = [
        front.encode(x=x, y=y, order="x:Q"),
        *([] if shown["named"].all() else [others.encode(x=x, y=y, tooltip=tooltip)]),
        bars.encode(x=x, y="y_low:Q", y2="y_high:Q", color=colour),
        bars.encode(x="x_low:Q", x2="x_high:Q", y=y, color=colour),
        some.mark_point(filled=True, size=46, opacity=1).encode(
            x=x, y=y, color=colour, shape=style.shape(named), tooltip=tooltip
        ),
    ]
    return style.paneled(alt.layer(*layers), [], height=HEIGHT)
