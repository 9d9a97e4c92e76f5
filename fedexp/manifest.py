"""The manifest of a sweep: which jobs it has, written before the first of them starts.

``sweep-<identity>.json`` lies in the folder of the sweep's runs. Beside it, ``.sweep-<identity>/`` takes one report per
job, also from other machines if they see the folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedexp.config import Config, run_id, run_path
from fedexp.errors import DamagedError, FedexpError
from fedexp.files import OF_A_SWEEP, read_json, remove_own, write_json, writing


@dataclass(frozen=True)
class Planned:
    """One job: its overrides, its run's id, and where the run is, seen from the manifest's folder."""

    overrides: list[str]
    run: str
    path: str

    def is_plain(self) -> bool:
        """Whether it is made of text, as it must be when it comes from a file."""
        texts = isinstance(self.overrides, list) and [*self.overrides, self.run, self.path]
        return bool(texts) and all(isinstance(text, str) for text in texts)


@dataclass(frozen=True)
class Manifest:
    """A sweep: its folder and all its jobs, in the order of their numbers."""

    folder: Path
    jobs: list[Planned]

    @classmethod
    def of(cls, jobs: Sequence[tuple[list[str], Config]]) -> Manifest:
        """The manifest of jobs, given by their overrides and configurations. It lies with the first job's runs."""
        folder = run_path(jobs[0][1]).parent
        return cls(folder, [Planned(o, run_id(c), os.path.relpath(run_path(c), folder)) for o, c in jobs])

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Reads ``sweep-<identity>.json``.

        Raises:
            FedexpError: If it is something else.
        """
        try:
            jobs = [Planned(**job) for job in read_json(path)["jobs"]]
        except (DamagedError, KeyError, TypeError) as cause:
            raise FedexpError(f"{path} is not the manifest of a sweep ({cause}). Move it elsewhere.") from cause
        if not jobs or not all(job.is_plain() for job in jobs):
            raise FedexpError(f"{path} is not the manifest of a sweep (no jobs, or other ones). Move it elsewhere.")
        return cls(path.parent, jobs)

    @property
    def identity(self) -> str:
        """A short hash of the jobs, whatever their order."""
        return hashlib.sha256("\n".join(sorted(" ".join(j.overrides) for j in self.jobs)).encode()).hexdigest()[:10]

    @property
    def reports(self) -> Path:
        """Where the jobs report how they ended."""
        return self.folder / f".sweep-{self.identity}"

    def file(self, ending: str) -> Path:
        """A file of the sweep as a whole."""
        return self.folder / f"sweep-{self.identity}{ending}"

    def write(self) -> None:
        """Announces the jobs, and forgets what became of them in an earlier attempt."""
        with writing(self.file(".json")):
            self.reports.mkdir(parents=True, exist_ok=True)
            remove_own(self.reports, OF_A_SWEEP)
            write_json(self.file(".json"), {"jobs": [asdict(job) for job in self.jobs]})
