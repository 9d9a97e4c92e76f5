"""What a report is made of. ``page.html`` has a macro for each kind of block, by the name of its class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A field of a table."""

    text: str
    order: float | str | None = None  # what rows are sorted by; the text, if nothing is said
    look: str = ""  # best, second, good, bad, quiet, code
    forms: tuple[str, ...] = ()  # other ways to write it, one for each of the table's ``forms`` after the first
    about: str = ""  # shown when the pointer rests on it


@dataclass(frozen=True)
class Heading:
    """The head of a column."""

    text: str
    numeric: bool = False  # right-aligned, and sorted from the largest first
    group: str = ""  # the heading above it, which neighbours share
    about: str = ""


@dataclass(frozen=True)
class Table:
    """Rows below headings, sorted by a click on one of these."""

    caption: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    forms: tuple[str, ...] = ()  # ways to write its numbers, to choose from
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Shared headings with the number of columns below each; empty if there are none."""
        found: list[tuple[str, int]] = []
        for heading in self.headings:
            if found and found[-1][0] == heading.group:
                found[-1] = heading.group, found[-1][1] + 1
            else:
                found.append((heading.group, 1))
        return found if any(name for name, _ in found) else []


@dataclass(frozen=True)
class Drawing:
    """A figure; its data are kept apart, since several may have the same."""

    id: str
    title: str
    caption: str
    description: str  # for those who cannot see it
    spec: dict[str, Any] = field(compare=False)


@dataclass(frozen=True)
class Gallery:
    """Figures side by side."""

    drawings: tuple[Drawing, ...]


@dataclass(frozen=True)
class Facts:
    """Names with what is to be said of each."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Paragraph:
    """A few sentences."""

    text: str


@dataclass(frozen=True)
class Listing:
    """Sentences one below the other."""

    lines: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True)
class Commands:
    """Lines to paste."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Folded:
    """Blocks that are shown on request."""

    title: str
    blocks: tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """Blocks below a smaller heading."""

    id: str
    title: str
    blocks: tuple[Any, ...]


@dataclass(frozen=True)
class Section:
    """A chapter of the report, with an entry in its contents."""

    id: str
    title: str
    blocks: tuple[Any, ...]

    @property
    def parts(self) -> list[Part]:
        """Those with headings of their own."""
        return [block for block in self.blocks if isinstance(block, Part)]


@dataclass(frozen=True)
class Report:
    """The whole."""

    title: str
    about: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


def words(lines: Sequence[str]) -> tuple[Listing, ...]:
    """A list of sentences, or nothing if there are none."""
    return (Listing(tuple(lines)),) if lines else ()


def drawings(blocks: Sequence[Any]) -> list[Drawing]:
    """All figures among blocks, also in those within others."""
    found: list[Drawing] = []
    for block in blocks:
        found += getattr(block, "drawings", ())
        found += drawings(getattr(block, "blocks", ()))
    return found
