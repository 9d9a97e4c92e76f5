"""Which clients' classifiers answer alike, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedexp.errors import ConfigError
from fedexp.report import probes
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure, inline
from fedexp.report.load import FoundRun, Runs
from fedexp.terminal.numbers import count

if TYPE_CHECKING:
    import pandas as pd

PROBE = "relativity"
ALIKE = 0.9  # cosine of two clients' class counts from which on they are of a group, as for the probe
NAMED_UP_TO = 8  # clients
LABEL_WIDTH = 16  # of their numbers
IN_A_ROW = 3
GAP = 8


def relativity(runs: Runs, *, rounds: Sequence[str] = (), by: Sequence[str] = ("algo",), over: str = "seed") -> Figure:
    """Cosines of the answers of clients' classifiers, as maps of some rounds (probe=relativity; rounds=1,10,100)."""
    probes.seen(runs, PROBE)
    chosen = probes.first_of_each(runs, by, over)
    frames = [data(runs, method, run, rounds) for method, run in chosen.items()]
    shown = pandas().concat(frames, ignore_index=True)
    if shown["panel"].nunique() > style.MAX_PANELS:
        raise ConfigError(f"{shown['panel'].nunique()} maps do not fit in one figure. Choose fewer by rounds=1,10,100.")
    several = len(chosen) > 1
    contrasts = shown.drop_duplicates("panel")
    told = ", ".join(
        f"{f'{row.method} ' if several else ''}round {row.round}: {row.contrast:.2f}"
        for row in contrasts.itertuples()
        if row.contrast == row.contrast
    )
    config = runs.done.config
    caption = (
        f"{over.capitalize()} {min(config[over])}; {count(int(max(config['rounds'])), 'round')}. "
        "Clients with nearly the same classes stand together."
        + (f" Their mean cosine, less that of others: {told}." if told else "")
    )
    return Figure(_chart(shown, several=several), shown, "Relativity of clients' classifiers", caption)


def data(runs: Runs, method: str, run: FoundRun, rounds: Sequence[str]) -> pd.DataFrame:
    """One row per pair of clients and round: ``cosine``, and the places ``x`` and ``y`` in the order of clients."""
    known = sorted(_contrasts(runs, run))
    if not known:
        raise probes.unobserved(runs, PROBE)
    order = _order(runs.partition(run))
    rows: list[dict[str, Any]] = []
    for number in _rounds(rounds, known, method):
        held = probes.arrays(run, number, PROBE)["server"]
        clients = [int(client) for client in held["clients"]]
        places = {client: place for place, client in enumerate(sorted(clients, key=order.index))}
        same = {"panel": f"{method} {number}", "method": method, "round": number}
        same["contrast"] = _contrasts(runs, run)[number]
        rows += [
            {
                **same,
                "x": places[a],
                "y": places[b],
                "client": a,
                "other": b,
                "cosine": float(f"{held['matrix'][i, j]:.4g}"),
            }
            for i, a in enumerate(clients)
            for j, b in enumerate(clients)
        ]
    return pandas().DataFrame(rows)


def _rounds(wanted: Sequence[str], known: Sequence[int], method: str) -> list[int]:
    """The rounds that are asked for; without, the first, the middle and the last."""
    if not wanted:
        return sorted({known[0], known[len(known) // 2], known[-1]})
    unknown = [number for number in wanted if number not in map(str, known)]
    if unknown:
        near = ", ".join(map(str, known[:6])) + (f", …, {known[-1]}" if len(known) > 6 else "")
        raise ConfigError(f"rounds={unknown[0]}: {method} was observed in rounds {near}.")
    return [int(number) for number in wanted]


def _order(counts: Sequence[Sequence[int]]) -> list[int]:
    """Clients by the first one that has nearly the same classes."""
    unit = np.asarray(counts, dtype=float)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-300)
    first = (unit @ unit.T > ALIKE).argmax(1)
    return sorted(range(len(counts)), key=lambda k: (first[k], k))


def _contrasts(runs: Runs, run: FoundRun) -> dict[int, float]:
    """By round in which there is a matrix; NaN where all clients are alike, or none is like another."""
    rows = probes.seen(runs, PROBE)
    own = rows[(rows["run"] == run.name) & (rows["name"] == "matrix")]
    return {int(r): float(v.get("contrast", np.nan)) for r, v in zip(own["round"], own["values"], strict=True)}


def _chart(shown: pd.DataFrame, *, several: bool) -> Any:
    alt = altair()
    panels = list(dict.fromkeys(shown["panel"]))
    in_a_row = min(IN_A_ROW, len(panels))
    few = shown.groupby("panel")["x"].nunique().max() <= NAMED_UP_TO
    gap = GAP + LABEL_WIDTH * few
    side = min(190, (style.WIDTH - 40 - gap * (in_a_row - 1)) // in_a_row)
    scale = alt.Scale(scheme="viridis", domain=[float(shown["cosine"].min()), 1.0])
    legend = alt.Legend(orient="bottom", title="cosine", titleOrient="left", gradientLength=150, tickCount=4)
    axis = alt.Axis(labels=bool(few), labelAngle=0, ticks=False, domain=False, grid=False)
    charts = []
    for number, panel in enumerate(panels):
        own = shown[shown["panel"] == panel]
        title = f"{own['method'].iloc[0] + ', ' if several else ''}round {own['round'].iloc[0]}"
        first = number % in_a_row == 0
        order = own.sort_values("x")["client"].drop_duplicates().tolist()
        tiles = alt.Chart(inline(own)).mark_rect().encode(
            x=alt.X("client:O", title="client" if number + in_a_row >= len(panels) else None, axis=axis, sort=order),
            y=alt.Y("other:O", title="client" if first else None, axis=axis, sort=order),
            color=alt.Color("cosine:Q", scale=scale, legend=legend),
            tooltip=["client:O", "other:O", alt.Tooltip("cosine:Q", format=".3f")],
        )  # fmt: skip
        charts.append(tiles.properties(width=side, height=side, title=alt.Title(title, fontSize=style.FONT, offset=3)))
    return alt.concat(*charts, columns=in_a_row, spacing=GAP)
