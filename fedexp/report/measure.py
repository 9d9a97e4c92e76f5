"""Metrics of runs: which there are, what they are called, and their values over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.report import frames
from fedexp.report.load import Runs
from fedexp.reproduce import selection
from fedexp.reproduce.paired import LEVEL
from fedexp.reproduce.verdict import MIN_SEEDS, interval
from fedexp.sweep.results import UNRANKED
from fedexp.terminal.numbers import human_bytes

if TYPE_CHECKING:
    import pandas as pd

SHARES = (*frames.GOALS, "missing")  # groups of metrics that are shares of one
NOT_SHARES = ("loss", "window", "of", "round")  # but for these last parts of their names
LESS_IS_BETTER = ("loss", "std", "seconds", "bytes", "terms")
WORDS_OF_UNITS = {"%": "accuracy (%)", "MB": "sent (MB)", "s": "time (s)"}
BOTH = ("aggregation.mean", "personalization.mean")
LAST = "last round"  # the rule by which a metric of rounds becomes one number
WORDS = {
    "accuracy": "accuracy",
    "mean": "accuracy, mean of last rounds",
    "last": "accuracy, last round",
    "best": "accuracy, best round",
    "std": "accuracy, deviation of last rounds",
    "all_clients": "accuracy, all clients",
    "worst_decile": "accuracy, worst tenth of clients",
    "before": "accuracy before training",
    "owned": "accuracy among owned classes",
}
WORDS_OF_ROUNDS = {**WORDS, "std": "accuracy, deviation over clients"}
TITLES = {  # of whole names
    "missing.accuracy": "personal accuracy on all classes",
    "missing.owned": "personal accuracy on owned classes",
    "missing.owned_restricted": "personal accuracy on owned classes, among these",
    "missing.absent": "personal accuracy on absent classes",
    "missing.rare": "personal accuracy on rare classes",
    "missing.forgotten": "accuracy on absent classes lost in training",
    "missing.predicted_owned": "answers that are owned classes",
}


@dataclass(frozen=True)
class Metric:
    """A number of runs, by its dotted name."""

    name: str

    @property
    def parts(self) -> tuple[str, str]:
        """The first part of the name, and the last."""
        return self.name.partition(".")[0], self.name.rpartition(".")[2]

    @property
    def unit(self) -> str:
        """``%``, ``MB``, ``s``, or nothing."""
        group, last = self.parts
        if group in SHARES and last not in NOT_SHARES:
            return "%"
        return {"bytes": "MB", "seconds": "s"}.get(group, "")

    @property
    def factor(self) -> float:
        """What a value on file is multiplied by to be in that unit."""
        return {"%": 100.0, "MB": 1e-6}.get(self.unit, 1.0)

    @property
    def more_is_better(self) -> bool:
        """Whether the highest value is the best."""
        return not set(self.parts) & set(LESS_IS_BETTER)

    @property
    def ranked(self) -> bool:
        """Whether some value is the best."""
        return self.name not in UNRANKED

    @cached_property
    def title(self) -> str:
        """For axes and headings, with the unit."""
        return self._titled(WORDS)

    @cached_property
    def title_of_rounds(self) -> str:
        """The same where the number of each round is shown."""
        return self._titled(WORDS_OF_ROUNDS)

    def _titled(self, known: Mapping[str, str]) -> str:
        group, _, rest = self.name.partition(".")
        words = known.get(rest, rest.replace(".", " ").replace("_", " ")) if group in frames.GOALS else rest
        named = TITLES.get(self.name, f"{group.replace('_', ' ')} {words}".strip())
        return f"{named} ({self.unit})" if self.unit else named

    def text(self, value: float, *, sign: str = "") -> str:
        """A value in the metric's unit, as tables write it."""
        if self.unit == "MB" and not sign:
            return human_bytes(value * 1e6)
        digits = f"z.{1 if self.unit == '%' else 2}f" if self.unit else ".4g"
        return f"{value:{sign}{digits}}".replace("-", "−")


def shared_title(metrics: Sequence[Metric]) -> str:
    """For an axis of one metric, or of several with the same unit."""
    first, *others = metrics
    last = {metric.name.rpartition(".")[2] for metric in metrics}
    plain = last.pop() if len(last) == 1 else "value"
    return WORDS_OF_UNITS.get(first.unit, plain) if others else first.title


@dataclass(frozen=True)
class Spread:
    """Values of several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The sample standard deviation; of one value there is none."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean; none of fewer than three values."""
        return interval(self.values, LEVEL) if len(self.values) >= MIN_SEEDS else None

    def row(self, band: str) -> dict[str, float | None]:
        """Mean and ends of the band, ``std`` or ``interval``, for figures."""
        low, high = self.ends(band)
        return {"mean": self.mean, "low": low, "high": high, "n": len(self.values)}

    def ends(self, band: str) -> tuple[float, float]:
        """The ends of the band; the mean itself where there is none."""
        if band == "interval":
            return self.interval or (self.mean, self.mean)
        half = self.std or 0.0
        return self.mean - half, self.mean + half


def both_goals(runs: Runs) -> tuple[str, ...]:
    """The metrics that are shown if none is asked for, as far as finished runs have them."""
    return tuple(name for name in BOTH if name in runs.done.results) or BOTH


def values(runs: Runs, metric: Metric, rule: str = LAST) -> pd.DataFrame:
    """``run`` and ``value`` of finished runs, in the metric's unit.

    A metric of results is taken as it is, one of rounds by the rule; runs without it are left out.

    Raises:
        ConfigError: If no run has the metric; with the nearest name.
    """
    if metric.name in runs.done.results.columns:
        frame = runs.done.results[["run", metric.name]].rename(columns={metric.name: "value"})
    else:
        series = of_rounds(runs.done, metric.name).sort_values("round").groupby("run")[metric.name]
        taken = series.agg(lambda column: selection.rule(rule)([None if v != v else v for v in column]))
        frame = taken.rename("value").reset_index()
    frame = frame.dropna(subset=["value"])
    return frame.assign(value=frame["value"] * metric.factor)


def of_rounds(runs: Runs, name: str) -> pd.DataFrame:
    """The rounds of runs, if they have a metric.

    Raises:
        ConfigError: With the nearest name, if they have not.
    """
    if name not in runs.rounds.columns:
        known = {*runs.rounds.columns, *runs.results.columns} - {"run", "round"}
        raise ConfigError(f"{name}: no finished run has such a metric. {nearest(name, sorted(known))}")
    return runs.rounds


def cells(runs: Runs, found: pd.DataFrame, groups: Mapping[str, Sequence[str]], over: str) -> pd.DataFrame:
    """Adds to a frame with ``run`` the label of each group of settings, and ``over``.

    Args:
        runs: Where the settings are from.
        found: Values of runs; those of one run must not be of two cells.
        groups: By the name of a column to add: the settings whose values its labels are made of.
        over: The setting that tells apart the runs of one cell, seed.

    Raises:
        ConfigError: If there is no such setting, or two runs of one cell have the same value of ``over``.
    """
    keys = dict.fromkeys(runs.setting(key) for keys in groups.values() for key in keys)
    config = runs.config[["run", *(key for key in keys if key != "run")]]
    joined = found.merge(config.assign(over=runs.config[runs.setting(over)]), on="run")
    for name, own in groups.items():
        joined[name] = frames.labels(joined, own) if own else ""
    _check_single(runs, joined, list(groups), over)
    return joined


def _check_single(runs: Runs, joined: pd.DataFrame, names: Sequence[str], over: str) -> None:
    once = joined[["run", "over", *names]].drop_duplicates()
    for cell, own in once.groupby([*names, "over"], dropna=False):
        if len(own) > 1:
            differing = [key for key in runs.differing(own["run"]) if key != over]
            where = ", ".join(str(part) for part in cell[:-1] if part)
            raise ConfigError(
                f"{where or 'All runs'}: {len(own)} runs have {over}={frames.written(cell[-1])}; they differ in "
                f"{', '.join(differing)}. Choose one value of these (KEY=VALUE), or tell them apart by them."
            )


def in_order(found: Sequence[Any]) -> list[str]:
    """Labels without repetition, numbers in them by their size."""
    return sorted(dict.fromkeys(map(str, found)), key=frames.natural)
