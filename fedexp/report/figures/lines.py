"""Lines with bands, one per method: what curves, fairness, classes and hyper-parameters are drawn with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedexp.errors import ConfigError
from fedexp.report.extra import altair
from fedexp.report.figures import style
from fedexp.report.figures.figure import inline
from fedexp.report.load import Runs
from fedexp.report.measure import in_order
from fedexp.reproduce.verdict import MIN_SEEDS
from fedexp.terminal.numbers import count

if TYPE_CHECKING:
    import pandas as pd

BANDS = {"std": "± standard deviation", "interval": "with 95 % interval"}


def lines(
    data: pd.DataFrame,
    x: Any,
    y_title: str,
    *,
    points: bool = False,
    step: bool = False,
    panels: Sequence[str] | None = None,
) -> Any:
    """Draws ``mean`` over ``x``, and the band from ``low`` to ``high``.

    Args:
        data: Has ``panel``, ``method``, ``x``, ``mean``, ``low``, ``high``, ``n``.
        x: The encoding of ``x``.
        y_title: With the unit.
        points: Whether values are marked, because there are few.
        step: Whether the value stays the same up to the next.
        panels: Their order, if they are of different quantities, which have scales of their own.
    """
    alt = altair()
    own_scales, panels = panels is not None, in_order(data["panel"]) if panels is None else panels
    methods = in_order(data["method"])
    picked = alt.selection_point(fields=["method"], bind="legend")
    title = style.axis_title(y_title, style.HEIGHT if len(panels) < 2 else style.PLOT_WIDTH // 2) or None
    capped = _limits(data) if "%" in y_title else {}
    y = alt.Y("mean:Q", title=title, scale=alt.Scale(zero=False, nice=not capped, **capped))
    base = alt.Chart(inline(data)).encode(x=x, color=style.colour(methods, **style.STROKES))
    tooltip = [alt.Tooltip("method:N"), alt.Tooltip("x:Q", format=".4~g"), alt.Tooltip("mean:Q", format=".2f"),
               alt.Tooltip("low:Q", format=".2f"), alt.Tooltip("high:Q", format=".2f"), alt.Tooltip("n:Q")]  # fmt: skip
    faded = alt.when(picked).then(alt.value(1.0)).otherwise(alt.value(0.12))
    line = base.mark_line(strokeWidth=1.6, interpolate="step-after" if step else "linear").encode(
        y=y, strokeDash=style.dash(methods), opacity=faded, tooltip=tooltip
    )
    layers = [line.add_params(picked)]
    if (data["n"] > 1).any():
        pale = alt.when(picked).then(alt.value(0.16)).otherwise(alt.value(0.03))
        band = base.mark_area(clip=True).encode(y=alt.Y("low:Q", title=title), y2="high:Q", opacity=pale)
        layers.insert(0, band)
    if points:
        layers.append(base.mark_point(size=22, filled=True).encode(y=y, opacity=faded, tooltip=tooltip))
    return style.paneled(alt.layer(*layers), panels, own_scales=own_scales)


def _limits(data: pd.DataFrame) -> dict[str, float]:
    """Where shares end, which deviations do not know of; around a single value, a point on each side."""
    if data["low"].min() == data["high"].max():
        return {"domainMin": data["mean"].min() - 1, "domainMax": data["mean"].max() + 1}
    low = {"domainMin": 0.0} if data["low"].min() < 0 <= data["mean"].min() else {}
    return {**low, "domainMax": 100.0} if data["high"].max() > 100 else low


def about(runs: Runs, data: pd.DataFrame, over: str, band: str = "") -> str:
    """What a caption says of the runs: seeds, rounds, and those that are left out."""
    rounds = sorted({int(n) for n in runs.done.config["rounds"]})
    length = count(rounds[-1], "round") if rounds[0] == rounds[-1] else f"{rounds[0]} to {rounds[-1]} rounds"
    values = sorted(set(runs.done.config[over]))
    named = ", ".join(map(str, values)) if len(values) <= 5 else f"{len(values)} values"
    seeds = f"{over}{'s' * (len(values) > 1)} {named}"
    several = "n" in data and bool((data["n"] > 1).any())
    spread = f"Mean {BANDS[band]} over {seeds}" if band and several else seeds.capitalize()
    if band == "interval" and several and (data["n"] < MIN_SEEDS).all():
        spread = f"Mean over {seeds}, too few for an interval"
    left = len(runs.found) - len(runs.done.found)
    return f"{spread}; {length}." + (f" {count(left, 'run')} not finished, left out." if left else "")


def check(key: str, value: str, known: Any) -> None:
    """Raises ``ConfigError`` if an option has none of its values."""
    if value not in known:
        raise ConfigError(f"{key}={value}: this must be {' or '.join(known)}.")
