"""Who gains and who loses: histograms of gains, and how even clients' accuracies are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure, inline
from fedexp.report.figures.lines import BANDS, about, check, lines
from fedexp.report.frames import natural
from fedexp.report.load import Runs
from fedexp.report.measure import Spread, cells, in_order

if TYPE_CHECKING:
    import pandas as pd

WIDTHS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)  # of bins, in points
MAX_BINS = 24
SHARES = np.linspace(0.0, 1.0, 101)  # of clients, where sorted accuracies are read off
SORTED, ECDF = "sorted", "ecdf"
AFTER = "accuracy (%)"


def accuracies(runs: Runs) -> tuple[pd.DataFrame, str]:
    """The accuracy of each run's clients in %, and in words when it was measured.

    After the last round, if that was measured in all runs; else of each client when it took part for the last time.
    """
    done, final = runs.done, runs.done.final_clients
    if set(final["run"]) == {run.name for run in done.found}:
        return final.assign(accuracy=final["accuracy"] * 100), "All clients, trained once more after the last round."
    rows = done.clients
    if "after" not in rows or rows["after"].isna().all():
        raise ConfigError(
            "No client's accuracy is on file: the runs hold out no test samples of clients, or no client got through "
            "a round."
        )
    last = rows.dropna(subset=["after"]).sort_values("round").groupby(["run", "client"]).tail(1)
    made = last[["run", "client"]].assign(accuracy=last["after"] * 100)
    return made, "Each client when it took part for the last time."


# ---------------------------------------------------------------- gains
def gains(
    runs: Runs,
    *,
    reference: str = "fedavg",
    by: Sequence[str] = ("algo",),
    scenes: Sequence[str] = (),
    over: str = "seed",
) -> Figure:
    """A histogram for each method: clients' accuracy less that with the reference."""
    each, when = by_client(runs, reference, by, scenes, over)
    width = _bin_width(each["gain"])
    binned = _binned(each, width)
    titles = _titles(each)
    binned["panel"] = [titles[place] for place in zip(binned["scene"], binned["method"], strict=True)]
    chart = _histogram(binned, list(titles.values()), reference)
    each_of = "a client in one run" if each["over"].nunique() > 1 else "a client"
    caption = (
        f"{about(runs, each, over)} {when} Counted is {each_of}; bins are {width:g} points wide. Up and down are all "
        f"differences; the grey bar has those of less than {width / 2:g} points."
    )
    if len(titles) == 1:  # else each panel says it
        caption += f" {next(iter(titles.values()))}."
    return Figure(chart, binned, f"Clients' gains over {reference}", caption)


def by_client(
    runs: Runs, reference: str, by: Sequence[str], scenes: Sequence[str], over: str
) -> tuple[pd.DataFrame, str]:
    """``gain`` of each method, scene, seed and client that the reference has too."""
    found, when = accuracies(runs)
    joined = cells(runs.done, found, {"method": by, "scene": scenes}, over)
    methods = in_order(joined["method"])
    if reference not in methods:
        raise ConfigError(f"reference={reference}: there is no run of it. {nearest(reference, methods)}")
    keys = ["scene", "over", "client"]
    base = joined[joined["method"] == reference][[*keys, "accuracy"]]
    others = joined[joined["method"] != reference].merge(base, on=keys, suffixes=("", "_reference"))
    if others.empty:
        raise ConfigError(f"No other method has the clients and {over}s of {reference}.")
    return others.assign(gain=others["accuracy"] - others["accuracy_reference"]), when


def _bin_width(gained: Any) -> float:
    span = float(gained.max() - gained.min())
    return next((width for width in WIDTHS if span / width <= MAX_BINS), WIDTHS[-1])


def _binned(each: pd.DataFrame, width: float) -> pd.DataFrame:
    """Clients by bins, the middle one of which is around zero."""
    centres = (each["gain"] / width).map(lambda share: math.floor(share + 0.5)) * width
    counted = each.assign(centre=centres).groupby(["scene", "method", "centre"]).size().rename("clients").reset_index()
    sides = counted["centre"].map(lambda c: "gain" if c > 0 else "loss" if c < 0 else "about equal")
    return counted.assign(side=sides, start=counted["centre"] - width / 2, end=counted["centre"] + width / 2)


def _titles(each: pd.DataFrame) -> dict[tuple[str, str], str]:
    """By scene and method: who is shown, and how many clients gain and lose."""

    def words(gain: Any) -> str:
        return f"{(gain > 0).sum()} up, {(gain < 0).sum()} down"

    found = dict(iter(each.groupby(["scene", "method"])["gain"]))
    order = sorted(found, key=lambda place: [natural(part) for part in place])
    return {place: f"{' '.join(filter(None, place))}: {words(found[place])}" for place in order}


def _histogram(binned: pd.DataFrame, panels: Sequence[str], reference: str) -> Any:
    alt = altair()
    scale = alt.Scale(domain=["loss", "about equal", "gain"], range=[style.RED, "#b5b5b5", style.BLUE])
    title = style.x_title(f"accuracy less {reference} (points)", len(panels))
    bars = alt.Chart(inline(binned)).mark_bar(binSpacing=1).encode(
        x=alt.X("start:Q", bin="binned", title=title), x2="end:Q",
        y=alt.Y("clients:Q", title="clients"),
        color=alt.Color("side:N", scale=scale, legend=alt.Legend(orient="bottom")),
        tooltip=["method:N", alt.Tooltip("start:Q", format=".2f"), alt.Tooltip("end:Q", format=".2f"), "clients:Q"],
    )  # fmt: skip
    return style.paneled(alt.layer(bars), panels) if len(panels) > 1 else style.paneled(bars, panels)


# ---------------------------------------------------------------- fairness
def fairness(
    runs: Runs,
    *,
    by: Sequence[str] = ("algo",),
    panels: Sequence[str] = (),
    over: str = "seed",
    form: str = SORTED,
    band: str = "std",
) -> Figure:
    """Clients' accuracies from the worst to the best, or their distribution (form=sorted or ecdf)."""
    check("form", form, (SORTED, ECDF))
    check("band", band, BANDS)
    found, when = accuracies(runs)
    joined = cells(runs.done, found, {"method": by, "panel": panels}, over)
    alt = altair()
    if form == SORTED:
        shown = sorted_accuracies(joined, band)
        title = style.x_title("clients, from the worst to the best (%)", shown["panel"].nunique())
        axis = alt.X("x:Q", title=title, scale=alt.Scale(nice=False))
        chart, caption = lines(shown, axis, AFTER), about(runs, shown, over, band)
    else:
        shown = distribution(joined)
        axis = alt.X("x:Q", title=f"clients' {AFTER}", scale=alt.Scale(zero=False))
        chart = lines(shown, axis, "clients with at most that accuracy (%)", step=True)
        caption = f"{about(runs, shown, over)} Clients of all {over}s together."
    return Figure(chart, shown, "How even clients' accuracies are", f"{caption} {when}")


def sorted_accuracies(joined: pd.DataFrame, band: str) -> pd.DataFrame:
    """Quantiles of each run's clients, mean and band over seeds."""
    rows: list[dict[str, Any]] = []
    for (panel, method), own in joined.groupby(["panel", "method"]):
        read = [np.quantile(run["accuracy"], SHARES) for _, run in own.groupby("run")]
        rows += [
            {"panel": panel, "method": method, "x": 100 * share, **Spread(tuple(map(float, at))).row(band)}
            for share, at in zip(SHARES.tolist(), zip(*read, strict=True), strict=True)
        ]
    return pandas().DataFrame(rows)


def distribution(joined: pd.DataFrame) -> pd.DataFrame:
    """The share of clients with at most an accuracy, seeds together; it begins at the worst of all clients."""
    worst = joined["accuracy"].min()
    rows: list[dict[str, Any]] = []
    for (panel, method), own in joined.groupby(["panel", "method"]):
        ordered = own["accuracy"].to_numpy()
        for value in np.unique([worst, *ordered]):
            share = 100 * float((ordered <= value).mean())
            rows.append(
                {"panel": panel, "method": method, "x": float(value), "mean": share, "low": share, "high": share}
            )
    return pandas().DataFrame(rows).assign(n=1)
