"""Convergence: a metric over rounds, bytes or seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure
from fedexp.report.figures.lines import BANDS, about, check, lines
from fedexp.report.load import Runs
from fedexp.report.measure import Metric, Spread, cells, of_rounds

if TYPE_CHECKING:
    import pandas as pd

MARKED_UP_TO = 12  # evaluated rounds
X: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "round": ("round", lambda rounds: rounds["round"]),
    "bytes": ("sent and received (MB)", lambda rounds: (rounds["bytes.up"] + rounds["bytes.down"]) / 1e6),
    "seconds": ("elapsed (s)", lambda rounds: rounds["seconds.elapsed"]),
}


def curves(
    runs: Runs,
    *,
    metric: str = "aggregation.accuracy",
    by: Sequence[str] = ("algo",),
    panels: Sequence[str] = (),
    over: str = "seed",
    x: str = "round",
    band: str = "std",
) -> Figure:
    """A metric over the rounds, with bands over seeds (x=round, bytes or seconds)."""
    check("x", x, X)
    check("band", band, BANDS)
    shown = data(runs, Metric(metric), by, panels, over, x, band)
    whole = {"axis": style.whole(shown["x"])} if x == "round" else {}
    axis = altair().X("x:Q", title=X[x][0], scale=altair().Scale(nice=False), **whole)
    chart = lines(shown, axis, Metric(metric).title_of_rounds, points=shown["round"].nunique() <= MARKED_UP_TO)
    caption = about(runs, shown, over, band)
    if shown.groupby(["panel", "method"])["n"].nunique().max() > 1:
        caption += f" Where the run of a {over} has no number, the mean is that of the others."
    return Figure(chart, shown, "Convergence", caption)


def data(
    runs: Runs, metric: Metric, by: Sequence[str], panels: Sequence[str], over: str, x: str, band: str
) -> pd.DataFrame:
    """Mean and band of each method and round; where x is measured, its mean over seeds."""
    rounds = of_rounds(runs.done, metric.name)
    series = rounds[["run", "round"]].assign(x=X[x][1](rounds), value=rounds[metric.name] * metric.factor)
    found = cells(runs.done, series.dropna(subset=["value"]), {"method": by, "panel": panels}, over)
    rows = [
        {
            "panel": panel,
            "method": method,
            "round": number,
            "x": own["x"].mean(),
            **Spread(tuple(own["value"])).row(band),
        }
        for (panel, method, number), own in found.groupby(["panel", "method", "round"])
    ]
    return pandas().DataFrame(rows)
