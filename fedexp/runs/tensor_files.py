"""Tensor files: written atomically, identified by a checksum, read without running any code."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedexp.core.state import Tree
from fedexp.errors import DamagedError
from fedexp.runs.names import OF_A_CHECKPOINT
from fedexp.runs.pointer import TensorFile
from fedexp.system.files import (
    own_files,
    read,
    reading,
    refuse_link,
    remove_own,
    sync_folder,
    write_atomically,
    writing,
)


class TensorFiles:
    """The tensor files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._unsynced: set[str] = set()

    def write(self, name: str, trees: Mapping[str, Tree]) -> TensorFile:
        """Writes a file; a kill leaves it whole or absent, and from ``sync`` on a power failure does too."""
        refuse_link(self.folder)
        data = safetensors.torch.save(_flatten(trees))
        with writing(self.folder / name):
            write_atomically(self.folder / name, data, sync=False)
        self._unsynced.add(name)
        return TensorFile(name, hashlib.sha256(data).hexdigest())

    def read(self, entry: TensorFile) -> dict[str, Tree]:
        """The trees of a file.

        Raises:
            DamagedError: If the file is missing, or is not what was written.
        """
        path = self.folder / entry.name
        data = read(path)
        _compare(path, hashlib.sha256(data).hexdigest(), entry)
        try:
            return _unflatten(safetensors.torch.load(data))
        except (SafetensorError, ValueError) as cause:
            raise DamagedError(f"{path} is damaged ({cause}).") from cause

    def check(self, entry: TensorFile) -> None:
        """Raises ``DamagedError`` if a file is missing or is not what was written; holds none of it."""
        path = self.folder / entry.name
        with reading(path) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        _compare(path, found, entry)

    def sync(self) -> None:
        """Waits until everything written is on the disk itself: for many files at once, which is quicker."""
        for name in sorted(self._unsynced):
            path = self.folder / name
            with writing(path), path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(self.folder)
        self._unsynced.clear()

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        self._unsynced.discard(name)
        (self.folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """The names in the folder that are a checkpoint's, half-written files of a crash too; none without a folder."""
        refuse_link(self.folder)
        return own_files(self.folder, OF_A_CHECKPOINT) if self.folder.exists() else []

    def sweep(self, alive: Collection[str]) -> None:
        """Removes a checkpoint's files but the named ones. What others have put there stays."""
        remove_own(self.folder, OF_A_CHECKPOINT, but=alive)
        self._unsynced.intersection_update(alive)

    def clear(self, first: Sequence[str]) -> None:
        """Removes all of a checkpoint's files, some of them first, and the folder unless something else is in it."""
        for name in (*first, *self.names()):
            self.remove(name)
        with suppress(OSError):  # not there, or not empty
            self.folder.rmdir()


def _compare(path: Path, found: str, entry: TensorFile) -> None:
    if found != entry.sha256:
        raise DamagedError(f"{path} is damaged: its sha256 is not {entry.sha256}.")


# ---------------------------------------------------------------- trees and files
def _flatten(trees: Mapping[str, Tree]) -> Tree:
    """One tree with keys ``number|slot|name``: safetensors keeps no order, and sums depend on it in their last bits.

    A tree without tensors has the name "".
    """
    pairs = [(s, n, v) for s, tree in trees.items() for n, v in (tree or {"": torch.empty(0)}).items()]
    return {f"{i:08d}|{slot}|{name}": v.clone().contiguous() for i, (slot, name, v) in enumerate(pairs)}


def _unflatten(flat: Mapping[str, Tensor]) -> dict[str, Tree]:
    trees: dict[str, Tree] = {}
    for key in sorted(flat):
        slot, _, name = key.partition("|")[2].rpartition("|")
        tree = trees.setdefault(slot, {})
        if name:
            tree[name] = flat[key]
    return trees


def arrays_file(arrays: Mapping[str, Tensor]) -> bytes:
    """Arrays for others to load with safetensors; the same bytes for the same arrays."""
    return safetensors.torch.save({name: array.contiguous() for name, array in arrays.items()})


def model_file(model: Tree, metadata: Mapping[str, str]) -> bytes:
    """A model for others to load with safetensors; the same bytes for the same model.

    safetensors writes metadata in an order of chance. Its header is JSON after eight bytes of length, and what follows
    is addressed from the header's end.
    """
    data = safetensors.torch.save({k: v.clone().contiguous() for k, v in model.items()}, dict(metadata))
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]
