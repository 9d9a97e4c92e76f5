"""Mirrors of runs, made from their directories alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedexp.errors import FedexpError
from fedexp.runs.directory import RunDir
from fedexp.runs.names import PLAN
from fedexp.runs.status import survey
from fedexp.system.files import read_json
from fedexp.track import identity
from fedexp.track.base import RunCard, Tracker
from fedexp.track.several import first_line

WITH_RECORDS = ("done", "partial", "failed")  # of which nobody is writing, and which can be read


@dataclass(frozen=True)
class Synced:
    """What became of one run."""

    path: Path
    title: str
    rows: int
    trouble: str = ""  # why it has no complete mirror now; empty if it has


def sync(folder: Path, make: Callable[[Mapping[str, Any]], Tracker]) -> Iterator[Synced]:
    """Mirrors every run below a folder that is not being written, one after another.

    Args:
        folder: Where the runs are.
        make: The tracker for a run with this configuration.

    Raises:
        FedexpError: If there is no such folder, or no run in it.
    """
    for run in survey(folder):
        if run.state == "missing":
            continue
        if run.state not in WITH_RECORDS:
            yield Synced(run.path, run.label, 0, f"{run.state}: {run.note}".strip(": "))
            continue
        yield _mirrored(run.path, make)


def _mirrored(path: Path, make: Callable[[Mapping[str, Any]], Tracker]) -> Synced:
    name = path.name
    try:
        card, result = card_of(path)
        name, records = identity.title(card), RunDir(path).records()
        if not records:
            return Synced(path, name, 0, "no round has been evaluated yet")
        tracker = make(card.config)
        tracker.start(card, records)
        tracker.finish(result)
    except Exception as error:  # whatever a service or a package raises: the others are mirrored
        return Synced(path, name, 0, first_line(error))
    return Synced(path, name, len(records))


def card_of(path: Path) -> tuple[RunCard, dict[str, Any] | None]:
    """A run as trackers are told of it, and its result if it is finished.

    Raises:
        FedexpError: If its files cannot be read.
    """
    rundir = RunDir(path)
    config, result = rundir.config(), rundir.result()
    if config is None:
        raise FedexpError(f"{path} has no config.yaml.")
    card = RunCard(
        run=path.name,
        name=config["name"],
        config=config,
        plan=read_json(path / PLAN),
        path=path,
        rounds=config["rounds"],
        commit=(result or {}).get("commit", ""),
    )
    return card, result
