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
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from fedexp.config import yaml_files
from fedexp.core.record import Record
from fedexp.errors import ClientError, ConfigError, DamagedError, DiskError, FedexpError
from fedexp.runs.names import CHECKPOINT, CONFIG, ERROR, GROWING, LOCK, METRICS, MODEL, OF_A_RUN, PLAN, RESULT
from fedexp.runs.pointer import Marks
from fedexp.system import files
from fedexp.system.files import Mark

LASTING = (*GROWING, MODEL)  # not written again once the result has their checksums
CHECKED = (CONFIG, PLAN, *LASTING)
BEGIN_AGAIN = "force=true runs it again from the beginning."


class RunDir:
    """The files of one run. Open it with ``with`` to hold it: two processes cannot write one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks: Marks = {}  # of the growing files
        self._whole: dict[str, Mark] = {}  # of files that were written at once
        self._lock: BinaryIO | None = None
        self._made: list[Path] = []  # folders, the innermost first

    def __enter__(self) -> RunDir:
        self._own()
        with files.writing(self.path / LOCK):
            self._made = [p for p in (self.path, *self.path.parents) if not p.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked_by_us()
        for half in (name for name in self._own() if name.endswith(".tmp")):  # written by a process that was killed
            (self.path / half).unlink()
        return self

    def _own(self) -> list[str]:
        """The files of the run that are there.

        Raises:
            DiskError: If something else has one of their names.
        """
        files.refuse_link(self.path / CHECKPOINT)
        if (self.path / CHECKPOINT).is_file():
            raise DiskError(f"{self.path / CHECKPOINT} is a file, where fedexp keeps a folder. Move it elsewhere.")
        return files.own_files(self.path, OF_A_RUN) if self.path.is_dir() else []

    def _locked_by_us(self) -> BinaryIO:
        lock = os.fdopen(os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
        if not _locked(lock, fcntl.LOCK_EX, tries=10):
            holder = lock.read().decode(errors="replace").strip() or "another process"
            lock.close()
            raise FedexpError(
                f"{self.path} is being written by {holder}. Wait for it, stop it, or choose another `name` or `out`."
            ) from None
        lock.truncate()
        lock.write(f"process {os.getpid()}".encode())
        lock.flush()
        return lock

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def demand_writable(self) -> None:
        """Raises ``ConfigError`` if the directory cannot be made, before anything is read or trained."""
        there = next(p for p in (self.path.absolute(), *self.path.absolute().parents) if p.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise ConfigError(
                f"out: {self.path} cannot be made, because {there} is not a folder that can be written to. Name "
                "another with out=<folder>."
            )

    def remove_unused(self) -> None:
        """Removes the directory, and those around it, if they were made for a run that could not begin."""
        if self._made and not self._has(CONFIG):
            with suppress(OSError):
                for name in (LOCK, ERROR):
                    (self.path / name).unlink(missing_ok=True)
                for folder in self._made:
                    folder.rmdir()

    def holder(self) -> str | None:
        """Who is writing the run now, or None."""
        if not self._has(LOCK):
            return None
        with files.reading(self.path / LOCK) as lock:  # held for a moment, which is why others try again
            return None if _locked(lock, fcntl.LOCK_SH) else lock.read().decode(errors="replace").strip()

    def _has(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    # ------------------------------------------------------------ settings, and what went wrong
    def config(self) -> dict[str, Any] | None:
        """The settings of the run, or None if it never began."""
        if not self._has(CONFIG):
            return None
        path = self.path / CONFIG
        try:
            config = _settings(files.read_text(path))
        except (ValueError, yaml.YAMLError) as cause:
            raise DamagedError(f"{path} is damaged: {_line(cause)}.") from cause
        return {str(k): v for k, v in config.items()}

    def error(self) -> str | None:
        """What made the run fail, in a line; None if it did not."""
        return files.read(self.path / ERROR).decode(errors="replace").partition("\n")[0] if self._has(ERROR) else None

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
        """The result of a finished run, or None; also None while something after the last round is left to do.

        Raises:
            DamagedError: If it is not what was written, or another file of the run is not what it was then.
        """
        if not self._has(RESULT):
            return None
        path = self.path / RESULT
        try:
            content = files.read_json(path)
            checksums = _checksums(path, content)
            _compare(path, _content_mark(content), checksums.pop(RESULT, None))
        except DamagedError as error:
            raise DamagedError(
                f"{error} Remove it, and the same command continues from the last checkpoint if there is one; "
                f"{BEGIN_AGAIN}"
            ) from error
        if content.get("status") != "finished":  # the checkpoint it will continue from knows its files
            return None
        try:
            for name, mark in checksums.items():
                _compare(self.path / name, files.mark_of(self.path / name), mark)
        except DamagedError as error:
            raise DamagedError(f"{error} Put it back as it was, or {BEGIN_AGAIN}") from error
        return content

    def conclude(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Writes the result with checksums of itself and of the run's other files; returns it as it is written.

        Raises:
            DamagedError: If one of those files is not what this run has written; then no result is.
        """
        written = {**self._whole, **self.marks}
        names = CHECKED if result["status"] == "finished" else LASTING
        for name in names:
            self._demand(name, written.get(name, Mark()))
        checksums = {name: written[name]._asdict() for name in names}
        own = _content_mark({**result, "checksums": checksums})
        concluded = {**result, "checksums": {**checksums, RESULT: own._asdict()}}
        self.write(RESULT, concluded)
        return concluded

    def _demand(self, name: str, mark: Mark) -> None:
        path = self.path / name
        try:
            found = files.mark_of(path)
        except DamagedError as error:
            raise files.changed(path, str(error)) from error
        if found != mark:
            raise files.changed(
                path, f"{found.size} bytes, crc32 {found.crc32:08x}; written were {mark.size}, {mark.crc32:08x}"
            )

    def write(self, name: str, value: Any) -> None:
        """Writes a JSON file of the run."""
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Writes a text file of the run."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Writes a file of the run."""
        with files.writing(self.path / name):
            files.write_atomically(self.path / name, data)
        self._whole[name] = Mark().after(data)

    # ------------------------------------------------------------ growing files
    def records(self) -> list[Record]:
        """The evaluated rounds on file."""
        path = self.path / METRICS
        return [files.parsed(path, line) for line in files.read_text(path).splitlines()] if self._has(METRICS) else []

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
        if name not in self.marks:
            writer.writerow(columns)
        writer.writerows([row.get(column) for column in columns] for row in rows)
        self._append(name, text.getvalue())

    def _append(self, name: str, text: str) -> None:
        data, path, mark = text.encode(), self.path / name, self.marks.get(name)
        with files.writing(path), files.open_to_append(path, mark) as file:
            file.write(data)
        self.marks = {**self.marks, name: (mark or Mark()).after(data)}

    def rows(self, name: str) -> Iterator[dict[str, str]]:
        """The rows of a CSV file, one by one: those of a long run may not fit in memory."""
        if self._has(name):
            with files.reading(self.path / name) as file, TextIOWrapper(file, encoding="utf-8", newline="") as text:
                try:
                    yield from _complete(csv.DictReader(text))
                except (ValueError, csv.Error) as cause:
                    raise DamagedError(f"{self.path / name} is damaged: it cannot be read as CSV ({cause}).") from cause

    def sync(self) -> None:
        """Waits until everything appended so far is on the disk itself.

        Raises:
            DamagedError: If something that was appended is gone.
        """
        for name, mark in self.marks.items():
            path = self.path / name
            with files.writing(path), files.open_to_read(path) as file:
                if os.fstat(file.fileno()).st_size < mark.size:  # half a line more is cut when the run is taken up
                    raise files.changed(path, "it is shorter")
                os.fsync(file.fileno())

    def check(self, marks: Marks) -> None:
        """Raises ``DamagedError`` if a growing file is not what was written up to its mark."""
        for name, mark in marks.items():
            if files.mark_of(self.path / name, mark.size) != mark:
                raise DamagedError(
                    f"{self.path / name} is damaged: its first {mark.size} bytes are not what was written."
                )

    def cut(self, marks: Marks) -> None:
        """Drops what growing files have behind their marks, half-written lines too.

        Raises:
            DamagedError: If one of them is not what was written up to there; then nothing is dropped.
        """
        self.check(marks)
        if any(self._size(name) > marks.get(name, Mark()).size for name in GROWING):
            (self.path / RESULT).unlink(missing_ok=True)  # its checksums are of files that are dropped
        for path in (self.path / name for name in GROWING):
            with files.writing(path):
                if path.name in marks:
                    os.truncate(path, marks[path.name].size)
                else:
                    path.unlink(missing_ok=True)
        self.marks = dict(marks)

    def _size(self, name: str) -> int:
        return (self.path / name).stat().st_size if self._has(name) else 0

    def clear(self) -> None:
        """Removes the files of an earlier run in this directory (``force=true``)."""
        names = [name for name in self._own() if name != LOCK]
        for name in sorted(names, key=lambda name: name != RESULT):  # first: it has the checksums of the others
            (self.path / name).unlink()


def _settings(text: str) -> dict[object, Any]:
    """Settings in YAML as a run writes them."""
    yaml_files.refuse_excess(text, aliases=False)
    config = yaml.load(text, yaml_files.LOADER)  # noqa: S506 - one of the two safe ones
    if not isinstance(config, dict) or not config:
        raise ValueError("it holds no settings")
    return config


def _checksums(path: Path, result: Mapping[str, Any]) -> dict[str, Mark]:
    """What a result says of the run's files, and of itself."""
    try:
        marks = {name: Mark(mark["size"], mark["crc32"]) for name, mark in result["checksums"].items()}
    except (KeyError, TypeError, AttributeError):
        raise DamagedError(f"{path} is not a result that a run has written: it has no checksums.") from None
    if not {*LASTING, RESULT} <= marks.keys() <= {*CHECKED, RESULT}:
        raise DamagedError(f"{path} is not a result that a run has written: it has checksums of other files.")
    return marks


def _content_mark(result: Mapping[str, Any]) -> Mark:
    """The mark of all that a result says, but of itself."""
    others = {name: mark for name, mark in result["checksums"].items() if name != RESULT}
    return Mark().after(json.dumps({**result, "checksums": others}).encode())


def _compare(path: Path, found: Mark, written: Mark | None) -> None:
    if found != written:
        raise DamagedError(f"{path} is damaged: it is not what was written when the run had finished.")


def _complete(rows: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
    for row in rows:
        if None in row or None in row.values():  # how csv marks what is too much, and too little
            raise ValueError("a row has other columns")
        yield row


def _locked(file: BinaryIO, kind: int, *, tries: int = 1) -> bool:
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


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
