"""How far a sweep is: the line before each job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedexp.runs.sweep_manifest import Manifest
from fedexp.sweep.jobs import read_job, report_file
from fedexp.terminal.numbers import count

DAYS_OF_A_YEAR = 365.25


def announce(manifest: Manifest) -> str:
    """A sweep in a line: how many jobs it has, and how many of them are to be run."""
    to_run = len(to_do(manifest))
    repeated = sum(job.same_as is not None for job in manifest.jobs)
    on_file = len(manifest.jobs) - repeated - to_run
    parts = [f"{to_run} to run"]
    if on_file:
        parts.append(f"{on_file} {'has its result' if on_file == 1 else 'have their results'} on file")
    if repeated:
        parts.append(f"{repeated} {'has' if repeated == 1 else 'have'} the run of an earlier job, which is run once")
    return f"{count(len(manifest.jobs), 'job')}: {', '.join(parts)}"


def to_do(manifest: Manifest) -> list[int]:
    """The jobs that really have something to run."""
    return [n for n, job in enumerate(manifest.jobs) if job.work > 0 and job.same_as is None]


def heading(number: int, manifest: Manifest, reports: Path, at_once: int | None) -> str:
    """A job in a line: its place among all, how many are done, about how long the rest will take.

    Args:
        number: The job that begins now.
        manifest: All jobs.
        reports: Where the other jobs have reported.
        at_once: How many run at the same time; None if that is not known, and thus no time left either.
    """
    due = to_do(manifest)
    waiting = {n for n in due if not report_file(reports, n).exists()}
    done = sum((n if job.same_as is None else job.same_as) not in waiting for n, job in enumerate(manifest.jobs))
    parts = [f"job {number + 1} of {len(manifest.jobs)}", f"{done} done"]
    if at_once and number in waiting:
        work = [manifest.jobs[n].work for n in waiting]
        pace = _pace([n for n in due if n not in waiting], manifest, reports)
        if pace is not None:
            left = pace * max(sum(work) / at_once, manifest.jobs[number].work)
            parts.append(f"about {roughly(left)} left")
    same_as = manifest.jobs[number].same_as
    same = "" if same_as is None else f" (the same run as job {same_as + 1})"
    return f"{', '.join(parts)}: {manifest.label(number)}{same}"


def _pace(ended: Sequence[int], manifest: Manifest, reports: Path) -> float | None:
    """Seconds per work of the jobs that were run to their end; None if there is none yet."""
    seconds = work = 0.0
    for number in ended:
        job = read_job(report_file(reports, number))
        if job and job.status == "finished" and job.seconds is not None:
            seconds += job.seconds
            work += manifest.jobs[number].work
    return seconds / work if work else None


def roughly(seconds: float) -> str:
    """As one would say it: ``40 s``, ``12 min``, ``3 h 20 min``, ``2 days 4 h``, ``40 days``, ``9 years``."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days, hours = divmod(round(minutes / 60), 24)
    if days >= 2 * DAYS_OF_A_YEAR:
        return f"{round(days / DAYS_OF_A_YEAR):,} years"
    if days >= 10:
        return f"{round(minutes / 60 / 24)} days"
    return f"{days} days {hours} h" if hours else f"{days} days"
