"""What local training does, and what the next download undoes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure, inline
from fedexp.report.figures.lines import about, check
from fedexp.report.frames import written
from fedexp.report.load import Runs
from fedexp.report.measure import Spread, cells, in_order
from fedexp.report.probes import Number

if TYPE_CHECKING:
    import pandas as pd

ACCURACY = "accuracy"
OF_CLIENTS = {"before": "downloaded", "after": "trained"}  # columns of clients.csv
PRIVATE = "personal_before"  # column of methods whose clients keep a model of their own
STARTS = ("own", "downloaded")
STAGES = {"received": "downloaded", "trained": "trained", "aggregated": "aggregated"}  # rows of probes
MARKED_UP_TO = 20  # rounds
HEIGHT = 170


def zigzag(
    runs: Runs,
    *,
    numbers: Sequence[str] = (ACCURACY,),
    by: Sequence[str] = ("algo",),
    panels: Sequence[str] = (),
    over: str = "seed",
    clients: Sequence[str] = (),
    start: str = "own",
) -> Figure:
    """Local accuracy, or numbers of a probe (numbers=classifier.angle_missing), before and after local training."""
    check("start", start, STARTS)
    shown = data(runs, numbers, by, panels, over, clients, start)
    accuracy = list(numbers) == [ACCURACY]
    title = "local accuracy (%)" if accuracy else Number(_of(numbers[0], "trained")).quantity
    whose = f"client{'s' * (len(clients) > 1)} {', '.join(clients)}" if clients else "the clients of a round"
    own = "; of methods that keep a private model, that one" if accuracy and start == "own" and _private(runs) else ""
    caption = (
        f"{about(runs, shown, over)} Slopes: local training, from the downloaded model (hollow{own}) to the trained "
        f"one (filled). Means over {whose}{f' and {over}s' if (shown['n'] > 1).any() else ''}."
    )
    heading = "Local accuracy" if accuracy else "Class vectors"
    return Figure(_chart(shown, title), shown, f"{heading} before and after local training", caption)


def data(
    runs: Runs,
    numbers: Sequence[str],
    by: Sequence[str],
    panels: Sequence[str],
    over: str,
    clients: Sequence[str],
    start: str,
) -> pd.DataFrame:
    """``x`` and ``mean`` of each panel, line, round and stage, in the order in which they came to be."""
    rows: list[dict[str, Any]] = []
    for name in numbers:
        found = _of_clients(runs, clients, start) if name == ACCURACY else _of_probe(runs, name, clients)
        means = found.groupby(["run", "round", "stage"], as_index=False)["value"].mean()
        joined = cells(runs.done, means, {"method": by, "panel": panels}, over)
        alone = len(numbers) > 1 and joined["method"].nunique() == 1
        part = Number(_of(name, "trained")).part
        for (panel, method, round_, stage), own in joined.groupby(["panel", "method", "round", "stage"]):
            label = part if alone else " ".join(filter(None, [method, part if len(numbers) > 1 else ""]))
            place = list(STAGES.values()).index(stage)
            at = {"round": round_, "stage": stage, "x": round_ - (place == 0), "order": round_ * 3 + place}
            spread = Spread(tuple(own["value"]))
            rows.append({"panel": panel, "method": label, **at, "mean": spread.mean, "n": len(spread.values)})
    return pandas().DataFrame(rows)


def _private(runs: Runs) -> bool:
    return PRIVATE in runs.done.clients and bool(runs.done.clients[PRIVATE].notna().any())


def _of_clients(runs: Runs, clients: Sequence[str], start: str) -> pd.DataFrame:
    found = runs.done.clients
    if not set(OF_CLIENTS) <= set(found.columns) or found[list(OF_CLIENTS)].isna().all(axis=None):
        raise ConfigError(
            "No client's accuracy before and after training is on file: these runs hold out no test samples of "
            "clients (partition.test=holdout), or no client got through a round."
        )
    found = _chosen(found, clients)
    if start == "own" and _private(runs):
        found = found.assign(before=found[PRIVATE].fillna(found["before"]))
    parts = [
        found[["run", "round"]].assign(stage=stage, value=100 * found[column]) for column, stage in OF_CLIENTS.items()
    ]
    return pandas().concat(parts).dropna(subset=["value"])


def _of_probe(runs: Runs, name: str, clients: Sequence[str]) -> pd.DataFrame:
    parts = []
    for row, stage in STAGES.items():
        found = Number(_of(name, row)).values(runs)
        parts.append((found if row == "aggregated" else _chosen(found, clients)).assign(stage=stage))
    return pandas().concat(parts)


def _of(name: str, row: str) -> str:
    """``classifier.angle_missing`` → ``classifier.trained.angle_missing``."""
    probe, _, key = name.partition(".")
    return f"{probe}.{row}.{key}"


def _chosen(found: pd.DataFrame, clients: Sequence[str]) -> pd.DataFrame:
    if not clients:
        return found
    names = found["client"].map(written)
    if lacking := [client for client in clients if client not in set(names)]:
        raise ConfigError(f"clients={','.join(lacking)}: there is no row of {'these' if lacking[1:] else 'this one'}.")
    return found[names.isin(clients)]


def _chart(shown: pd.DataFrame, title: str) -> Any:
    alt = altair()
    methods, panels = in_order(shown["method"]), in_order(shown["panel"])
    base = alt.Chart(inline(shown)).encode(
        x=alt.X("x:Q", title="rounds done", scale=alt.Scale(nice=False), axis=style.whole(shown["x"])),
        y=alt.Y("mean:Q", title=style.axis_title(title, HEIGHT), scale=alt.Scale(zero=False)),
        tooltip=["method:N", "stage:N", "round:Q", alt.Tooltip("mean:Q", format=".2f"), "n:Q"],
    )
    line = base.mark_line(strokeWidth=1.3, strokeJoin="round").encode(
        color=style.colour(methods, **style.STROKES), strokeDash=style.dash(methods), order="order:Q"
    )
    layers = [line]
    if shown["round"].nunique() <= MARKED_UP_TO:
        points = base.transform_filter("datum.stage != 'aggregated'").mark_point(size=26, strokeWidth=1.3, opacity=1)
        fills = alt.Scale(domain=methods, range=[style.PALETTE[style.looks(methods)[name][0]] for name in methods])
        hollow = alt.when("datum.stage == 'downloaded'").then(alt.value(style.PAPER))
        layers.append(
            points.encode(
                color=style.colour(methods, **style.STROKES),
                fill=hollow.otherwise(alt.Fill("method:N", scale=fills, legend=style.below(methods, **style.STROKES))),
            )
        )
    return style.paneled(alt.layer(*layers), panels, height=HEIGHT)
