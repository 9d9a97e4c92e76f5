"""Where clients' private slots live between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedexp.algorithm import Private
from fedexp.state import digest


class ClientStore:
    """Private slots by client id, in memory. Clients that never took part have none and cost nothing."""

    def __init__(self, private: Mapping[int, Private] | None = None) -> None:
        self._private: dict[int, Private] = dict(private or {})
        self._dirty: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._private))

    def get(self, client: int) -> Private:
        """A client's slots; empty if it never took part."""
        return self._private.get(client, {})

    def put(self, client: int, private: Private) -> None:
        """Keeps a client's slots."""
        if private:
            self._private[client] = private
            self._dirty.add(client)

    @property
    def dirty(self) -> list[int]:
        """The clients written since the last ``clean``."""
        return sorted(self._dirty)

    def clean(self) -> None:
        """Is told that everything is on disk."""
        self._dirty.clear()

    def copy(self) -> ClientStore:
        """A store with the same slots, in which others can be put without changing this one."""
        twin = ClientStore(self._private)
        twin._dirty = set(self._dirty)
        return twin

    def digest(self) -> str:
        """sha256 over the slots of all clients."""
        return digest({f"{c}/{slot}": tree for c in self for slot, tree in self._private[c].items()})
