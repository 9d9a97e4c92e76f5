"""The run directory: the record of a run. Small files, written atomically or appended and cut back on resume."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from fedexp.config import yaml_files
from fedexp.errors import ClientError, ConfigError, DamagedError, DiskError
from fedexp.runs import lock
from fedexp.runs.checksums import CHECKED, LASTING, checksums, compare, content_mark
from fedexp.runs.names import ARRAYS, CHECKPOINT, CONFIG, ERROR, LOCK, OF_A_RUN, PROBES, RESULT
from fedexp.runs.run_files import RunFiles
from fedexp.system import files
from fedexp.system.files import Mark

BEGIN_AGAIN = "force=true runs it again from the beginning."


class RunDir(RunFiles):
    """The files of one run. Open it with ``with`` to hold it: two processes cannot write one run directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock: BinaryIO | None = None
        self._made: list[Path] = []  # folders, the innermost first

    def __enter__(self) -> RunDir:
        self._own()
        with files.writing(self.path / LOCK):
            self._made = [p for p in (self.path, *self.path.parents) if not p.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock.lock(self.path / LOCK)
        for half in (name for name in self._own() if name.endswith(".tmp")):  # written by a process that was killed
            (self.path / half).unlink()
        return self

    def _own(self) -> list[str]:
        """The files of the run that are there.

        Raises:
            DiskError: If something else has one of their names.
        """
        for folder in (self.path / CHECKPOINT, self.path / ARRAYS):
            files.refuse_link(folder)
            if folder.is_file():
                raise DiskError(f"{folder} is a file, where fedexp keeps a folder. Move it elsewhere.")
        return files.own_files(self.path, OF_A_RUN) if self.path.is_dir() else []

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
        return lock.holder(self.path / LOCK)

    def clear(self) -> None:
        """Removes the files of an earlier run in this directory (``force=true``)."""
        names = [name for name in self._own() if name != LOCK]
        for name in sorted(names, key=lambda name: name != RESULT):  # first: it has the checksums of the others
            (self.path / name).unlink()
        self._remove_arrays()

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
        if "_target_" in (config.get("tracker") or ()):  # of a version with one tracker; no number depends on it
            config = {**config, "tracker": {}}
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
            written = checksums(path, content)
            compare(path, content_mark(content), written.pop(RESULT, None))
        except DamagedError as error:
            raise DamagedError(
                f"{error} Remove it, and the same command continues from the last checkpoint if there is one; "
                f"{BEGIN_AGAIN}"
            ) from error
        if content.get("status") != "finished":  # the checkpoint it will continue from knows its files
            return None
        try:
            for name, mark in written.items():
                compare(self.path / name, files.mark_of(self.path / name), mark)
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
        marks = {**{name: written.get(name, Mark()) for name in names}, **self._observed()}
        for name, mark in marks.items():
            self._demand(name, mark)
        sums = {name: mark._asdict() for name, mark in marks.items()}
        own = content_mark({**result, "checksums": sums})
        concluded = {**result, "checksums": {**sums, RESULT: own._asdict()}}
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

    def _observed(self) -> dict[str, Mark]:
        """The marks of all that probes have written."""
        if PROBES not in self.marks:
            return {}
        self._demand(PROBES, self.marks[PROBES])  # before it is believed
        return {PROBES: self.marks[PROBES], **self._arrays()}


def _settings(text: str) -> dict[object, Any]:
    """Settings in YAML as a run writes them."""
    yaml_files.refuse_excess(text, aliases=False)
    config = yaml.load(text, yaml_files.LOADER)  # noqa: S506 - one of the two safe ones
    if not isinstance(config, dict) or not config:
        raise ValueError("it holds no settings")
    return config


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
