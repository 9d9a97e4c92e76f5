"""Differences between methods, paired by seed: runs of one seed share partition, cohorts and initial weights.

From three seeds on there is an interval of the mean, from six on Wilcoxon's test; with fewer, neither could say
anything, and the differences themselves are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedexp.reproduce.verdict import MIN_SEEDS, interval
from fedexp.terminal.numbers import count

LEVEL = 0.95
MIN_PAIRS = 6  # the smallest p-value of Wilcoxon's test with fewer is above 5 %
SHOWN = 5  # so many differences are written out


@dataclass(frozen=True)
class Differences:
    """One difference per seed."""

    by_seed: Mapping[int, float]

    @property
    def values(self) -> tuple[float, ...]:
        """In the order of the seeds."""
        return tuple(self.by_seed[seed] for seed in sorted(self.by_seed))

    @property
    def mean(self) -> float | None:
        """None without a pair."""
        return statistics.fmean(self.values) if self.by_seed else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean; None with fewer than three pairs."""
        return interval(self.values, LEVEL) if len(self.by_seed) >= MIN_SEEDS else None

    @property
    def p_value(self) -> float | None:
        """Of Wilcoxon's signed-rank test, two-sided; None with fewer than six pairs that differ."""
        from scipy.stats import wilcoxon

        unequal = [value for value in self.values if value]
        return float(wilcoxon(unequal).pvalue) if len(unequal) >= MIN_PAIRS else None

    def __str__(self) -> str:
        """``+1.20 [+0.70, +1.70], 3 seeds: +1.00 +1.20 +1.40``."""
        if self.mean is None:
            return "no pair of runs"
        ends = f" [{', '.join(f'{end:+.2f}' for end in self.interval)}]" if self.interval else ""
        each = f": {' '.join(f'{value:+.2f}' for value in self.values)}" if 1 < len(self.values) <= SHOWN else ""
        return f"{self.mean:+.2f}{ends}, {count(len(self.values), 'seed')}{each}".replace("-", "−")


def contrast(terms: Sequence[tuple[float, Mapping[int, float]]]) -> Differences:
    """A weighted sum of values by seed, for the seeds that all terms have."""
    seeds = set.intersection(*(set(values) for _, values in terms)) if terms else set()
    return Differences({seed: sum(weight * values[seed] for weight, values in terms) for seed in sorted(seeds)})


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Differences:
    """The first minus the second."""
    return contrast([(1.0, first), (-1.0, second)])


def mean_ranks(columns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean rank of each method over columns that have them all; the highest value has rank 1, equal ones share."""
    from scipy.stats import rankdata

    methods = sorted(set.intersection(*(set(column) for column in columns))) if columns else []
    ranks = [rankdata([-column[method] for method in methods]) for column in columns]
    return {method: statistics.fmean(float(r[i]) for r in ranks) for i, method in enumerate(methods)}
