"""Converted data sets on disk, mapped into memory: made once, shared by all jobs of a sweep."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from fedexp.data.source import DataSpec, Loaded, Samples, checksums, digest

log = logging.getLogger(__name__)

FORMAT = 2  # raise it when a conversion or an entry's layout changes, so that old files are not taken for new ones


def cached(
    make: Callable[[], Loaded],
    *,
    folder: str | None,
    name: str,
    files: Sequence[Path],
    settings: Mapping[str, object],
) -> Loaded:
    """Returns what ``make`` returns, mapped from disk; ``make`` is called only if nobody has called it before.

    Nothing is ever changed in place: an entry appears whole, by a rename. Pages that several processes read are in
    memory once; what a process writes into its tensors stays its own. An entry carries checksums: one that is damaged
    is named in a warning and made anew. A folder that cannot be written is a reason for a warning, not for a failure.
    Augmentations are not kept.

    Args:
        make: Reads and converts the data set.
        folder: Where converted data sets are; None switches the cache off.
        name: The data set's name, for the entry's.
        files: What ``make`` reads. If one changes, the entry is another.
        settings: What else the result depends on.
    """
    if folder is None:
        return make()
    about = {"name": name, "format": FORMAT, "settings": dict(settings), "files": [_identity(f) for f in files]}
    entry = Path(folder).expanduser() / f"{name}-{_sha256(about)[:16]}"
    if (found := _opened(entry, warn=True)) is not None:
        return found
    try:
        lock = _lock(entry)
    except OSError as error:
        _excuse(name, error)
        return make()
    with lock:
        if (found := _opened(entry)) is not None:  # another job was faster
            return found
        loaded = make()
        try:
            _write(entry, loaded, about)
        except OSError as error:
            _excuse(name, error)
    return _opened(entry) or loaded


def _excuse(name: str, error: OSError) -> None:
    log.warning("cannot keep %s in the cache: %s. data.cache=<folder> names another place.", name, error)


def _sha256(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _identity(path: Path) -> tuple[str, int, int]:
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns


def _lock(entry: Path) -> AbstractContextManager[object]:
    """Waits until nobody else converts the same; the block that follows has the lock."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(entry.with_name(f".{entry.name}.lock")).acquire()
    for rest in entry.parent.glob(f".{entry.name}.*.tmp"):  # of a process that was killed
        shutil.rmtree(rest, ignore_errors=True)
    return lock


def _write(entry: Path, loaded: Loaded, about: Mapping[str, object]) -> None:
    folder = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", suffix=".tmp", dir=entry.parent))
    try:
        for name, tensor in loaded.tensors.items():
            with (folder / f"{name}.npy").open("wb") as file:
                np.save(file, tensor.numpy())
                os.fsync(file.fileno())
        facts = {**about, "n_classes": loaded.spec.n_classes, "arrays": checksums(loaded.tensors)}
        (folder / "about.json").write_text(json.dumps({**facts, "sha256": _sha256(facts)}, indent=2) + "\n")
        folder.chmod(0o755)  # others may share the cache
        shutil.rmtree(entry, ignore_errors=True)  # there, but not readable: damaged
        folder.rename(entry)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _opened(entry: Path, *, warn: bool = False) -> Loaded | None:
    """Maps an entry into memory; None if there is none, or a damaged one."""
    if not entry.exists():
        return None
    try:
        return _mapped(entry)
    except Exception as error:  # a damaged file can break in any way
        if warn:
            text = "the cache's %s is damaged or cannot be read (%s: %s). It is made anew."
            log.warning(text, entry, type(error).__name__, error)
        return None


def _mapped(entry: Path) -> Loaded:
    about = json.loads((entry / "about.json").read_bytes())
    if about.pop("sha256") != _sha256(about):
        raise ValueError("about.json is not what was written")
    sums: dict[str, str] = about["arrays"]
    tensors = {  # "c": copy on write, so that nobody can change the file
        name: torch.from_numpy(np.load(entry / f"{name}.npy", mmap_mode="c")) for name in sums
    }
    if wrong := [f"{name}.npy" for name, found in checksums(tensors).items() if found != sums[name]]:
        raise ValueError(f"{', '.join(wrong)} is not what was written")
    train, test = (Samples(tensors[f"{part}_x"], tensors[f"{part}_y"]) for part in ("train", "test"))
    spec = DataSpec(tuple(train.x.shape[1:]), about["n_classes"])
    return Loaded(spec, train, test, None, tensors.get("owners"), tensors.get("test_owners"), digest(sums))
