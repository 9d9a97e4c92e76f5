"""The manifest of a sweep: which jobs it has, written before the first of them starts.

``sweep-<identity>.json`` lies in the folder of the sweep's runs. Beside it, ``.sweep-<identity>/`` takes one report per
job, also from other machines if they see the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedexp.config.compose import Config, federation
from fedexp.config.identity import MEASURED, run_id, run_path
from fedexp.errors import ConfigError, DamagedError
from fedexp.runs.names import OF_A_SWEEP
from fedexp.system.files import read_json, remove_own, write_json, writing

MEASURED_ONCE = tuple(key for key in MEASURED if key != "window")  # the means of any window follow from the records


@dataclass(frozen=True)
class Planned:
    """One job: its overrides, its run's id, and where the run is, seen from the manifest's folder.

    ``work`` is what was left to do when the sweep began, to compare jobs by; 0 if the run was finished. ``same_as`` is
    the number of an earlier job with the same run: only that one is run.
    """

    overrides: list[str]
    run: str
    path: str
    work: float = 1.0
    same_as: int | None = None

    def is_plain(self) -> bool:
        """Whether it is made of text, as it must be when it comes from a file."""
        texts = isinstance(self.overrides, list) and [*self.overrides, self.run, self.path]
        return bool(texts) and all(isinstance(text, str) for text in texts)


@dataclass(frozen=True)
class Manifest:
    """A sweep: its folder and all its jobs, in the order of their numbers.

    ``written_to`` is the folder to which the jobs' overrides lead; another one if the manifest was copied or moved,
    None if an earlier version wrote it.
    """

    folder: Path
    jobs: list[Planned]
    written_to: Path | None = field(default=None, compare=False)

    @classmethod
    def of(cls, jobs: Sequence[tuple[list[str], Config]], folder: Path | None = None) -> Manifest:
        """The manifest of jobs, given by their overrides and configurations. It lies with the first job's runs.

        Args:
            jobs: The jobs.
            folder: Another place for it.

        Raises:
            ConfigError: If two jobs ask different things of one run.
        """
        folder = folder or run_path(jobs[0][1]).parent
        first: dict[str, int] = {}
        planned = []
        for number, (overrides, config) in enumerate(jobs):
            path = os.path.relpath(run_path(config), folder)
            same = first.setdefault(path, number)
            _refuse_clash(jobs[same][1], config)
            left = work_left(config)
            planned.append(Planned(overrides, run_id(config), path, left, None if same == number else same))
        return cls(folder, planned, folder)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Reads ``sweep-<identity>.json``.

        Raises:
            DamagedError: If it is something else.
        """
        try:
            content = read_json(path)
            jobs = [Planned(**job) for job in content["jobs"]]
            written_to = Path(content["folder"]) if "folder" in content else None
        except DamagedError as cause:
            raise DamagedError(f"{path} is not the manifest of a sweep ({cause}). Move it elsewhere.") from cause
        except (KeyError, TypeError):
            jobs = []
        if not jobs or not all(job.is_plain() for job in jobs):
            raise DamagedError(f"{path} is not the manifest of a sweep: it does not list jobs. Move it elsewhere.")
        return cls(path.parent, jobs, written_to)

    @classmethod
    def behind(cls, reports: Path) -> Manifest | None:
        """The manifest whose jobs report into a folder; None for the folder of jobs that nobody has announced."""
        path = reports.with_name(f"{reports.name.removeprefix('.')}.json")
        return _read_once(path, path.stat().st_mtime_ns) if path.exists() else None

    @property
    def identity(self) -> str:
        """A short hash of the jobs, whatever their order."""
        return hashlib.sha256("\n".join(sorted(" ".join(j.overrides) for j in self.jobs)).encode()).hexdigest()[:10]

    @property
    def reports(self) -> Path:
        """Where the jobs report how they ended."""
        return self.folder / f".sweep-{self.identity}"

    def label(self, number: int) -> str:
        """The overrides in which a job is not like all the others; all of them if it has no other beside it."""
        overrides = self.jobs[number].overrides
        return " ".join(o for o in overrides if o not in self._everywhere) or " ".join(overrides)

    @cached_property
    def _everywhere(self) -> set[str]:
        return set.intersection(*(set(job.overrides) for job in self.jobs))

    def file(self, ending: str) -> Path:
        """A file of the sweep as a whole."""
        return self.folder / f"sweep-{self.identity}{ending}"

    def write(self) -> None:
        """Announces the jobs, and forgets what became of them in an earlier attempt."""
        with writing(self.file(".json")):
            self.reports.mkdir(parents=True, exist_ok=True)
            remove_own(self.reports, OF_A_SWEEP)
            write_json(self.file(".json"), {"folder": str(self.folder), "jobs": [asdict(job) for job in self.jobs]})


def _refuse_clash(one: Config, other: Config) -> None:
    """Raises ``ConfigError`` if two jobs with the same run do not want the same to be measured."""
    for key in MEASURED_ONCE:
        values = [json.dumps(config["evaluate"].get(key)) for config in (one, other)]
        if values[0] != values[1]:
            raise ConfigError(
                f"evaluate.{key} is {values[0]} in one job and {values[1]} in another, but both jobs have the same run "
                f"({run_path(one)}), since it is not part of a run's identity. Give each value a name of its own: "
                f"'name={one['name']}-${{evaluate.{key}}}'."
            )


@lru_cache(maxsize=1)  # every job asks for it
def _read_once(path: Path, _: int) -> Manifest:
    return Manifest.read(path)


# ---------------------------------------------------------------- how much work a run is
def work(config: Config, done: int = 0) -> float:
    """About how many passes over the training data, dealt out among the clients, the rounds after ``done`` take."""
    (clients, fraction), final = federation(config), config["evaluate"].get("all_clients", True)
    clients = max(clients, 1)
    visited = clients if final is True else min(final, clients)  # once more, after the last round
    rounds = (config["rounds"] - done) * max(fraction, 1 / clients)
    return float((rounds + visited / clients) * config["local"]["epochs"])


def work_left(config: Config) -> float:
    """The part of its work that is not on file."""
    done = rounds_done(config)
    return 0.0 if done is None else work(config, done)


def rounds_done(config: Config) -> int | None:
    """The rounds that need not be run again; None if the run is finished."""
    path = run_path(config)
    if config["force"]:
        return 0
    if _content(path / "result.json").get("status") == "finished":
        return None
    found = _content(path / "checkpoint" / "latest.json").get("round")
    return found if isinstance(found, int) else 0


def _content(path: Path) -> dict[str, Any]:
    """What a file of a run says; nothing if it is not there, or damaged, which the run itself will tell."""
    try:
        return read_json(path)
    except DamagedError:
        return {}
