"""A finished run as the beginning of a longer one, whose settings differ in ``rounds`` alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedexp.client.schedules import Schedule
from fedexp.config.compose import Config
from fedexp.config.identity import ids_with_fewer_rounds, run_path
from fedexp.core.algorithm import Algorithm
from fedexp.runs.directory import RunDir
from fedexp.runs.names import ARRAYS, CHECKPOINT, GROWING, LATEST, RESULT
from fedexp.runs.pointer import Pointer
from fedexp.system.files import writing


@dataclass(frozen=True)
class Beginning:
    """The first rounds of a run, in the directory of a finished one."""

    path: Path
    rounds: int

    @classmethod
    def of(cls, config: Config) -> Beginning | None:
        """The longest finished run in the same folder that has the first rounds of this one."""
        folder = run_path(config).parent
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        found = (cls(folder / name, rounds) for rounds, name in ids_with_fewer_rounds(config) if name in there)
        return next((b for b in found if (b.path / RESULT).exists()), None)

    def obstacles(self, config: Config, algorithm: Algorithm, schedule: Schedule, plan: str) -> Iterator[str]:
        """Why a longer run cannot continue it and have the numbers that it would have from the beginning.

        Raises:
            CheckpointError: If it was made under another plan, or with other data.
        """
        for key, component in algorithm.components.items():
            if component.total_rounds:
                yield f"algo.{key}: {component.total_rounds}"
        if schedule.total_rounds:
            yield f"schedule: {schedule.total_rounds}"
        if self.rounds % config["every"]["evaluate"]:
            yield f"every.evaluate={config['every']['evaluate']} tests round {self.rounds} only where it is the last"
        if config.get("probe") or (self.path / ARRAYS).exists():
            yield "probe: the last round is observed in any case"
        if not (self.path / CHECKPOINT / LATEST).exists():
            yield "keep: what its clients keep was removed when it had finished; keep=all leaves it"
        elif Pointer.read(self.path / CHECKPOINT / LATEST, plan).round != self.rounds:
            yield "its last checkpoint is of an earlier round"

    def copy_to(self, rundir: RunDir) -> None:
        """Makes a run directory one that has stopped after these rounds. The pointer comes last, and makes it count.

        Raises:
            DamagedError: If a file is not what the finished run has written.
        """
        RunDir(self.path).result()
        source, target = self.path / CHECKPOINT, rundir.path / CHECKPOINT
        with writing(target):
            for name in GROWING:
                if (self.path / name).exists():
                    shutil.copyfile(self.path / name, rundir.path / name)
            target.mkdir(exist_ok=True)
            for name in sorted(Pointer.read(source / LATEST).names):
                shutil.copyfile(source / name, target / name)
            shutil.copyfile(source / LATEST, target / LATEST)
