"""Checkpoints: tensors in safetensors files, and one small pointer that is replaced when all of them are written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedexp.errors import CheckpointError
from fedexp.rundir import write_atomically, write_json
from fedexp.state import ServerState, Tree
from fedexp.store import ClientStore

VERSION = 2
POINTER = "latest.json"


@dataclass
class Saved:
    """What a run needs to go on as if it had never stopped."""

    state: ServerState
    store: ClientStore
    best: Tree = field(default_factory=dict)  # the best server model so far, if the protocol asks for it
    seconds: dict[str, float] = field(default_factory=dict)


class Checkpoint:
    """The checkpoint of one run, in its own folder."""

    def __init__(self, folder: Path, plan: str) -> None:
        self._folder, self._plan = folder, plan
        self._clients: dict[int, tuple[str, str]] = {}  # id -> (file, sha256) on disk now

    def save(self, saved: Saved) -> None:
        """Writes the server and the clients that changed; the pointer is replaced last."""
        self._folder.mkdir(parents=True, exist_ok=True)
        stamp = f"{saved.state.round:06d}"
        clients = dict(self._clients)
        for client in saved.store.dirty:
            name = f"client-{client:06d}-{stamp}.safetensors"
            clients[client] = (name, self._write(name, saved.store.get(client)))
        server = f"server-{stamp}.safetensors"
        meta = {
            "version": VERSION,
            "round": saved.state.round,
            "plan": self._plan,
            "server": [server, self._write(server, _flatten_server(saved))],
            "clients": {str(c): list(entry) for c, entry in clients.items()},
            "seconds": saved.seconds,
        }
        write_json(self._folder / POINTER, meta)
        self._clients = clients  # only now: a save that failed has changed nothing
        saved.store.clean()
        alive = {server, *(name for name, _ in clients.values())}
        for path in self._folder.glob("*.safetensors"):
            if path.name not in alive:
                path.unlink()

    def load(self) -> Saved | None:
        """The last checkpoint; None if there is none.

        Raises:
            CheckpointError: If a file is missing or damaged, or was written under another plan.
        """
        pointer = self._folder / POINTER
        if not pointer.exists():
            return None
        try:
            meta = json.loads(pointer.read_text())
            version, plan = meta["version"], meta["plan"]
            if version != VERSION or plan != self._plan:
                raise CheckpointError(
                    f"{pointer} was written by another version or plan (version {version}, plan {plan}; "
                    f"this run has version {VERSION}, plan {self._plan}). {_REMEDY}"
                )
            (server, sha256), round_, seconds = meta["server"], meta["round"], meta["seconds"]
            files = {int(c): (name, sha) for c, (name, sha) in meta["clients"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise CheckpointError(f"{pointer} is not readable ({cause}). {_REMEDY}") from cause
        state, best = _unflatten_server(self._read(server, sha256), round_)
        clients = {c: self._read(name, sha) for c, (name, sha) in files.items()}
        self._clients = files
        return Saved(state, ClientStore(clients), best, seconds)

    def clear(self) -> None:
        """Removes the checkpoint, its pointer first."""
        self._clients = {}
        if self._folder.exists():
            (self._folder / POINTER).unlink(missing_ok=True)
            for path in self._folder.iterdir():
                path.unlink()
            self._folder.rmdir()

    def _write(self, name: str, trees: Mapping[str, Tree]) -> str:
        data = safetensors.torch.save(_flatten(trees))
        write_atomically(self._folder / name, data)
        return hashlib.sha256(data).hexdigest()

    def _read(self, name: str, sha256: str) -> dict[str, Tree]:
        path = self._folder / name
        try:
            data = path.read_bytes()
        except OSError as cause:
            raise CheckpointError(f"{path} is missing ({cause.strerror}). {_REMEDY}") from cause
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CheckpointError(f"{path} is damaged: its sha256 is not {sha256}. {_REMEDY}")
        try:
            return _unflatten(safetensors.torch.load(data))
        except (SafetensorError, ValueError) as cause:
            raise CheckpointError(f"{path} is damaged ({cause}). {_REMEDY}") from cause


_REMEDY = "Run again with force=true to start from the beginning, or delete the run's checkpoint folder."


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


def _flatten_server(saved: Saved) -> dict[str, Tree]:
    state = saved.state
    return {
        "model": state.model,
        **({"best": saved.best} if saved.best else {}),
        **{f"slot/{name}": tree for name, tree in state.slots.items()},
        **{f"mail/{name}/{c}": tree for name, box in state.mailboxes.items() for c, tree in box.items()},
    }


def _unflatten_server(trees: Mapping[str, Tree], round_: int) -> tuple[ServerState, Tree]:
    slots = {n.removeprefix("slot/"): t for n, t in trees.items() if n.startswith("slot/")}
    mailboxes: dict[str, dict[int, Tree]] = {}
    for name, tree in trees.items():
        if name.startswith("mail/"):
            box, _, client = name.removeprefix("mail/").rpartition("/")
            mailboxes.setdefault(box, {})[int(client)] = tree
    return ServerState(round_, dict(trees["model"]), slots, mailboxes), dict(trees.get("best", {}))


def save_model(path: Path, model: Tree, metadata: dict[str, Any]) -> None:
    """Writes a final model for others to load with safetensors."""
    text = {k: str(v) for k, v in metadata.items()}
    safetensors.torch.save_file({k: v.clone().contiguous() for k, v in model.items()}, path, metadata=text)
