"""Accuracy by class: who learns which classes, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure, inline
from fedexp.report.figures.lines import BANDS, about, check, lines
from fedexp.report.frames import GOALS
from fedexp.report.load import Runs
from fedexp.report.measure import Spread, cells, in_order

if TYPE_CHECKING:
    import pandas as pd

X = ("class", "round")
LEGEND_COLUMNS = 5


def classes(
    runs: Runs,
    *,
    goal: str = "aggregation",
    by: Sequence[str] = ("algo",),
    panels: Sequence[str] = (),
    over: str = "seed",
    x: str = "class",
    band: str = "std",
) -> Figure:
    """Accuracy by class: a line per method over classes in the last round, or a line per class over rounds."""
    for key, value, known in (("goal", goal, GOALS), ("x", x, X), ("band", band, BANDS)):
        check(key, value, known)
    found = runs.done.classes
    found = found[found["goal"] == goal]
    if found.empty:
        raise ConfigError(f"goal={goal}: no finished run has accuracies by class of it.")
    joined = cells(runs.done, found.assign(value=found["accuracy"] * 100), {"method": by, "panel": panels}, over)
    if x == "round":
        if panels:
            raise ConfigError("panels: with x=round there is a panel for each method. Leave it out.")
        shown = means(joined, ["method", "round", "class"], band)
        chart = _over_rounds(shown, f"{goal} accuracy (%)")
        return Figure(chart, shown, "Accuracy by class", f"{about(runs, shown, over)} A line is a mean over {over}s.")
    last = joined[joined["round"] == joined.groupby("run")["round"].transform("max")]
    shown = means(last, ["panel", "method", "class"], band).rename(columns={"class": "x"})
    axis = altair().X("x:Q", title="class", axis=style.whole(shown["x"]))
    chart = lines(shown, axis, f"{goal} accuracy (%)", points=shown["x"].nunique() <= 20)
    return Figure(chart, shown, "Accuracy by class, last round", about(runs, shown, over, band))


def means(joined: pd.DataFrame, keys: Sequence[str], band: str) -> pd.DataFrame:
    """Mean and band over seeds."""
    rows = [
        {**dict(zip(keys, place, strict=True)), **Spread(tuple(own["value"])).row(band)}
        for place, own in joined.groupby(list(keys))
    ]
    return pandas().DataFrame(rows)


def _over_rounds(shown: pd.DataFrame, title: str) -> Any:
    alt = altair()
    drawn = shown.rename(columns={"method": "panel"})
    numbers = sorted(set(drawn["class"]))
    few = len(numbers) <= len(style.CLASSES)
    scale = alt.Scale(domain=numbers, range=list(style.CLASSES[: len(numbers)])) if few else alt.Scale(scheme="viridis")
    line = alt.Chart(inline(drawn)).mark_line(strokeWidth=1.2).encode(
        x=alt.X("round:Q", title="round", scale=alt.Scale(nice=False), axis=style.whole(shown["round"])),
        y=alt.Y("mean:Q", title=title),
        color=alt.Color("class:O", scale=scale,
                        legend=alt.Legend(orient="bottom", columns=LEGEND_COLUMNS, title="class", titleOrient="left")),
        tooltip=["panel:N", "class:O", "round:Q", alt.Tooltip("mean:Q", format=".2f")],
    )  # fmt: skip
    return style.paneled(alt.layer(line), in_order(drawn["panel"]))
