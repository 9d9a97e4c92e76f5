"""Our results of an entry: those that are committed, and those of runs on this machine. Free of torch.

Each command that runs something leaves the results in ``<out>/.reproduced/``, for every entry that the runs are of
use to: ``list`` reads them there, since looking for all runs of all entries would take too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fedexp.reproduce import published
from fedexp.reproduce.collect import collect, with_computed
from fedexp.reproduce.entry import Entry
from fedexp.reproduce.jobs import ReproJob, jobs_of, special
from fedexp.reproduce.request import Request
from fedexp.reproduce.results import Result, known_results, merged, results_file, write_results

NOTED = ".reproduced"  # below ``out``


def our_results(asked: Request, committed: Path, fresh: Sequence[Result]) -> list[Result]:
    """All results of the entry with the seeds that are asked for, since a lead over other methods needs theirs too.

    A request for fewer rounds, or with other settings, is answered by its own runs alone.

    Args:
        asked: What is asked for.
        committed: The folder with the results of finished runs.
        fresh: What was just collected; it wins over what is on file.
    """
    if special(asked):
        return with_computed(asked.entry, fresh)
    every = merged(on_file(asked.entry.id, committed, asked.out), fresh)
    return [result for result in with_computed(asked.entry, every) if asked.any_seed or result.seed in asked.seeds]


def on_file(entry: str, committed: Path, out: Path) -> list[Result]:
    """The results of an entry that are committed or noted, without looking for runs."""
    return merged(known_results(committed, entry), noted(out, entry))


def noted(out: Path, entry: str) -> list[Result]:
    """The results that runs on this machine have left."""
    return known_results(out / NOTED, entry)


def note(jobs: Iterable[ReproJob], out: Path) -> None:
    """Leaves the results of runs for every entry of the paper that has their scenes and methods."""
    jobs = list(jobs)
    papers = {job.entry.paper for job in jobs}
    for entry in (e for e in published.entries().values() if e.paper in papers and e.measures):
        scenes = {*entry.scenes, *entry.stand_ins}
        methods = {method.name for method in (*entry.methods, *entry.readings)}
        alike = (j for j in jobs if j.scene.name in scenes and j.method.name in methods)
        shared = [replace(j, entry=entry) for j in alike if _gives(j, entry)]
        if found := collect(shared):
            write_results(results_file(out / NOTED, entry.id), merged(noted(out, entry.id), found), entry)


def _gives(job: ReproJob, entry: Entry) -> bool:
    """Whether a run is one of an entry's: with a hyper-parameter setting that the entry has."""
    return job.tuning in {*entry.tunings(job.method, "none"), *entry.tunings(job.method, "paper")}


def begun(asked: Request) -> list[ReproJob]:
    """The jobs in scenes of which there is any run on this machine: composing all of them would take long."""
    named = [value for key, _, value in (o.partition("=") for o in asked.overrides) if key == "name"]
    there = [scene for scene in asked.scenes if (asked.out / (named or [scene.experiment])[-1]).is_dir()]
    return jobs_of(replace(asked, scenes=tuple(there))) if there else []
