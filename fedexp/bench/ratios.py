"""Ratios of times that were measured in turns. A machine's speed drifts, so each is compared with its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class RatioSpread:
    """A sample in five numbers."""

    median: float
    lower: float  # quartile
    upper: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> RatioSpread:
        """The five numbers of a sample; of a single value, that value."""
        lower, _, upper = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        return cls(median(values), lower, upper, min(values), max(values))


def to_neighbours(times: Sequence[tuple[str, float]], base: str) -> dict[str, list[float]]:
    """Each time of the others over the mean of the base's times before and after it.

    Args:
        times: Who took how long, in the order of measurement, beginning and ending with the base.
        base: Whom the others are compared with.
    """
    if not times or times[0][0] != base or times[-1][0] != base:
        raise ValueError(f"the times must begin and end with {base!r}, or some have one neighbour only")
    after = len(times) - 1
    following = [0.0] * len(times)
    for index in range(len(times) - 1, -1, -1):
        after = index if times[index][0] == base else after
        following[index] = times[after][1]
    found: dict[str, list[float]] = {}
    before = times[0][1]
    for (name, time), later in zip(times, following, strict=True):
        if name == base:
            before = time
        else:
            found.setdefault(name, []).append(time / ((before + later) / 2))
    return found
