"""Our numbers of one cell, from the results of its runs. Free of torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from fedexp.reproduce.results import Result
from fedexp.terminal.numbers import count


@dataclass(frozen=True)
class Sample:
    """Our numbers of one cell."""

    values: Mapping[int, float]  # by seed
    reduced: str = ""  # in what the runs are less than the paper's
    failed: tuple[str, ...] = ()  # one sentence per run
    unfinished: int = 0
    tried: tuple[float, ...] = ()
    absent: str = ""  # why there are no values


def sample(results: Sequence[Result], *, tune: str) -> Sample:
    """Our numbers from the results of one cell.

    Runs of full length alone count if there are any, else those of the reduced ones that are closest to it. Of several
    hyper-parameter settings the one with the best mean is taken, among those with the most seeds, so that a lucky first
    seed does not win.
    """
    wanted = [r for r in results if tune == "paper" or not r.tuning]
    if not wanted:
        return Sample({}, absent="there are results of tuned settings only" if results else "there is no result")
    label = max(wanted, key=lambda r: r.closeness).reduced
    alike = sorted((r for r in wanted if r.reduced == label), key=_tuning)
    by_setting = {tuning: _of_setting(list(group)) for tuning, group in groupby(alike, key=_tuning)}
    most = max(len(one.values) for one in by_setting.values())
    if most == 0:
        return _joined(list(by_setting.values()))
    means = {t: statistics.fmean(one.values.values()) for t, one in by_setting.items() if len(one.values) == most}
    best = by_setting[max(means, key=means.__getitem__)]
    return replace(best, tried=tuple(means.values()) if len(by_setting) > 1 else ())


def averaged(samples: Mapping[str, Sample]) -> Sample:
    """The mean over scenes for each seed that all of them have; none if a scene has no result.

    Failures are told once every scene has been run: before, the mean is missing anyway.
    """
    here = [one for one in samples.values() if one.values]
    joined = _joined(list(samples.values()))
    if not all(one.values or one.failed for one in samples.values()):
        joined = replace(joined, failed=())
    if len(here) < len(samples):
        return replace(joined, absent=f"{len(here)} of {count(len(samples), 'scene')} have results")
    seeds = sorted(set.intersection(*(set(one.values) for one in here)))
    values = {seed: statistics.fmean(one.values[seed] for one in here) for seed in seeds}
    return replace(joined, values=values, absent="" if seeds else "no seed was run in all scenes")


def _of_setting(results: Sequence[Result]) -> Sample:
    """Our numbers of one hyper-parameter setting. A finished run without a finite number has failed."""
    values, failed = {}, []
    for result in sorted(results, key=lambda r: r.seed):
        if result.status == "partial":
            continue
        if result.status == "done" and result.value is not None and math.isfinite(result.value):
            values[result.seed] = result.value
        else:
            failed.append(f"seed {result.seed} {_trouble(result)}")
    return Sample(
        values,
        reduced=results[0].reduced,
        failed=tuple(failed),
        unfinished=sum(result.status == "partial" for result in results),
    )


def _trouble(result: Result) -> str:
    said = "has no finite number" if result.status == "done" else result.status
    return f"{said}: {result.error}" if result.error else said


def _joined(samples: Sequence[Sample]) -> Sample:
    """What samples say together, without their values."""
    return Sample(
        {},
        reduced="; ".join(sorted({one.reduced for one in samples if one.reduced})),
        failed=tuple(sentence for one in samples for sentence in one.failed),
        unfinished=sum(one.unfinished for one in samples),
        absent="; ".join(sorted({one.absent for one in samples if one.absent})),
    )


def _tuning(result: Result) -> str:
    return result.tuning
