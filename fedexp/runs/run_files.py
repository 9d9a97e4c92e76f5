"""Writes and reads the files of a run: small ones at once, those that grow with the rounds line by line.

A growing file has a mark, the size and checksum of what this run has written; what is behind it is cut off on resume.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

from fedexp.core.record import Record
from fedexp.errors import DamagedError
from fedexp.runs.names import ARRAYS, GROWING, METRICS, OF_ARRAYS, PROBES, RESULT
from fedexp.runs.pointer import Marks
from fedexp.system import files
from fedexp.system.files import Mark


class RunFiles:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks: Marks = {}  # of the growing files
        self._columns: dict[str, list[str]] = {}  # of those of them that are CSV
        self._whole: dict[str, Mark] = {}  # of files that were written at once

    def _has(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

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

    def append_observations(self, round_: int, rows: Iterable[Mapping[str, Any]], arrays: bytes | None) -> None:
        """Adds what probes have seen in a round to probes.jsonl; arrays are a file of their own, which a row names."""
        rows = list(rows)
        if arrays is not None:
            name = f"{ARRAYS}/round-{round_:04d}.safetensors"
            self.write_bytes(name, arrays)
            file = {"file": name, **self._whole[name]._asdict()}
            rows.append({"round": round_, "client": None, "probe": None, "name": "arrays", "values": file})
        if rows:
            self._append(PROBES, "".join(json.dumps(row) + "\n" for row in rows))

    def observations(self, size: int | None = None) -> Iterator[dict[str, Any]]:
        """The rows of probes.jsonl, one by one; or those within its first bytes."""
        path = self.path / PROBES
        if self._has(PROBES):
            with files.reading(path) as file:
                while (size is None or file.tell() < size) and (line := file.readline()):
                    yield files.parsed(path, line.decode(errors="replace"))

    def _arrays(self, size: int | None = None) -> dict[str, Mark]:
        """The files with arrays that rows of probes.jsonl name."""
        found = (row["values"] for row in self.observations(size) if row.get("name") == "arrays")
        return {values["file"]: Mark(values["size"], values["crc32"]) for values in found}

    def append_rows(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows to a CSV file, which begins with its columns.

        A file that an earlier version of fedexp began keeps its columns: what it has none for is left out.

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
            self._columns[name] = list(columns)
        elif name not in self._columns:
            self._columns[name] = self._read_columns(name)
        writer.writerows([row.get(column) for column in self._columns[name]] for row in rows)
        self._append(name, text.getvalue())

    def _read_columns(self, name: str) -> list[str]:
        """The columns with which a CSV file begins."""
        with files.reading(self.path / name) as file:
            return next(csv.reader([file.readline().decode()]), [])

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
        for name, mark in (self._arrays(marks[PROBES].size) if PROBES in marks else {}).items():
            if files.mark_of(self.path / name) != mark:
                raise DamagedError(f"{self.path / name} is damaged: it is not what was written.")

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
        self._columns.clear()
        self._remove_arrays(but={Path(name).name for name in self._arrays()})

    def _remove_arrays(self, but: Collection[str] = ()) -> None:
        folder = self.path / ARRAYS
        if folder.is_dir():
            files.remove_own(folder, OF_ARRAYS, but=but)
            with suppress(OSError):  # not empty
                folder.rmdir()

    def _size(self, name: str) -> int:
        return (self.path / name).stat().st_size if self._has(name) else 0


def _complete(rows: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
    for row in rows:
        if None in row or None in row.values():  # how csv marks what is too much, and too little
            raise ValueError("a row has other columns")
        yield row
