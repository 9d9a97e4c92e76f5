"""How much memory and disk a run will take, what there is of both, and where clients' slots go because of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedexp.system.memory import available_memory
from fedexp.terminal.numbers import human_bytes

Kind = Literal["memory", "disk"]
SLOT_MEMORY_BYTES = 64 * 2**20  # of clients' slots, which a store on disk keeps in memory
MAX_MEMORY_SHARE = 0.25  # of the available memory; store=auto keeps slots on disk if they need more
VERSIONS_ON_DISK = 3  # of a file at once: of the last two checkpoints, and of the one being written


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a run carries, in bytes and numbers.

    Attributes:
        data: The data set, which is in memory already.
        server: The server's model and slots.
        kept: One client's private slots.
        mail: One client's entry in all mailboxes.
        up: One client's upload.
        up_kept: What of it the server keeps by client until the round ends; the rest is reduced as it comes.
        keepers: Clients that can have taken part, and thus keep slots, when the run ends.
        cohort: Clients in a round.
        between: Clients that can have changed from one checkpoint to the next.
    """

    data: int
    server: int
    kept: int
    mail: int
    up: int
    up_kept: int
    keepers: int
    cohort: int
    between: int


@dataclass(frozen=True)
class Capacity:
    """What there is: available memory, and free disk where runs are written."""

    memory: int
    disk: int
    out: Path

    @classmethod
    def of(cls, out: Path) -> Capacity:
        """What this machine has."""
        there = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
        return cls(available_memory(), shutil.disk_usage(there).free, out)


@dataclass(frozen=True)
class StorageEstimate:
    """The bytes of a run by what they are for; upper bounds for state, without torch itself and the training's own."""

    load: Demand
    store: Kind

    @classmethod
    def of(cls, load: Demand, store: Literal["memory", "disk", "auto"], room: Capacity) -> StorageEstimate:
        """The footprint with the chosen store; ``auto`` takes the disk if slots would fill much of the memory."""
        if store != "auto":
            return cls(load, store)
        fits = load.keepers * load.kept <= MAX_MEMORY_SHARE * room.memory
        return cls(load, "memory" if fits else "disk")

    @property
    def memory(self) -> dict[str, int]:
        """Bytes in memory."""
        load = self.load
        slots = load.kept * (load.keepers + load.cohort)  # a round's new slots are beside the old until it is whole
        return {
            "data": load.data,
            "server": 2 * (load.server + load.mail * load.keepers),  # before and after a round
            "clients": slots if self.store == "memory" else min(slots, SLOT_MEMORY_BYTES),
            "uploads": load.up + load.up_kept * load.cohort,
        }

    @property
    def disk(self) -> dict[str, int]:
        """Bytes on disk, while the run is under way."""
        load = self.load
        return {
            "server": VERSIONS_ON_DISK * (load.server + load.mail * load.keepers),
            "clients": load.kept * (load.keepers + (VERSIONS_ON_DISK - 1) * load.between),
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything for the record."""
        return {"store": self.store, "memory": self.memory, "disk": self.disk, **asdict(self.load)}

    def notes(self, room: Capacity, asked: str) -> Iterator[str]:
        """A sentence on each thing that the user should know before the run."""
        slots = f"{human_bytes(self.load.kept)} for each of {self.load.keepers:,} clients"
        if (asked, self.store) == ("auto", "disk"):
            yield (
                f"store: clients' slots ({slots}) are kept on disk, because they would fill more than "
                f"{MAX_MEMORY_SHARE:.0%} of the available memory ({human_bytes(room.memory)}). "
                "store=memory keeps them there."
            )
        rest = sum(self.memory.values()) - self.load.data
        if rest > room.memory:
            remedy = ", ".join(self._smaller())
            yield (
                f"memory: the run needs up to {human_bytes(rest)} beside its data set, of which clients' slots are "
                f"{human_bytes(self.memory['clients'])}, but {human_bytes(room.memory)} is available. Use {remedy}."
            )
        needed = sum(self.disk.values())
        if needed > room.disk:
            yield (
                f"disk: checkpoints need up to {human_bytes(needed)} in {room.out} ({slots}), but "
                f"{human_bytes(room.disk)} is free there. Use another out=, a smaller model=, or fewer clients "
                "(cohort.clients)."
            )

    def _smaller(self) -> Iterator[str]:
        fitting = replace(self, store="disk")
        if sum(fitting.memory.values()) < sum(self.memory.values()):
            yield "store=disk"
        yield from ("a smaller model=", "or fewer clients in a round (cohort.fraction)")
