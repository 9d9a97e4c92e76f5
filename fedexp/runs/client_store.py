"""Where clients' private slots live between rounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from operator import itemgetter

from fedexp.core.algorithm import Private
from fedexp.core.state import digest_in_order, nbytes
from fedexp.errors import CheckpointError, DamagedError
from fedexp.runs.pointer import TensorFile
from fedexp.runs.tensor_files import TensorFiles


class ClientStore:
    """Private slots by client id. Clients that never took part have none and cost nothing.

    What is put is staged: seen at once, but undone by ``rollback`` until the next ``commit``. Each value has a name of
    its own, made of client and version, and is under this name in memory, in a file of the folder, or in both. ``hold``
    is the most bytes in memory: what was not used for longest goes to its file. None: everything stays in memory, and
    files are written for a checkpoint only.
    """

    def __init__(
        self,
        folder: TensorFiles,
        *,
        hold: int | None = None,
        files: Mapping[int, TensorFile] | None = None,
        version: int = 0,
    ) -> None:
        self._folder, self._limit = folder, hold
        self.version = version
        self._kept = {client: entry.name for client, entry in (files or {}).items()}
        self._staged: dict[int, str] = {}
        self._files = {entry.name: entry for entry in (files or {}).values()}
        self._held: OrderedDict[str, Private] = OrderedDict()  # the one used last comes last
        self._bytes = 0
        self._pinned: Collection[str] = frozenset(self._files)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._kept, *self._staged}))

    def get(self, client: int) -> Private:
        """A client's slots; empty if it never took part."""
        name = self._name(client)
        if name is None:
            return {}
        if name in self._held:
            self._held.move_to_end(name)
            return self._held[name]
        private = self._read(name)
        self._hold(name, private)
        return private

    def put(self, client: int, private: Private) -> None:
        """Stages a client's slots."""
        if not private:
            return
        name = f"client-{client:06d}-{self.version + 1:06d}.safetensors"
        self._forget(name)  # of the same round
        self._staged[client] = name
        self._hold(name, private)

    def commit(self) -> None:
        """Keeps what is staged."""
        old = [self._kept[c] for c, name in self._staged.items() if self._kept.get(c, name) != name]
        self.version += bool(self._staged)
        self._kept |= self._staged
        self._staged = {}
        for name in old:
            self._forget(name)

    def rollback(self) -> None:
        """Forgets what is staged."""
        staged, self._staged = self._staged, {}
        for name in staged.values():
            self._forget(name)

    def digest(self) -> str:
        """sha256 over the slots of all clients, one client at a time."""
        return digest_in_order(
            (f"{client}/{slot}", tree)
            for client in sorted(self, key=lambda c: f"{c}/")  # as one sorts "10/slot" and "2/slot"
            for slot, tree in sorted(self._peek(client).items(), key=itemgetter(0))
        )

    # ------------------------------------------------------------ for checkpoints
    def load(self) -> None:
        """Makes sure that every file is whole: takes it into memory if everything is held there, else only checks it.

        Raises:
            DamagedError: Naming the first that is not.
        """
        for entry in self._files.values():
            if self._limit is None:
                self._hold(entry.name, self._folder.read(entry))
            else:
                self._folder.check(entry)

    def write(self) -> dict[int, TensorFile]:
        """Writes what has no file yet, and says which file each client is in."""
        for name in self._kept.values():
            self._write(name)
        return {client: self._files[name] for client, name in sorted(self._kept.items())}

    def pin(self, names: Collection[str]) -> None:
        """Is told which files a checkpoint needs, whatever happens to their clients."""
        self._pinned = names

    # ------------------------------------------------------------ values by name
    def _name(self, client: int) -> str | None:
        return self._staged.get(client) or self._kept.get(client)

    def _peek(self, client: int) -> Private:
        name = self._name(client)
        return {} if name is None else self._held[name] if name in self._held else self._read(name)

    def _read(self, name: str) -> Private:
        try:
            return self._folder.read(self._files[name])
        except DamagedError as error:
            raise CheckpointError(
                f"{error} The same command continues from the last checkpoint that is whole."
            ) from error

    def _hold(self, name: str, private: Private) -> None:
        self._held[name] = private
        self._bytes += _size(private)
        while self._limit is not None and self._bytes > self._limit:
            oldest = next(iter(self._held))
            self._write(oldest)  # first: a full disk loses nothing
            self._drop(oldest)

    def _write(self, name: str) -> None:
        if name not in self._files:
            self._files[name] = self._folder.write(name, self._held[name])

    def _drop(self, name: str) -> None:
        if name in self._held:
            self._bytes -= _size(self._held.pop(name))

    def _forget(self, name: str) -> None:
        self._drop(name)
        if self._files.pop(name, None) and name not in self._pinned:
            self._folder.remove(name)


def _size(private: Private) -> int:
    return sum(map(nbytes, private.values()))
