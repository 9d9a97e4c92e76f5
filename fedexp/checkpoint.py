"""Checkpoints: tensors in files of their own, and one small pointer that is replaced when all of them are written."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedexp.errors import CheckpointError, DamagedError
from fedexp.rundir import Mark, Marks, write_atomically, writing
from fedexp.shelf import Entry, Shelf, model_file
from fedexp.state import ServerState, Tree
from fedexp.store import ClientStore

VERSION = 4
LATEST, PREVIOUS = "latest.json", "previous.json"
LOG = logging.getLogger(__name__)


@dataclass
class Saved:
    """What a run needs to go on as if it had never stopped."""

    state: ServerState
    store: ClientStore
    best: Tree = field(default_factory=dict)  # the best server model so far, if the protocol asks for it
    seconds: dict[str, float] = field(default_factory=dict)
    written: Marks = field(default_factory=dict)  # how far the run's growing files are


@dataclass(frozen=True)
class Pointer:
    """What a checkpoint consists of. On file it carries its own checksum, so that a wrong digit is noticed."""

    round: int
    server: Entry
    clients: dict[int, Entry]
    commits: int  # the store's version
    seconds: dict[str, float]
    written: Marks

    @property
    def names(self) -> set[str]:
        """The files it needs."""
        return {self.server.name, *(entry.name for entry in self.clients.values())}

    def text(self, plan: str) -> bytes:
        """The pointer as it is written."""
        content = {
            "version": VERSION, "plan": plan, "round": self.round, "server": self.server, "commits": self.commits,
            "seconds": self.seconds, "written": self.written,
            "clients": {str(c): entry for c, entry in self.clients.items()},
        }  # fmt: skip
        return (json.dumps({**content, "sha256": _checksum(content)}) + "\n").encode()

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Pointer:
        """The pointer that was written."""
        clients = {int(c): Entry(*entry) for c, entry in content["clients"].items()}
        written = {name: Mark(*mark) for name, mark in content["written"].items()}
        return cls(
            content["round"], Entry(*content["server"]), clients, content["commits"], content["seconds"], written
        )


class Checkpoint:
    """The last two checkpoints of one run, in a folder of their own; the older one is there in case of damage.

    Args:
        folder: Where they are.
        plan: What they belong to.
        hold: The most bytes of clients' slots in memory; None for all.
    """

    def __init__(self, folder: Path, plan: str, *, hold: int | None = None) -> None:
        self._folder, self._plan, self._hold = folder, plan, hold
        self._shelf = Shelf(folder)
        self._last: Pointer | None = None  # the last one that was whole

    def new_store(self) -> ClientStore:
        """A store for a run that begins."""
        return ClientStore(self._shelf, hold=self._hold)

    def save(self, saved: Saved) -> None:
        """Writes the server and the clients that changed; the pointer is replaced last.

        Raises:
            DiskError: If a file cannot be written; the last checkpoint stays as it is.
        """
        last, state = self._last, saved.state
        saved.store.commit()
        if last is not None and last.round == state.round:
            return
        clients = saved.store.write()
        server = self._shelf.write(f"server-{state.round:06d}.safetensors", _flatten_server(saved))
        self._shelf.sync()
        new = Pointer(state.round, server, clients, saved.store.version, dict(saved.seconds), saved.written)
        if last is not None:
            self._point(PREVIOUS, last)
        self._point(LATEST, new)
        self._last = new  # only now: a save that failed has changed nothing
        self._keep(saved.store, new.names | (last.names if last else set()))

    def load(self, cut: Callable[[Marks], None] = lambda _: None) -> Saved | None:
        """The last checkpoint that is whole; None if there is none at all. Says so if it is not the last one.

        Args:
            cut: Takes the run's growing files back to where they were, or says that they are damaged.

        Raises:
            CheckpointError: If both are damaged, or were written under another plan.
        """
        if not any((self._folder / name).exists() for name in (LATEST, PREVIOUS)):
            return None
        damage: list[str] = []
        for name in (LATEST, PREVIOUS):
            try:
                pointer = self._read(name)
                saved = self._take_up(pointer)
                cut(pointer.written)
            except DamagedError as error:
                damage.append(str(error))
                continue
            self._last = pointer
            if damage:
                LOG.warning("%s The run continues from the checkpoint before, after round %d.", *damage, pointer.round)
            else:
                self._keep(saved.store, pointer.names | self._older())
            return saved
        raise CheckpointError(f"{' '.join(dict.fromkeys(damage))} {_REMEDY}")

    def clear(self) -> None:
        """Removes the checkpoints, their pointers first."""
        self._last = None
        if self._folder.exists():
            for name in (PREVIOUS, LATEST):
                (self._folder / name).unlink(missing_ok=True)
            self._shelf.sweep(())
            self._folder.rmdir()

    def _point(self, name: str, pointer: Pointer) -> None:
        with writing(self._folder / name):
            write_atomically(self._folder / name, pointer.text(self._plan))

    def _read(self, name: str) -> Pointer:
        path = self._folder / name
        try:
            content = json.loads(path.read_bytes())
            checksum = content.pop("sha256", None)
            if checksum not in (None, _checksum(content)):
                raise DamagedError(f"{path} is damaged: its sha256 is not {checksum}.")
            self._demand_same_plan(path, content["version"], content["plan"])
            pointer = Pointer.parse(content)
        except OSError as cause:
            raise DamagedError(f"{path} is missing or cannot be read ({cause.strerror}).") from cause
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise DamagedError(f"{path} is not readable ({cause}).") from cause
        if checksum is None:
            raise DamagedError(f"{path} is damaged: it has no sha256.")
        return pointer

    def _demand_same_plan(self, path: Path, version: int, plan: str) -> None:
        then, now = plan.partition("-")[::2], self._plan.partition("-")[::2]
        if version == VERSION and then[0] == now[0] and then[1] != now[1]:
            raise CheckpointError(
                f"{path} was written with other data (digest {then[1]}; this run has read data with digest {now[1]}). "
                f"Bring back the files that the run began with (data.root). {_REMEDY}"
            )
        if (version, plan) != (VERSION, self._plan):
            raise CheckpointError(
                f"{path} was written by another version or plan (version {version}, plan {plan}; "
                f"this run has version {VERSION}, plan {self._plan}). {_REMEDY}"
            )

    def _take_up(self, pointer: Pointer) -> Saved:
        state, best = _unflatten_server(self._shelf.read(pointer.server), pointer.round)
        store = ClientStore(self._shelf, hold=self._hold, files=pointer.clients, version=pointer.commits)
        store.load()
        return Saved(state, store, best, pointer.seconds, pointer.written)

    def _older(self) -> set[str]:
        """The files of the checkpoint before the last, if there is one."""
        if not (self._folder / PREVIOUS).exists():
            return set()
        try:
            return self._read(PREVIOUS).names
        except CheckpointError as error:
            LOG.warning("%s It is not needed, unless the last checkpoint is damaged too.", error)
            return set()

    def _keep(self, store: ClientStore, names: set[str]) -> None:
        store.pin(names)
        self._shelf.sweep({LATEST, PREVIOUS, *names})


_REMEDY = "Run again with force=true to start from the beginning, or delete the run's checkpoint folder."


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


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
    with writing(path):
        write_atomically(path, model_file(model, {k: str(v) for k, v in metadata.items()}))
