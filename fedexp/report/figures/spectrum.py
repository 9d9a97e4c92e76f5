"""How evenly features spread over directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedexp.report import probes
from fedexp.report.extra import altair, pandas
from fedexp.report.figures.figure import Figure
from fedexp.report.figures.lines import BANDS, about, check, lines
from fedexp.report.load import FoundRun, Runs
from fedexp.report.measure import Spread, cells
from fedexp.report.probes import Number

if TYPE_CHECKING:
    import pandas as pd

PROBE = "spectrum"
MODELS = ("trained", "aggregated")
NAMED = 6  # methods whose variance the caption says


def spectrum(
    runs: Runs,
    *,
    model: str = "trained",
    by: Sequence[str] = ("algo",),
    panels: Sequence[str] = (),
    over: str = "seed",
    band: str = "std",
) -> Figure:
    """Eigenvalues of the covariance of a class's features, the largest first, in the last round (probe=spectrum)."""
    check("model", model, MODELS)
    check("band", band, BANDS)
    probes.seen(runs, PROBE)
    shown = data(runs, model, by, panels, over, band)
    alt = altair()
    scale = alt.Scale(type="log", nice=False)
    axis = alt.X("x:Q", title="rank of the eigenvalue (log scale)", scale=scale)
    chart = lines(shown, axis, "eigenvalue (of standardised features)")
    caption = (
        f"{about(runs, shown, over, band)} Means over classes{' and clients' if model == 'trained' else ''} of one "
        f"batch; the flatter, the more directions are used. {_variances(runs, model, by, panels, over)}"
    )
    return Figure(chart, shown, f"Spectrum of features, {model} model", caption)


def data(runs: Runs, model: str, by: Sequence[str], panels: Sequence[str], over: str, band: str) -> pd.DataFrame:
    """The mean eigenvalue of each rank, by method."""
    rows = [
        {"run": run.name, "x": rank + 1, "value": float(value)}
        for run in runs.done.found
        for rank, value in enumerate(_mean_spectrum(runs, run, model))
    ]
    joined = cells(runs.done, pandas().DataFrame(rows), {"method": by, "panel": panels}, over)
    return pandas().DataFrame([
        {"panel": panel, "method": method, "x": rank, **Spread(tuple(own["value"])).row(band)}
        for (panel, method, rank), own in joined.groupby(["panel", "method", "x"])
    ])  # fmt: skip


def _mean_spectrum(runs: Runs, run: FoundRun, model: str) -> Any:
    """Over all classes and clients of the last round; empty if the run was not observed."""
    rounds = probes.rounds_with_arrays(runs, run)
    seen = probes.arrays(run, rounds[-1], PROBE) if rounds else {}
    spectra = [held[key] for held in seen.values() if (key := f"{model}/eigenvalues") in held]
    return np.concatenate(spectra).mean(0) if spectra else ()


def _variances(runs: Runs, model: str, by: Sequence[str], panels: Sequence[str], over: str) -> str:
    """The number of FedMR's table 7 in the last round, for a few methods."""
    found = Number(f"{PROBE}.{model}.variance").values(runs)
    last = found[found["round"] == found.groupby("run")["round"].transform("max")]
    means = last.groupby("run", as_index=False)["value"].mean()
    joined = cells(runs.done, means, {"method": by, "panel": panels}, over)
    by_cell = joined.groupby(["panel", "method"])["value"].mean()
    if len(by_cell) > NAMED:
        return ""
    several = joined["panel"].nunique() > 1
    told = [f"{f'{panel} ' if several else ''}{method} {value:.3g}" for (panel, method), value in by_cell.items()]
    return f"Variance of the largest: {', '.join(told)}."
