"""Converted data sets on disk, mapped into memory: made once, shared by all jobs of a sweep."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from fedexp.data.source import DataSpec, Loaded, Samples

log = logging.getLogger(__name__)

FORMAT = 1  # raise it when a conversion changes, so that old files are not taken for new ones


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
    memory once; what a process writes into its tensors stays its own. A folder that cannot be written is a reason for
    a warning, not for a failure. Augmentations are not kept.

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
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    entry = Path(folder).expanduser() / f"{name}-{key}"
    if (found := _opened(entry)) is not None:
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


def _identity(path: Path) -> tuple[str, int, int]:
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns


def _lock(entry: Path) -> TextIO:
    """Waits until nobody else converts the same, and returns what to close in the end."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    file = entry.with_name(f".{entry.name}.lock").open("a")
    fcntl.flock(file, fcntl.LOCK_EX)
    for rest in entry.parent.glob(f".{entry.name}.*.tmp"):  # of a process that was killed
        shutil.rmtree(rest, ignore_errors=True)
    return file


def _write(entry: Path, loaded: Loaded, about: Mapping[str, object]) -> None:
    named = {
        "train_x": loaded.train.x, "train_y": loaded.train.y, "test_x": loaded.test.x, "test_y": loaded.test.y,
        "owners": loaded.owners, "test_owners": loaded.test_owners,
    }  # fmt: skip
    arrays = {name: tensor.numpy() for name, tensor in named.items() if tensor is not None}
    folder = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", suffix=".tmp", dir=entry.parent))
    try:
        for name, array in arrays.items():
            with (folder / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                os.fsync(file.fileno())
        facts = {**about, "n_classes": loaded.spec.n_classes, "arrays": list(arrays)}
        (folder / "about.json").write_text(json.dumps(facts, indent=2) + "\n")
        folder.chmod(0o755)  # others may share the cache
        shutil.rmtree(entry, ignore_errors=True)  # there, but not readable: damaged
        folder.rename(entry)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _opened(entry: Path) -> Loaded | None:
    """Maps an entry into memory; None if there is none, or not a whole one."""
    try:
        about = json.loads((entry / "about.json").read_text())
        tensors = {  # "c": copy on write, so that nobody can change the file
            name: torch.from_numpy(np.load(entry / f"{name}.npy", mmap_mode="c")) for name in about["arrays"]
        }
        train, test = (Samples(tensors[f"{part}_x"], tensors[f"{part}_y"]) for part in ("train", "test"))
        spec = DataSpec(tuple(train.x.shape[1:]), about["n_classes"])
    except (OSError, ValueError, KeyError, EOFError):
        return None
    return Loaded(spec, train, test, None, tensors.get("owners"), tensors.get("test_owners"))
