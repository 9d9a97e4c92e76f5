"""What learning all classes costs on some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedexp.errors import ConfigError
from fedexp.report.extra import altair, pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure
from fedexp.report.figures.lines import BANDS, about, check, lines
from fedexp.report.load import Runs
from fedexp.report.measure import Spread, cells

if TYPE_CHECKING:
    import pandas as pd

ALONE, ALL = "trained on these", "trained on all"


def subsets(runs: Runs, *, by: Sequence[str] = (), over: str = "seed", band: str = "std") -> Figure:
    """Accuracy on the first classes of a run that was trained on them alone, and of one that was trained on all."""
    check("band", band, BANDS)
    shown = data(runs, by, over, band)
    axis = altair().X("x:Q", title="classes", scale=altair().Scale(nice=False), axis=style.whole(shown["x"]))
    chart = lines(shown, axis, "accuracy on these classes (%)", points=True)
    note = "Server's model on the test samples of these classes in the last round; answers may be any class."
    return Figure(chart, shown, "Some classes alone, or among all", f"{about(runs, shown, over, band)} {note}")


def data(runs: Runs, by: Sequence[str], over: str, band: str) -> pd.DataFrame:
    """Mean accuracy over each set of classes, of its own runs and of those with all classes, told apart by settings."""
    owned = {run.name: _owned(runs.partition(run)) for run in runs.done.found}
    everything = max(map(len, owned.values()), default=0)
    smaller = sorted({classes for classes in owned.values() if len(classes) < everything}, key=len)
    if not smaller or len({len(classes) for classes in smaller}) < len(smaller):
        raise ConfigError(
            "This figure needs runs whose clients own some classes together, each with another number of them, and "
            "runs with all classes, as partition=explicit 'partition.classes=[[0,1,2]]' makes them."
        )
    found = runs.done.classes
    found = found[found["goal"] == "aggregation"]
    last = found[found["round"] == found.groupby("run")["round"].transform("max")]
    rows: list[dict[str, Any]] = []
    for run, classes in owned.items():
        of_run = last[last["run"] == run].set_index("class")["accuracy"]
        for some in smaller if len(classes) == everything else [classes]:
            line = ALL if len(classes) == everything else ALONE
            rows.append({"run": run, "line": line, "x": len(some), "value": 100 * of_run.reindex(sorted(some)).mean()})
    made = pandas().DataFrame(rows).dropna(subset=["value"])
    return pandas().DataFrame([
        {"panel": "", "method": ", ".join(filter(None, [label, line])), "x": x, **Spread(tuple(own["value"])).row(band)}
        for (line, x), of_classes in made.groupby(["line", "x"])
        for label, own in cells(runs.done, of_classes, {"label": by}, over).groupby("label")
    ])  # fmt: skip


def _owned(counts: Sequence[Sequence[int]]) -> frozenset[int]:
    return frozenset(c for own in counts for c, n in enumerate(own) if n)
