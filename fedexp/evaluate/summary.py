"""From the records of all rounds to the numbers that a run ends with."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedexp.core.record import Record
from fedexp.evaluate.metrics import mean_of_each


def summarise(records: list[Record], window: int) -> dict[str, dict[str, Any]]:
    """Last, best and mean ± std of the last rounds, for each of the two goals that was measured.

    Of personal models also the mean over the last rounds of the worst decile, and of the accuracy of other models. Of
    missing classes (``missing``) it is the mean over the last rounds of each measure.
    """
    summary: dict[str, dict[str, Any]] = {}
    for goal in ("aggregation", "personalization"):
        values = [r[goal]["accuracy"] for r in records if goal in r]
        if values:
            late = values[-window:]
            summary[goal] = {
                "last": values[-1], "best": max(values), "mean": float(np.mean(late)), "std": float(np.std(late)),
                "window": len(late),
            }  # fmt: skip
    if personal := [r["personalization"] for r in records if "personalization" in r][-window:]:
        for name in ("before", "personal_before", "unadapted", "worst_decile"):
            values = [p[name] for p in personal if name in p]
            summary["personalization"] |= {name: float(np.mean(values))} if values else {}
    if missing := [r["missing"] for r in records if "missing" in r][-window:]:
        summary["missing"] = {**mean_of_each(missing), "window": len(missing)}
    return summary
