"""Checkpoints: tensors in files of their own, and one small pointer that is replaced when all of them are written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedexp.core.state import ServerState, Tree
from fedexp.errors import CheckpointError, DamagedError
from fedexp.runs.client_store import ClientStore
from fedexp.runs.directory import RunDir
from fedexp.runs.names import LATEST, MODEL, PREVIOUS
from fedexp.runs.pointer import REMEDY, Marks, Pointer
from fedexp.runs.tensor_files import TensorFiles, model_file
from fedexp.system.files import write_atomically, writing

LOG = logging.getLogger(__name__)


@dataclass
class RunProgress:
    """What a run needs to go on as if it had never stopped."""

    state: ServerState
    store: ClientStore
    best: Tree = field(default_factory=dict)  # the best server model so far, if the protocol asks for it
    seconds: dict[str, float] = field(default_factory=dict)
    written: Marks = field(default_factory=dict)  # how far the run's growing files are


class Checkpoint:
    """The last two checkpoints of one run, in a folder of their own; the older one is there in case of damage.

    Args:
        folder: Where they are.
        plan: What they belong to.
        hold: The most bytes of clients' slots in memory; None for all.
    """

    def __init__(self, folder: Path, plan: str, *, hold: int | None = None) -> None:
        self._folder, self._plan, self._hold = folder, plan, hold
        self._files = TensorFiles(folder)
        self._last: Pointer | None = None  # the last one that was whole

    def new_store(self) -> ClientStore:
        """A store for a run that begins."""
        return ClientStore(self._files, hold=self._hold)

    def save(self, saved: RunProgress) -> None:
        """Writes the server and the clients that changed; the pointer is replaced last.

        Raises:
            DiskError: If a file cannot be written; the last checkpoint stays as it is.
        """
        last, state = self._last, saved.state
        saved.store.commit()
        if last is not None and last.round == state.round:
            return
        clients = saved.store.write()
        server = self._files.write(f"server-{state.round:06d}.safetensors", _flatten_server(saved))
        self._files.sync()
        new = Pointer(state.round, server, clients, saved.store.version, dict(saved.seconds), saved.written)
        if last is not None:
            self._point(PREVIOUS, last)
        self._point(LATEST, new)
        self._last = new  # only now: a save that failed has changed nothing
        self._keep(saved.store, new.names | (last.names if last else set()))

    def load(self, cut: Callable[[Marks], None] = lambda _: None) -> RunProgress | None:
        """The last checkpoint that is whole; None if there is none at all. Says so if it is not the last one.

        Args:
            cut: Takes the run's growing files back to where they were, or says that they are damaged.

        Raises:
            CheckpointError: If both are damaged, or were written under another plan.
        """
        there = set(self._files.names())
        if not there & {LATEST, PREVIOUS}:
            if there:
                LOG.warning("%s has no pointer to a checkpoint. The run starts from the beginning.", self._folder)
            return None
        damage: list[str] = []
        for name in (LATEST, PREVIOUS):
            try:
                pointer = Pointer.read(self._folder / name, self._plan)
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
        raise CheckpointError(f"{' '.join(dict.fromkeys(damage))} {REMEDY}")

    def clear(self) -> None:
        """Removes the checkpoints, their pointers first, and their folder unless something else is in it."""
        self._last = None
        self._files.clear(first=(PREVIOUS, LATEST))

    def clear_older(self) -> None:
        """Removes the older checkpoint."""
        if self._last is not None:
            (self._folder / PREVIOUS).unlink(missing_ok=True)
            self._files.sweep({LATEST, *self._last.names})

    def _point(self, name: str, pointer: Pointer) -> None:
        with writing(self._folder / name):
            write_atomically(self._folder / name, pointer.text(self._plan))

    def _take_up(self, pointer: Pointer) -> RunProgress:
        state, best = _unflatten_server(self._files.read(pointer.server), pointer.round)
        store = ClientStore(self._files, hold=self._hold, files=pointer.clients, version=pointer.commits)
        store.load()
        return RunProgress(state, store, best, pointer.seconds, pointer.written)

    def _older(self) -> set[str]:
        """The files of the checkpoint before the last, if there is one."""
        if not (self._folder / PREVIOUS).exists():
            return set()
        try:
            return Pointer.read(self._folder / PREVIOUS, self._plan).names
        except CheckpointError as error:
            LOG.warning("%s It is not needed, unless the last checkpoint is damaged too.", error)
            return set()

    def _keep(self, store: ClientStore, names: set[str]) -> None:
        store.pin(names)
        self._files.sweep({LATEST, PREVIOUS, *names})


def _flatten_server(saved: RunProgress) -> dict[str, Tree]:
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


def save_model(rundir: RunDir, model: Tree, metadata: dict[str, Any]) -> None:
    """Writes a run's final model, for others to load with safetensors."""
    rundir.write_bytes(MODEL, model_file(model, {k: str(v) for k, v in metadata.items()}))
