"""Numbers of probes over rounds, epochs or steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedexp.errors import ConfigError
from fedexp.report import probes
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure
from fedexp.report.figures.lines import BANDS, about, check, lines
from fedexp.report.load import Runs
from fedexp.report.measure import Spread, cells, in_order
from fedexp.report.probes import Number

if TYPE_CHECKING:
    import pandas as pd

X = {"round": "round", "epoch": "local epoch, over all rounds", "step": "local step"}
MARKED_UP_TO = 12  # points of a line
LEVELS = {"etf": "simplex frame"}  # values that level lines are of, in words
# What the numbers of one run and one panel are told apart by: the panel they are in and the line they are.
SPLITS: dict[str, Callable[[Number], tuple[str, str]]] = {
    "panels": lambda number: (_joined(number.quantity, number.part, number.model), ""),
    "lines": lambda number: ("", _joined(number.part or number.quantity, number.model)),
    "quantities": lambda number: (number.quantity, _joined(number.part, number.model)),
}


def observed(
    runs: Runs,
    *,
    numbers: Sequence[str] = (),
    x: str = "round",
    split: str = "panels",
    by: Sequence[str] = ("algo",),
    panels: Sequence[str] = (),
    over: str = "seed",
    level: str = "",
    round: str = "1",  # noqa: A002
    band: str = "std",
) -> Figure:
    """Numbers of probes over rounds, epochs, or the steps of a round (numbers=classifier.trained.norm_missing,…)."""
    for key, value, choices in (("x", x, X), ("split", split, SPLITS), ("band", band, BANDS)):
        check(key, value, choices)
    if not numbers:
        there = ", ".join(probes.names(runs.done.probes)) or "none. Run with a probe, as in probe=classifier"
        raise ConfigError(f"observed needs numbers=NAME,…. These runs have {there}.")
    wanted = [Number(of) for of in numbers]
    shown, clients = data(runs, wanted, x, split, by, panels, over, band, _whole(round))
    if level:
        shown = pandas().concat([shown, _levels(runs, wanted, level, shown, panels, over, split)])
    axis = altair().X("x:Q", title=X[x], scale=altair().Scale(nice=False), axis=style.whole(shown["x"]))
    order = _order(shown, wanted, split)
    own = order if split != "lines" and len(wanted) > 1 else None
    title = "" if split != "lines" and len(order) > 1 else wanted[0].quantity
    points = shown.groupby(["panel", "method"])["x"].nunique().max() <= MARKED_UP_TO
    chart = lines(shown, axis, title, points=bool(points), panels=own)
    caption = about(runs, shown, over, band)
    caption += " A point is a mean over the clients of a round." if clients else ""
    caption += f" Round {_whole(round)}." if x == "step" else ""
    caption += probes.without(runs, probes.seen(runs, wanted[0].probe)["run"])
    observers = ", ".join(dict.fromkeys(number.probe for number in wanted))
    return Figure(chart, shown, f"Observed by {observers}", caption)


def data(
    runs: Runs,
    numbers: Sequence[Number],
    x: str,
    split: str,
    by: Sequence[str],
    panels: Sequence[str],
    over: str,
    band: str,
    round_: int,
) -> tuple[pd.DataFrame, bool]:
    """Mean and band of each method, panel and point, and whether a point of a run is a mean over clients."""
    rows: list[dict[str, Any]] = []
    several = False
    for number in numbers:
        panel, line = SPLITS[split](number)
        found = _placed(runs, number.values(runs), x, round_, number.of)
        several = several or bool(found.groupby(["run", "x"]).size().max() > 1)
        means = found.groupby(["run", "x"], as_index=False)["value"].mean()
        joined = cells(runs.done, means, {"method": by, "scene": panels}, over)
        alone = line and joined["method"].nunique() == 1
        scenes = joined["scene"].nunique() > 1
        for (scene, method, at), own in joined.groupby(["scene", "method", "x"]):
            label = line if alone else _joined(method, line, sign=" ")
            spread = Spread(tuple(own["value"])).row(band)
            rows.append(
                {
                    "panel": _titled(scene if scenes else "", panel),
                    "method": label,
                    "x": at,
                    "number": number.of,
                    **spread,
                }
            )
    return pandas().DataFrame(rows), several


def _placed(runs: Runs, found: pd.DataFrame, x: str, round_: int, of: str) -> pd.DataFrame:
    """The rows with where they stand on the axis, counted from 1."""
    if x == "round":
        return found.assign(x=found["round"])
    if found[x].isna().all():
        raise ConfigError(f"x={x}: {of} is observed once a round, not at each {x}. Use x=round, or another number.")
    if x == "step":
        own = found[found["round"] == round_]
        if own.empty:
            raise ConfigError(f"round={round_}: {of} was not observed in this round. Known: {_some(found['round'])}.")
        return own.assign(x=own["step"] + 1)
    lengths = runs.done.config.set_index("run")["local.epochs"]
    return found.assign(x=(found["round"] - 1) * found["run"].map(lengths).astype(float) + found["epoch"] + 1)


def _levels(
    runs: Runs, numbers: Sequence[Number], key: str, shown: pd.DataFrame, panels: Sequence[str], over: str, split: str
) -> pd.DataFrame:
    """Another value of the rows that are of all classes as a level line in their panels: the mean over all runs."""
    rows: list[dict[str, Any]] = []
    for number in (number for number in numbers if not number.part):
        own = Number(f"{number.of.rpartition('.')[0]}.{key}")
        found = cells(runs.done, own.values(runs), {"scene": panels, "own": ["run"]}, over)
        for scene, values in found.groupby("scene"):
            panel = _titled(scene if found["scene"].nunique() > 1 else "", SPLITS[split](number)[0])
            ends = shown[shown["panel"] == panel]["x"]
            mean = float(values["value"].mean())
            same = {
                "panel": panel,
                "method": LEVELS.get(key, key),
                "number": own.of,
                "mean": mean,
                "low": mean,
                "high": mean,
                "n": 1,
            }
            rows += [{**same, "x": float(at)} for at in (ends.min(), ends.max())]
    return pandas().DataFrame(rows)


def _order(shown: pd.DataFrame, numbers: Sequence[Number], split: str) -> list[str]:
    """Panels by number, and by scene within each."""
    found = in_order(shown["panel"])
    names = list(dict.fromkeys(SPLITS[split](number)[0] for number in numbers))
    return [panel for name in names for panel in found if panel.partition("\n")[0] == name]


def _titled(scene: str, panel: str) -> str:
    return "\n".join(filter(None, [panel, scene]))


def _joined(*words: str, sign: str = ", ") -> str:
    return sign.join(filter(None, words))


def _some(values: Any) -> str:
    known = sorted({int(value) for value in values})
    return ", ".join(map(str, known[:5])) + (f", …, {known[-1]}" if len(known) > 5 else "")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"round={text}: this must be the number of a round.") from None
