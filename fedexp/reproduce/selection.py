"""How one number is taken from the rounds of a run: named rules, printed above each table.

A series has one value per round, ``None`` where the round was not tested; a window of N rounds holds the tested ones
among the last N. Of a round with a value per client, the mean counts. A run shorter than its window gives the number of
the rounds that it has: such a run is ``reduced`` and labelled so. NaN stands for a number that does not exist: nothing
was tested, or a value in the window is NaN. The best round alone passes over NaN, since an earlier round was measured
whatever came after it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError

Series = Sequence[float | Sequence[float] | None]


@dataclass(frozen=True)
class Selection:
    """A function of the rounds within a window, with its name."""

    name: str
    take: Callable[[Sequence[float]], float]
    first: int | None = None  # the window is series[first:end]
    end: int | None = None
    caution: str = ""  # why the number flatters the method, in one sentence; empty if it does not

    def __call__(self, series: Series) -> float:
        """The number, or NaN."""
        tested = [_of_round(value) for value in series[self.first : self.end] if value is not None]
        return self.take(tested) if tested else math.nan


def _of_round(value: float | Sequence[float]) -> float:
    if isinstance(value, Sequence):
        return statistics.fmean(value) if value else math.nan
    return value


def _last(series: Sequence[float]) -> float:
    return series[-1]


def _best(series: Sequence[float]) -> float:
    return max((value for value in series if not math.isnan(value)), default=math.nan)


def _deviation(series: Sequence[float]) -> float:
    """Over the rounds as a whole (divided by N), as in result.json; of a single round there is none."""
    if len(series) < 2 or not all(map(math.isfinite, series)):
        return math.nan
    return statistics.pstdev(series)


def _only(series: Sequence[float]) -> float:
    (value,) = series
    return value


def _rules() -> tuple[Selection, ...]:
    return (
        Selection("last round", _last),
        Selection("first round", _last, end=1),
        Selection("round 5", _last, end=5),
        Selection("best round", _best, caution="The best round is chosen on the test set itself."),
        *(Selection(f"mean of the last {n} rounds", statistics.fmean, first=-n) for n in (5, 10, 50)),
        *(Selection(f"mean of the first {n} rounds", statistics.fmean, end=n) for n in (10,)),
        *(Selection(f"deviation of the last {n} rounds", _deviation, first=-n) for n in (50,)),
        Selection("result", _only),  # the run's result has the number as it is
    )


RULES: Mapping[str, Selection] = {rule.name: rule for rule in _rules()}


def rule(name: str) -> Selection:
    """The rule of a name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in RULES:
        raise ConfigError(f"There is no selection rule {name!r}. {nearest(name, list(RULES))}")
    return RULES[name]


def rounds_to(series: Series, target: float) -> int | None:
    """The first round, counted from 1, that is at least as good as the target; None if none is."""
    reached = (number for number, value in enumerate(series, 1) if value is not None and _of_round(value) >= target)
    return next(reached, None)
