"""Who owns what: samples of each class and client as a map, with totals at its margins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure, inline
from fedexp.report.figures.lines import check
from fedexp.report.load import Runs
from fedexp.terminal.numbers import count

if TYPE_CHECKING:
    import pandas as pd

ORDERS = ("classes", "size", "none")
MARGIN = 38  # pixels of the bars
MAP_WIDTH = style.WIDTH - MARGIN - 66
BAR = "#6b8eb8"
NUMBERS_UP_TO = 10  # clients beside each other whose cells have room for a number


def partition(runs: Runs, *, order: str = "classes") -> Figure:
    """Training samples by class and client, with totals (order=classes, size or none)."""
    known = {run.name: runs.partition(run) for run in runs.done.found}
    different = list({str(counts): name for name, counts in known.items()}.values())
    if len(different) > 1:
        differing = ", ".join(runs.differing(different))
        raise ConfigError(
            f"These runs have {len(different)} partitions. Choose one by KEY=VALUE; they differ in {differing}."
        )
    if not known:
        raise ConfigError("No finished run has a partition to show.")
    run = runs.done.config.iloc[0]
    name = f"Who owns what: {run['data']}, {run['partition']}, seed {run['seed']}"
    return of_counts(next(iter(known.values())), title=name, order=order)


def of_counts(counts: Sequence[Sequence[int]], *, title: str = "Who owns what", order: str = "classes") -> Figure:
    """The figure of a table of training samples, [clients][classes]."""
    check("order", order, ORDERS)
    shown, clients = data(counts, order)
    owned = sum(value > 0 for row in counts for value in row)
    caption = (
        f"{count(len(counts), 'client')}, {len(counts[0])} class{'es' * (len(counts[0]) > 1)}, "
        f"{count(sum(map(sum, counts)), 'training sample')}; a client owns {owned / len(counts):.1f} on average. "
        f"Bars are totals; grey is a class that the client does not own."
    )
    return Figure(_chart(shown, clients, len(counts[0])), shown, title, caption)


def data(counts: Sequence[Sequence[int]], order: str) -> tuple[pd.DataFrame, list[int]]:
    """One row per client and class that it owns, and the order of the clients."""
    rows = [
        {"client": client, "class": c, "samples": int(value)}
        for client, row in enumerate(counts)
        for c, value in enumerate(row)
        if value
    ]
    keys = {
        "classes": lambda k: (*(not value for value in counts[k]), -sum(counts[k])),
        "size": lambda k: (-sum(counts[k]),),
        "none": lambda k: (k,),
    }
    return pandas().DataFrame(rows, columns=["client", "class", "samples"]), sorted(range(len(counts)), key=keys[order])


def _chart(shown: pd.DataFrame, clients: Sequence[int], n_classes: int) -> Any:
    alt = altair()
    height = max(110, min(300, 18 * n_classes))
    x = alt.X("client:O", scale=alt.Scale(domain=list(clients), paddingInner=0.04 if len(clients) <= 60 else 0))
    y = alt.Y("class:O", title="class", scale=alt.Scale(domain=list(range(n_classes)), paddingInner=0.04))
    few = alt.Axis(labelOverlap="greedy", labelSeparation=3, labelAngle=0, ticks=False, domain=False, grid=False)
    base = alt.Chart(inline(shown))
    scale = alt.Scale(type="sqrt", range=list(style.SCALE), domainMin=0)
    bar_legend = alt.Legend(orient="bottom", title="samples", titleOrient="left", gradientLength=150, tickCount=4)
    tiles = base.mark_rect().encode(
        x=x.axis(few).title(f"client{'' if list(clients) == sorted(clients) else ', sorted'}"), y=y.axis(few),
        color=alt.Color("samples:Q", scale=scale, legend=bar_legend), tooltip=["client:O", "class:O", "samples:Q"],
    ).properties(width=MAP_WIDTH, height=height)  # fmt: skip
    if len(clients) <= NUMBERS_UP_TO:
        ink = alt.condition(
            f"datum.samples > {0.3 * float(shown['samples'].max())}", alt.value(style.PAPER), alt.value(style.INK)
        )
        tiles += base.mark_text(fontSize=style.FONT).encode(x=x, y=y, text="samples:Q", color=ink)
    total = alt.Axis(title="samples", tickCount=2, format="~s", grid=False)
    above = base.mark_bar(color=BAR).encode(
        x=x.axis(None), y=alt.Y("sum(samples):Q", axis=total), tooltip=["client:O", "sum(samples):Q"]
    ).properties(width=MAP_WIDTH, height=MARGIN)  # fmt: skip
    beside = base.mark_bar(color=BAR).encode(
        y=y.axis(None), x=alt.X("sum(samples):Q", axis=total), tooltip=["class:O", "sum(samples):Q"]
    ).properties(width=MARGIN, height=height)  # fmt: skip
    framed = alt.layer(tiles, view=alt.ViewBackground(fill=style.NOTHING))
    return alt.vconcat(above, alt.hconcat(framed, beside, spacing=6), spacing=4)
