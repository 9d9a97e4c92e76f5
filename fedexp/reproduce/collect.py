"""From run directories to results: each measure of an entry is taken from a run as the paper took it. Free of torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedexp.core.record import Record
from fedexp.errors import CheckpointError
from fedexp.reproduce import claims, selection
from fedexp.reproduce.entry import Entry
from fedexp.reproduce.jobs import RESULT_RULE, ReproJob
from fedexp.reproduce.measure import NEEDS_ALL, REFERENCE, ROUNDS_TO_REFERENCE, Measure
from fedexp.reproduce.results import Result
from fedexp.runs import observations
from fedexp.runs.directory import RunDir
from fedexp.runs.sweep_manifest import rounds_done
from fedexp.terminal.numbers import count

NOT_BY_RUNS = ("count",)
PROBES = "probes."  # how measures begin that are taken from what probes have seen
NOT_FINITE = "not finite"  # what the error of a run that has diverged says


@dataclass(frozen=True)
class Outcome:
    """How a run stands."""

    status: str  # as in ``Result``
    rounds: int
    error: str = ""
    result: Mapping[str, Any] | None = None  # result.json of a finished run
    records: Sequence[Record] = ()
    observed: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # by probe.name.value, and by round


def collect(jobs: Iterable[ReproJob], errors: Mapping[Path, str] | None = None) -> list[Result]:
    """The results of all runs that have begun: what their entry prints, and what claims need besides.

    A run that has not ended gives no number but its state.

    Args:
        jobs: The runs.
        errors: By run directory, why runs failed that have left no directory.
    """
    outcomes: dict[Path, Outcome | None] = {}
    begun: list[tuple[ReproJob, Outcome]] = []
    for job in jobs:
        if job.path not in outcomes:
            outcomes[job.path] = outcome(job, (errors or {}).get(job.path))
        if (known := outcomes[job.path]) is not None:
            begun.append((job, known))
    references = {
        (job.scene.name, job.seed): known
        for job, known in begun
        if job.method.name == REFERENCE and not job.tuning and known.status == "done"
    }
    return [
        _result(job, measure, known, target)
        for job, known in begun
        for measure in (*job.entry.measured_in(job.scene.name), *claims.measures(job.entry, job.method.name))
        if not (measure.computed or measure.rule in NOT_BY_RUNS)
        if (target := references.get((job.scene.name, job.seed))) or measure.rule != ROUNDS_TO_REFERENCE
    ]


def with_computed(entry: Entry, results: Sequence[Result]) -> list[Result]:
    """The same, and what is worked out from other cells of the same seed: leads and speed-ups, of untuned runs.

    A lead over the best other method needs all methods of the entry.
    """
    found = list(results)
    own = [r for r in results if r.status == "done" and not r.tuning and r.method in entry.rows]
    for measure in (m for m in entry.measures if m.computed):
        for result in (r for r in own if r.metric == measure.of):
            cells = {r.cell: r.value for r in own if r.seed == result.seed and r.reduced == result.reduced}
            whole = {m.name for m in entry.runnable} <= {m for s, m, _ in cells if s == result.setting}
            value = measure.computed_from({c: v for c, v in cells.items() if v is not None}, *result.cell[:2])
            if value is not None and (whole or measure.rule != NEEDS_ALL):
                found.append(replace(result, metric=measure.metric, value=value, rule=measure.rule))
    return list({result.key: result for result in found}.values())


def observed(job: ReproJob, result: Mapping[str, Any]) -> bool:
    """Whether the probes of a job's entry have observed its finished run, which may have been made for another one."""
    return set(job.entry.probes) <= set(result.get("probes", {}))


def outcome(job: ReproJob, error: str | None = None) -> Outcome | None:
    """How a job's run stands; None if it has not begun, or was made without the probes of the job's entry.

    Args:
        job: The job.
        error: Why it could not begin, if it was tried.
    """
    rundir = RunDir(job.path)
    try:
        if rundir.config() is None:
            return Outcome(_failure(error), 0, error) if error else None
        if result := None if rundir.holder() else rundir.result():
            if not observed(job, result):
                return None
            seen = observations.means(rundir.observations()) if job.entry.probes else {}
            return Outcome("done", result["rounds"], result=result, records=rundir.records(), observed=seen)
        kept = rounds_done({**job.config, "force": False}) or 0
        error = rundir.error()
        return Outcome(_failure(error) if error else "partial", kept, error or "")
    except CheckpointError as damage:
        return Outcome("failed", 0, " ".join(str(damage).split()))


def _failure(error: str) -> str:
    return "diverged" if NOT_FINITE in error else "failed"


def _result(job: ReproJob, measure: Measure, known: Outcome, reference: Outcome | None) -> Result:
    status, error, value = known.status, known.error, None
    if known.status == "done":
        value = _value(measure, known, reference)
        if value is None:
            status, error = "failed", _lacks(measure, known)
    result = known.result or {}
    return Result(
        entry=job.entry.id,
        setting=job.scene.name,
        method=job.method.name,
        metric=measure.metric,
        seed=job.seed,
        tuning=" ".join(job.tuning),
        value=value,
        status=status,
        reduced=job.reduced,
        rounds=known.rounds,
        rule=measure.rule,
        run=job.run,
        command=job.command,
        seconds=_seconds(result.get("seconds")),
        partition=_at(result, "digests.partition") or "",
        versions=", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items()),
        error=error,
        model=_at(result, "digests.model") or "",
    )


def _lacks(measure: Measure, known: Outcome) -> str:
    if measure.rule == ROUNDS_TO_REFERENCE:
        return f"{REFERENCE}'s best was not reached in {count(known.rounds, 'round')}"
    return f"the run has no {measure.metric} ({measure.rule} of {measure.of}); force=true makes it again"


def _value(measure: Measure, known: Outcome, reference: Outcome | None) -> float | None:
    """The number of a finished run in the paper's unit; None if the run has no such number."""
    if measure.rule == ROUNDS_TO_REFERENCE and reference is not None:
        return _rounds_to(measure, known, reference)
    series: selection.Series = (
        [_at(known.result, measure.of)] if measure.rule == RESULT_RULE else _series(measure, known)
    )
    value = selection.rule(measure.rule)(series)
    return value * (100.0 if measure.percent else 1.0) if math.isfinite(value) else None


def _rounds_to(measure: Measure, known: Outcome, reference: Outcome) -> float | None:
    """The rounds until the best of the reference is reached; of the reference itself, all of its rounds."""
    if known is reference:
        return float(known.rounds)
    target = selection.rule("best round")(_series(measure, reference))
    return selection.rounds_to(_series(measure, known), target)


def _series(measure: Measure, known: Outcome) -> list[float | None]:
    """What was measured in each round, of numbers of several clients their mean; None where a round was not tested."""
    tested: Mapping[int, Any] = (
        known.observed.get(measure.of.removeprefix(PROBES), {})
        if measure.of.startswith(PROBES)
        else {record["round"]: _at(record, measure.of) for record in known.records}
    )
    values = (tested.get(number) for number in range(1, known.rounds + 1))
    return [statistics.fmean(value) if isinstance(value, list) else value for value in values]


def _at(node: Mapping[str, Any] | None, key: str) -> Any:
    """``group.key`` of a record or result, split at the first dot; None if there is nothing."""
    group, _, name = key.partition(".")
    values = (node or {}).get(group)
    return values.get(name) if isinstance(values, Mapping) else None


def _seconds(seconds: Mapping[str, float] | None) -> float | None:
    """The clock's seconds, without what comes after the last round."""
    return None if seconds is None else round(seconds["elapsed"] - seconds.get("final", 0.0), 3)
