"""Files of ours: how they are read, written and removed without touching others.

Symbolic links are neither followed nor removed.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any, NamedTuple

from fedexp.errors import DamagedError, DiskError

MAX_NESTING = 50  # of lists and objects in a JSON file


class Mark(NamedTuple):
    """A file, or its beginning: how many bytes, and their checksum."""

    size: int = 0
    crc32: int = 0

    def after(self, data: bytes) -> Mark:
        """The mark when these bytes have been added."""
        return Mark(self.size + len(data), zlib.crc32(data, self.crc32))


# ---------------------------------------------------------------- names
def own_files(folder: Path, own: re.Pattern[str]) -> list[str]:
    """The names in a folder that are ours.

    Raises:
        DiskError: If the folder is a symbolic link, or one of them is anything but a file.
    """
    with writing(folder), os.scandir(folder) as entries:
        found = [entry for entry in entries if own.fullmatch(entry.name)]
    for entry in found:
        if not entry.is_file(follow_symlinks=False):
            raise DiskError(
                f"{entry.path} is {_kind(Path(entry.path))}, where fedexp keeps a file of its own. Move it elsewhere, "
                "and give the same command again."
            )
    return [entry.name for entry in found]


def remove_own(folder: Path, own: re.Pattern[str], *, but: Collection[str] = ()) -> None:
    """Removes the files in a folder whose names are ours, except some."""
    for name in own_files(folder, own):
        if name not in but:
            (folder / name).unlink(missing_ok=True)


def refuse_link(path: Path) -> None:
    """Raises ``DiskError`` if a path that is about to be written to, or emptied, is a symbolic link."""
    if path.is_symlink():
        raise DiskError(
            f"{path} is a symbolic link, which fedexp neither follows nor removes here. Move it elsewhere, and give "
            "the same command again."
        )


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    return "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "not a regular file"


# ---------------------------------------------------------------- reading
def open_to_read(path: Path) -> BufferedReader:
    """Opens a file of ours.

    Raises:
        DamagedError: If it is missing, cannot be read, or is not a file.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedError(f"{path} is {_kind(path)}, where a file belongs.")
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError as cause:
        raise _unreadable(path, cause) from cause


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """Opens a file of ours to be read in the block; raises ``DamagedError`` where that fails."""
    with open_to_read(path) as file:
        try:
            yield file
        except OSError as cause:
            raise _unreadable(path, cause) from cause


def _unreadable(path: Path, cause: OSError) -> DamagedError:
    return DamagedError(f"{path} is missing or cannot be read ({cause.strerror}).")


def read(path: Path) -> bytes:
    """The bytes of a file of ours."""
    with reading(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """The text of a file of ours."""
    try:
        return read(path).decode()
    except UnicodeDecodeError as cause:
        raise DamagedError(f"{path} is damaged: it is not text in UTF-8.") from cause


def parsed(path: Path, text: str) -> dict[str, Any]:
    """A JSON object that was found in a file."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise DamagedError(f"{path} is damaged: it cannot be read as JSON ({cause}).") from cause
    if _deeper(content, MAX_NESTING):
        raise DamagedError(f"{path} is damaged: it is nested more than {MAX_NESTING} times.")
    if not isinstance(content, dict):
        raise DamagedError(f"{path} is damaged: it holds {_brief(content)}, where an object belongs.")
    return content


def _deeper(content: object, levels: int) -> bool:
    """Whether lists and objects lie in each other more often than that."""
    inside = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return levels == 0 or any(_deeper(each, levels - 1) for each in inside if isinstance(each, dict | list))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of ours."""
    return parsed(path, read_text(path))


def _brief(content: object) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(content), "a number")


def mark_of(path: Path, size: int | None = None) -> Mark:
    """The mark of a file, or of no more than its first bytes; read in pieces."""
    mark = Mark()
    with reading(path) as file:
        while data := file.read(1 << 20 if size is None else min(1 << 20, size - mark.size)):
            mark = mark.after(data)
    return mark


# ---------------------------------------------------------------- writing
@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says what to do where a file of a run cannot be written."""
    refuse_link(path)
    try:
        yield
    except OSError as cause:
        raise DiskError(
            f"{path} could not be written ({cause.strerror or cause}). The last checkpoint is as it was: make room, or "
            "see to the folder's permissions, and the same command continues from it."
        ) from cause


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Writes a whole file or nothing: a reader never sees half of it, and a crash leaves the old one.

    A power failure may leave neither, unless ``sync`` has the disk itself confirm.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if sync:
        sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk itself."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_to_append(path: Path, written: Mark | None) -> BufferedWriter:
    """Opens a growing file, which must be as long as it was left; None: it is new.

    Raises:
        DamagedError: If someone else has removed, replaced or changed it meanwhile.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if written is None:
        return os.fdopen(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), "ab")
    try:
        file = os.fdopen(os.open(path, flags), "ab")
    except OSError as cause:
        raise changed(path, cause.strerror) from cause
    found = os.fstat(file.fileno()).st_size
    if found != written.size:
        file.close()
        raise changed(path, f"it has {found} bytes, {written.size} were written")
    return file


def changed(path: Path, how: str | None) -> DamagedError:
    """What to say if someone has touched what a run is writing."""
    return DamagedError(
        f"{path} was removed or changed by someone else while the run was writing it ({how}). The same command "
        "continues from the last checkpoint before that, if there is one; else put the file back as it was, or begin "
        "again with force=true."
    )
