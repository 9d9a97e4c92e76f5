"""The ledger: bytes by message and direction, counted at the one place where messages pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

COLUMNS = ("round", "client", "direction", "name", "bytes")


@dataclass
class Ledger:
    """Totals of the rounds that are closed, and the rows of those that are not."""

    up: int = 0
    down: int = 0
    _rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, str]]) -> Ledger:
        """The totals of rows on file."""
        total = {"up": 0, "down": 0}
        for row in rows:
            total[row["direction"]] += int(row["bytes"])
        return cls(up=total["up"], down=total["down"])

    def count(self, round_: int, client: int, direction: Literal["up", "down"], sizes: Mapping[str, int]) -> None:
        """Counts the parts of a message of a round by their bytes (rounds count from 1)."""
        for name, size in sizes.items():
            self._rows.append(dict(zip(COLUMNS, (round_, client, direction, name, size), strict=True)))

    def close_round(self, round_: int) -> list[dict[str, Any]]:
        """Adds a round to the totals and gives its rows, by client, whoever answered first."""
        rows = sorted((r for r in self._rows if r["round"] == round_), key=lambda r: (r["client"], r["direction"]))
        self._rows = [r for r in self._rows if r["round"] != round_]
        self.up += sum(r["bytes"] for r in rows if r["direction"] == "up")
        self.down += sum(r["bytes"] for r in rows if r["direction"] == "down")
        return rows

    def drop(self) -> None:
        """Forgets rounds that failed."""
        self._rows = []
