"""The pointer of a checkpoint: the names of its files, with checksums. Free of torch, so that it is read at once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedexp.errors import CheckpointError, DamagedError
from fedexp.runs.names import GROWING, TENSORS
from fedexp.system.files import Mark, read_json

VERSION = 4
REMEDY = (
    "Put the file back as it was, or run again with force=true to start from the beginning. Nothing has been removed."
)
Marks = Mapping[str, Mark]  # by the file's name


class TensorFile(NamedTuple):
    """A file with tensors."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Pointer:
    """What a checkpoint consists of. On file it carries its own checksum, so that a wrong digit is noticed."""

    round: int
    server: TensorFile
    clients: dict[int, TensorFile]
    commits: int  # the store's version
    seconds: dict[str, float]
    written: Marks  # how far the run's growing files were

    @property
    def names(self) -> set[str]:
        """The files it needs."""
        return {self.server.name, *(entry.name for entry in self.clients.values())}

    def text(self, plan: str) -> bytes:
        """The pointer as it is written."""
        content = {
            "version": VERSION, "plan": plan, "round": self.round, "server": self.server, "commits": self.commits,
            "seconds": self.seconds, "written": self.written,
            "clients": {str(c): entry for c, entry in self.clients.items()},
        }  # fmt: skip
        return (json.dumps({**content, "sha256": checksum(content)}) + "\n").encode()

    @classmethod
    def read(cls, path: Path, plan: str | None = None) -> Pointer:
        """The pointer in a file.

        Raises:
            DamagedError: If it is missing, or is not what was written.
            CheckpointError: If it was written by another version, or under another plan than the one given.
        """
        content = read_json(path)
        found = content.pop("sha256", None)
        if found not in (None, checksum(content)):
            raise DamagedError(f"{path} is damaged: its sha256 is not {found}.")
        version, planned = content.get("version"), content.get("plan")
        if isinstance(version, int) and isinstance(planned, str):
            _demand_same_plan(path, version, planned, plan or planned)
        if found is None:
            raise DamagedError(f"{path} is damaged: it has no sha256.")
        try:
            return cls._parse(content)
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise DamagedError(f"{path} is damaged: it is not a pointer ({cause}).") from cause

    @classmethod
    def _parse(cls, content: Mapping[str, Any]) -> Pointer:
        if unknown := content["written"].keys() - set(GROWING):
            raise ValueError(f"{min(unknown)!r} is not a growing file of a run")
        return cls(
            round=_count(content["round"]),
            server=_entry(content["server"]),
            clients={int(client): _entry(entry) for client, entry in content["clients"].items()},
            commits=_count(content["commits"]),
            seconds={str(kind): float(value) for kind, value in content["seconds"].items()},
            written={name: Mark(*map(_count, mark)) for name, mark in content["written"].items()},
        )


def _demand_same_plan(path: Path, version: int, then: str, now: str) -> None:
    again = "Run again with force=true to start from the beginning, or delete the run's checkpoint folder."
    (plan_then, _, data_then), (plan_now, _, data_now) = then.partition("-"), now.partition("-")
    if (version, plan_then) == (VERSION, plan_now) and data_then != data_now:
        raise CheckpointError(
            f"{path} was written with other data (digest {data_then}; this run has read data with digest {data_now}). "
            f"Bring back the files that the run began with (data.root). {again}"
        )
    if (version, then) != (VERSION, now):
        raise CheckpointError(
            f"{path} was written by another version or plan (version {version}, plan {then}; "
            f"this run has version {VERSION}, plan {now}). {again}"
        )


def checksum(content: Mapping[str, Any]) -> str:
    """sha256 of what a pointer says."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _entry(pair: Any) -> TensorFile:
    """A file of the checkpoint's own folder: plain names only."""
    name, sha256 = pair
    if not (isinstance(name, str) and re.fullmatch(TENSORS, name) and isinstance(sha256, str)):
        raise ValueError(f"{name!r} is not the name of a checkpoint's file")
    return TensorFile(name, sha256)
