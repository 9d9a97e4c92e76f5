"""The run directory: the record of a run. Small files, written atomically or appended and cut back on resume."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from yaml import YAMLError

from fedexp.errors import ClientError, DamagedError, DiskError, FedexpError

Record = dict[str, Any]
ERROR = "error.txt"  # why the run failed
METRICS = "metrics.jsonl"


class Mark(NamedTuple):
    """How far a growing file was written: its bytes up to there, and their checksum."""

    size: int = 0
    crc32: int = 0


Marks = Mapping[str, Mark]  # by the file's name


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Writes a whole file or nothing: a reader never sees half of it, and a crash leaves the old one.

    A power failure may leave neither, unless ``sync`` has the disk itself confirm.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk itself."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says what to do where a file of a run cannot be written."""
    try:
        yield
    except OSError as cause:
        raise DiskError(
            f"{path} could not be written ({cause.strerror or cause}). The last checkpoint is as it was: make room, or "
            "see to the folder's permissions, and the same command continues from it."
        ) from cause


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


class RunDir:
    """The files of one run. Open it with ``with`` to hold it: two processes cannot write one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks: Marks = {}
        self._lock: TextIOWrapper | None = None

    def __enter__(self) -> RunDir:
        with writing(self.path):
            self._lock = self._locked_by_us()
            for half in self.path.glob(".*.tmp"):  # written by a process that was killed
                half.unlink()
        return self

    def _locked_by_us(self) -> TextIOWrapper:
        self.path.mkdir(parents=True, exist_ok=True)
        lock = (self.path / ".lock").open("a+")
        if not _locked(lock, fcntl.LOCK_EX, tries=10):
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            lock.close()
            raise FedexpError(
                f"{self.path} is being written by {holder}. Wait for it, stop it, or choose another `name` or `out`."
            ) from None
        lock.seek(0)
        lock.truncate()
        lock.write(f"process {os.getpid()}")
        lock.flush()
        return lock

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def holder(self) -> str | None:
        """Who is writing the run now, or None."""
        path = self.path / ".lock"
        if not path.exists():
            return None
        with path.open() as lock:  # a look holds the lock for a moment, which is why others try again
            return None if _locked(lock, fcntl.LOCK_SH) else lock.read().strip()

    # ------------------------------------------------------------ settings, and what went wrong
    def config(self) -> dict[str, Any] | None:
        """The settings of the run, or None if it never began."""
        path = self.path / "config.yaml"
        if not path.exists():
            return None
        try:
            config = OmegaConf.to_container(OmegaConf.load(path))
        except (ValueError, YAMLError, OSError) as cause:
            raise _unreadable(path, cause) from cause
        if not isinstance(config, dict) or not config:
            raise _unreadable(path, "no settings")
        return {str(k): v for k, v in config.items()}

    def error(self) -> str | None:
        """What made the run fail, in a line; None if it did not."""
        path = self.path / ERROR
        return path.read_text().partition("\n")[0] if path.exists() else None

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Keeps the error that ends the block, with its traceback, and forgets an earlier one.

        Raises:
            ClientError: Again, if a client's work was the cause; now with the place of the traceback.
        """
        path = self.path / ERROR
        path.unlink(missing_ok=True)
        try:
            yield
        except Exception as error:
            line = f"{type(error).__name__}: {' '.join(str(error).split())}"
            details = error.details if isinstance(error, ClientError) else ""  # from where the client was
            with suppress(DiskError):  # a full disk may be the error
                self.write_text(ERROR, "\n".join([line, "", details or "".join(traceback.format_exception(error))]))
            if details:
                raise ClientError(f"{error} (traceback: {path})", details) from error
            raise

    # ------------------------------------------------------------ results
    def result(self) -> dict[str, Any] | None:
        """The result of a finished run, or None; also None while something after the last round is left to do."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        try:
            result: dict[str, Any] = json.loads(path.read_text())
        except (ValueError, OSError) as cause:
            raise _unreadable(path, cause) from cause
        return result if result["status"] == "finished" else None

    def write(self, name: str, value: Any) -> None:
        """Writes a JSON file of the run."""
        with writing(self.path / name):
            write_json(self.path / name, value)

    def write_text(self, name: str, text: str) -> None:
        """Writes a text file of the run."""
        with writing(self.path / name):
            write_atomically(self.path / name, text.encode())

    # ------------------------------------------------------------ growing files
    def records(self) -> list[Record]:
        """The evaluated rounds on file."""
        path = self.path / METRICS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def append_record(self, record: Record) -> None:
        """Adds an evaluated round to metrics.jsonl."""
        self._append(METRICS, json.dumps(record) + "\n")

    def append_rows(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows to a CSV file, which begins with its columns.

        Raises:
            ValueError: If a row has another column.
        """
        rows, known = list(rows), set(columns)
        if unknown := [k for row in rows if not row.keys() <= known for k in row.keys() - known]:
            raise ValueError(f"{name} has no column {unknown[0]!r}")
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not (self.path / name).exists():
            writer.writerow(columns)
        writer.writerows([row.get(column) for column in columns] for row in rows)
        self._append(name, text.getvalue())

    def _append(self, name: str, text: str) -> None:
        data, path = text.encode(), self.path / name
        with writing(path), path.open("ab") as file:
            file.write(data)
        size, crc32 = self.marks.get(name, Mark())
        self.marks = {**self.marks, name: Mark(size + len(data), zlib.crc32(data, crc32))}

    def rows(self, name: str) -> Iterator[dict[str, str]]:
        """The rows of a CSV file, one by one: a long run has more than one wants to hold."""
        path = self.path / name
        if path.exists():
            with path.open(newline="") as file:
                yield from csv.DictReader(file)

    def sync(self) -> None:
        """Waits until everything appended so far is on the disk itself."""
        for name in self.marks:
            with writing(self.path / name), (self.path / name).open("rb") as file:
                os.fsync(file.fileno())

    def cut(self, marks: Marks) -> None:
        """Drops what growing files have behind their marks, half-written lines too.

        Raises:
            DamagedError: If one of them is not what was written up to there; then nothing is dropped.
        """
        for name, mark in marks.items():
            self._check(self.path / name, mark)
        for path in (*self.path.glob("*.csv"), self.path / METRICS):
            with writing(path):
                if path.name in marks:
                    os.truncate(path, marks[path.name].size)
                else:
                    path.unlink(missing_ok=True)
        self.marks = dict(marks)

    def _check(self, path: Path, mark: Mark) -> None:
        try:
            with path.open("rb") as file:
                data = file.read(mark.size)
        except OSError as cause:
            raise DamagedError(f"{path} is missing or cannot be read ({cause.strerror}).") from cause
        if Mark(len(data), zlib.crc32(data)) != mark:
            raise DamagedError(f"{path} is damaged: its first {mark.size} bytes are not what was written.")

    def clear(self) -> None:
        """Removes the files of an earlier run in this directory (``force=true``)."""
        for pattern in ("*.json", "*.jsonl", "*.csv", "*.yaml", "*.safetensors"):
            for path in self.path.glob(pattern):
                path.unlink()


def _locked(file: TextIOWrapper, kind: int, *, tries: int = 1) -> bool:
    """Takes a lock if nobody else has it."""
    for attempt in range(tries):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < tries:
                time.sleep(0.02)
        else:
            return True
    return False


def _unreadable(path: Path, why: object) -> DamagedError:
    return DamagedError(f"{path} cannot be read ({why}). force=true runs it again from the beginning.")
