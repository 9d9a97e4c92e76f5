"""The run directory: the record of a run. Small files, written atomically or appended and cut back on resume."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedexp.errors import ClientError, DiskError, FedexpError

Record = dict[str, Any]
ERROR = "error.txt"  # why the run failed


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
        self._lock: TextIOWrapper | None = None

    def __enter__(self) -> RunDir:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / ".lock").open("a+")
        if not _locked(self._lock, fcntl.LOCK_EX, tries=10):
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise FedexpError(
                f"{self.path} is being written by {holder}. Wait for it, stop it, or choose another `name` or `out`."
            ) from None
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(f"process {os.getpid()}")
        self._lock.flush()
        return self

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
        config = OmegaConf.to_container(OmegaConf.load(path))
        return {str(k): v for k, v in config.items()} if isinstance(config, dict) else None

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
            with suppress(OSError):  # a full disk may be the error
                self.write_text(ERROR, "\n".join([line, "", details or "".join(traceback.format_exception(error))]))
            if details:
                raise ClientError(f"{error} (traceback: {path})", details) from error
            raise

    # ------------------------------------------------------------ results
    def result(self) -> dict[str, Any] | None:
        """The result of a finished run, or None."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        result: dict[str, Any] = json.loads(path.read_text())
        return result

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
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def append_record(self, record: Record) -> None:
        """Adds an evaluated round to metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with writing(path), path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def append_rows(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows to a CSV file, which begins with its columns.

        Raises:
            ValueError: If a row has another column.
        """
        rows, known = list(rows), set(columns)
        if unknown := [k for row in rows if not row.keys() <= known for k in row.keys() - known]:
            raise ValueError(f"{name} has no column {unknown[0]!r}")
        path = self.path / name
        new = not path.exists()
        with writing(path), path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(columns)
            writer.writerows([row.get(column) for column in columns] for row in rows)

    def rows(self, name: str) -> Iterator[dict[str, str]]:
        """The rows of a CSV file, one by one: a long run has more than one wants to hold."""
        path = self.path / name
        if path.exists():
            with path.open(newline="") as file:
                yield from csv.DictReader(file)

    def cut(self, rounds: int) -> None:
        """Drops what was written after the given number of rounds, and half-written last lines."""
        metrics = self.path / "metrics.jsonl"
        if metrics.exists():
            kept = [line for line in metrics.read_text().splitlines() if _round_of_json(line) <= rounds]
            write_atomically(metrics, "".join(line + "\n" for line in kept).encode())
        for path in self.path.glob("*.csv"):
            text = path.read_text()
            if rounds == 0 or "\n" not in text:  # nothing to keep, or not even complete columns
                path.unlink()
                continue
            header, *lines = text.splitlines()
            commas = header.count(",")
            kept = [x for x in lines if x.count(",") == commas and x.split(",", 1)[0].isdigit()]
            kept = [header, *(x for x in kept if int(x.split(",", 1)[0]) <= rounds)]
            write_atomically(path, "".join(line + "\n" for line in kept).encode())

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


def _round_of_json(line: str) -> float:
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError):
        return float("inf")
