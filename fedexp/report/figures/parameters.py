"""A metric over one hyper-parameter, as lines, or over two, as a map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure, inline
from fedexp.report.figures.lines import BANDS, about, check, lines
from fedexp.report.frames import written
from fedexp.report.load import Runs
from fedexp.report.measure import LAST, Metric, Spread, both_goals, cells, in_order, shared_title, values
from fedexp.terminal.numbers import DASH

if TYPE_CHECKING:
    import pandas as pd

LOG = ("auto", "true", "false")
LOG_FROM = 20.0  # the largest value over the smallest, from which on an axis is logarithmic


def parameter(
    runs: Runs,
    *,
    parameter: str,
    metric: Sequence[str] = (),
    by: Sequence[str] = ("algo",),
    panels: Sequence[str] = (),
    over: str = "seed",
    absent: str = "",
    log: str = "auto",
    band: str = "std",
    rule: str = LAST,
) -> Figure:
    """Metrics over a setting that is a number; runs without it are level lines, or stand at absent=NUMBER."""
    check("log", log, LOG)
    check("band", band, BANDS)
    metric = metric or both_goals(runs)
    shown = data(runs, parameter, metric, by, panels, over, _number(absent), band, rule)
    name = parameter.rpartition(".")[2].replace("_", " ")
    alt = altair()
    logarithmic = log == "true" or (log == "auto" and _spans_decades(shown["x"]))
    scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(zero=False, nice=False)
    axis = alt.X("x:Q", title=f"{name}{' (log scale)' if logarithmic else ''}", scale=scale)
    chart = lines(shown, axis, shared_title([Metric(name) for name in metric]), points=True)
    level = in_order(shown[shown["level"]]["method"])
    caption = about(runs, shown, over, band) + (f" Level: {', '.join(level)}, without {name}." if level else "")
    return Figure(chart, shown, f"Sensitivity to {parameter}", caption)


def data(
    runs: Runs,
    parameter: str,
    metric: Sequence[str],
    by: Sequence[str],
    panels: Sequence[str],
    over: str,
    absent: float,
    band: str,
    rule: str,
) -> pd.DataFrame:
    """Mean and band of each method and value; a run without the setting is at ``absent``, or at both ends."""
    numbers = pandas().to_numeric(runs.done.config[runs.done.setting(parameter)], errors="coerce")
    points = sorted({*numbers.dropna(), *([] if math.isnan(absent) else [absent])})
    if len(points) < 2:
        raise ConfigError(f"parameter={parameter}: fewer than two numbers among the finished runs. {_varying(runs)}")
    if len({Metric(name).unit for name in metric}) > 1:
        raise ConfigError(f"metric={','.join(metric)}: these have different units. Draw a figure of each.")
    rows: list[dict[str, Any]] = []
    groups = {"method": by, "panel": panels, "at": [parameter]}
    for name in metric:
        found = cells(runs.done, values(runs, Metric(name), rule), groups, over)
        for (method, panel, _), own in found.groupby(["method", "panel", "at"]):
            value = float(pandas().to_numeric(own[parameter], errors="coerce").fillna(absent).iloc[0])
            level = math.isnan(value)
            spread = Spread(tuple(own["value"])).row(band)
            where = ": ".join(filter(None, [panel, name if len(metric) > 1 else ""]))
            same = {"panel": where, "method": method, "level": level, **spread}
            rows += [{**same, "x": float(x)} for x in ([points[0], points[-1]] if level else [value])]
    return pandas().DataFrame(rows)


def _number(absent: str) -> float:
    try:
        return float(absent or math.nan)
    except ValueError:
        raise ConfigError(f"absent={absent}: this must be a number.") from None


def _varying(runs: Runs) -> str:
    config = runs.done.config
    numeric = [
        key
        for key in runs.done.differing(config["run"])
        if pandas().to_numeric(config[key], errors="coerce").nunique() > 1
    ]
    return f"Settings with several: {', '.join(numeric) or 'none'}."


def _spans_decades(points: Any) -> bool:
    return bool(points.min() > 0 and points.max() / points.min() >= LOG_FROM)


def heatmap(
    runs: Runs, *, x: str, y: str, metric: str = "aggregation.mean", over: str = "seed", rule: str = LAST
) -> Figure:
    """The mean of a metric for all combinations of two settings."""
    shown = combinations(runs, x, y, Metric(metric), over, rule)
    alt = altair()
    unit = Metric(metric)
    middle = float((shown["mean"].min() + shown["mean"].max()) / 2)
    base = alt.Chart(inline(shown)).encode(
        x=alt.X("x:O", title=x, sort=in_order(shown["x"]), axis=alt.Axis(labelAngle=0)),
        y=alt.Y("y:O", title=y, sort=in_order(shown["y"])[::-1]),
    )
    legend = alt.Legend(orient="bottom", title=None, gradientLength=180, tickCount=4)
    tiles = base.mark_rect().encode(
        color=alt.Color("mean:Q", scale=alt.Scale(scheme="viridis", zero=False), legend=legend),
        tooltip=["x:O", "y:O", alt.Tooltip("mean:Q", format=".3f"), "n:Q"],
    )
    ink = alt.condition(f"datum.mean > {middle}", alt.value("black"), alt.value("white"))
    texts = base.mark_text(fontSize=style.FONT).encode(
        text=alt.Text("mean:Q", format=".1f" if unit.unit == "%" else ".3~g"), color=ink
    )
    chart = style.paneled(alt.layer(tiles, texts), [], height=max(90, min(280, 36 * shown["y"].nunique())))
    caption = f"Mean over seeds. {about(runs, shown, over)}"
    return Figure(chart, shown, f"{unit.title} by {x} and {y}", caption)


def combinations(runs: Runs, x: str, y: str, metric: Metric, over: str, rule: str) -> pd.DataFrame:
    """The mean over seeds for each pair of values."""
    found = cells(runs.done, values(runs, metric, rule), {"x_label": [x], "y_label": [y]}, over)
    rows = [
        {"x": a, "y": b, "mean": Spread(tuple(own["value"])).mean, "n": len(own)}
        for (a, b), own in found.groupby([found[x].map(written), found[y].map(written)])
        if DASH not in (a, b)
    ]
    if not rows:
        raise ConfigError(f"No finished run has both {x} and {y}.")
    return pandas().DataFrame(rows)
