"""What a round costs a client, beside a reference method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure, inline
from fedexp.report.figures.lines import about
from fedexp.report.load import Runs
from fedexp.report.measure import LAST, Metric, cells, in_order, values
from fedexp.report.probes import Number

if TYPE_CHECKING:
    import pandas as pd

PANELS = {"stored": "memory", "seconds": "seconds of local training"}
LABELS_WIDTH = 84
HEIGHT = 170


def cost(
    runs: Runs,
    *,
    reference: str = "fedavg",
    metric: str = "aggregation.best",
    by: Sequence[str] = ("algo",),
    over: str = "seed",
    rule: str = LAST,
) -> Figure:
    """Memory and seconds of a client's round against a reference, and accuracy against seconds (probe=cost)."""
    shown = data(runs, reference, Metric(metric), by, over, rule)
    bars = _bars(shown, reference)
    chart = altair().vconcat(bars, _plane(shown, Metric(metric).title), spacing=14)
    caption = (
        f"{about(runs, shown, over)} Means over clients and rounds. Memory: the network, what the client keeps between "
        f"rounds and what it receives besides the model. Seconds are those of one machine, and of what else it did."
    )
    return Figure(chart, shown, "What a round costs a client", caption)


def data(runs: Runs, reference: str, metric: Metric, by: Sequence[str], over: str, rule: str) -> pd.DataFrame:
    """One row per method: ``stored`` (MB), ``seconds``, both as multiples of the reference's, and the metric."""
    columns = {key: Number(f"cost.round.{key}").values(runs).groupby("run")["value"].mean() for key in PANELS}
    found = pandas().DataFrame(columns).reset_index().merge(values(runs, metric, rule), on="run")
    joined = cells(runs.done, found, {"method": by}, over)
    means = joined.groupby("method")[[*PANELS, "value"]].mean().assign(n=joined.groupby("method").size())
    if reference not in means.index:
        raise ConfigError(f"reference={reference}: there is no run of it. {nearest(reference, in_order(means.index))}")
    for key in PANELS:
        means[f"{key}_times"] = means[key] / means.loc[reference, key]
    return means.loc[in_order(means.index)].reset_index()


def _bars(shown: pd.DataFrame, reference: str) -> Any:
    alt = altair()
    width = (style.WIDTH - LABELS_WIDTH - style.PANEL_GAP) // 2
    order = list(shown.sort_values("seconds_times")["method"])
    charts = []
    for number, (key, title) in enumerate(PANELS.items()):
        y = alt.Y("method:N", sort=order, title=None, axis=alt.Axis() if number == 0 else None)
        x = alt.X(f"{key}_times:Q", title=f"times that of {reference}", axis=alt.Axis(tickCount=4))
        base = alt.Chart(inline(shown)).encode(x=x, y=y, tooltip=["method:N", alt.Tooltip(f"{key}:Q", format=".3g")])
        text = base.mark_text(align="left", dx=3, fontSize=style.FONT, color=style.INK)
        layers = alt.layer(
            base.mark_bar(color=style.BLUE, opacity=0.8), text.encode(text=alt.Text(f"{key}_times:Q", format=".2f"))
        )
        heading = alt.Title(title, fontSize=style.FONT, offset=3)
        charts.append(layers.properties(width=width, height=17 * len(shown), title=heading))
    return alt.hconcat(*charts, spacing=style.PANEL_GAP)


def _plane(shown: pd.DataFrame, title: str) -> Any:
    alt = altair()
    methods = list(shown["method"])
    chart = alt.Chart(inline(shown)).mark_point(filled=True, size=50, opacity=1).encode(
        x=alt.X("seconds:Q", title="local training of a client (s)", scale=alt.Scale(zero=False, padding=10)),
        y=alt.Y("value:Q", title=style.axis_title(title, HEIGHT), scale=alt.Scale(zero=False, padding=10)),
        color=style.colour(methods), shape=style.shape(methods),
        tooltip=["method:N", alt.Tooltip("seconds:Q", format=".3g"), alt.Tooltip("value:Q", format=".2f")],
    )  # fmt: skip
    return chart.properties(width=style.PLOT_WIDTH, height=HEIGHT)
