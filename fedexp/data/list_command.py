"""``python -m fedexp.data list``: which data sets there are, and where. Free of torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from fedexp.data.catalog import CATALOG
from fedexp.data.entry import CatalogEntry
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console

ROOT, CACHE = "~/.cache/fedexp/data", "~/.cache/fedexp/tensors"  # as in conf/data
WIDTH_WITHOUT_TERMINAL = 80  # columns


def main(argv: Sequence[str]) -> int:
    """Prints the list; returns the exit code."""
    return perform(lambda: _list(argv))


def _list(argv: Sequence[str]) -> None:
    parser = Parser(
        prog="python -m fedexp.data list",
        usage="%(prog)s [root=FOLDER]",
        description="Says of every data set whether it is here, what it is and how to get it.",
    )
    add_root(parser)
    root = parser.read(argv).root
    console = open_console(highlight=False, markup=False, width_without_terminal=WIDTH_WITHOUT_TERMINAL)
    for part in (_table(root), _places(root)):
        console.print(part)
        console.print()
    cache = Path(os.environ.get("FEDEXP_CACHE", CACHE)).expanduser()
    held = sum(path.stat().st_size for path in cache.glob("*/*.npy"))
    console.print(f"root   {root}  (FEDEXP_DATA, or root=FOLDER here and data.root=FOLDER in a run)", soft_wrap=True)
    console.print(f"cache  {cache}: {megabytes(held)} of converted data sets, which can be deleted", soft_wrap=True)


def add_root(parser: Parser) -> None:
    """Adds the option that says where data sets are looked for."""
    parser.add_argument(
        "--root", metavar="FOLDER", type=data_root, default="", help="where to look (default: FEDEXP_DATA, as runs do)"
    )


def data_root(given: str = "") -> Path:
    """Where data sets are looked for: where the user says, or where runs do."""
    return Path(given or os.environ.get("FEDEXP_DATA") or ROOT).expanduser()


def megabytes(n_bytes: int) -> str:
    """A size in megabytes."""
    return f"{n_bytes / 1e6:,.0f} MB"


def _table(root: Path) -> Table:
    table = Table("data=", "here", "classes", "train", "test", "size", "licence", box=None, pad_edge=False)
    for index in (2, 3, 4, 5):
        table.columns[index].justify = "right"
    for name, entry in CATALOG.items():
        train, test = (f"{n:,}" if n else "?" for n in entry.samples)
        here = "yes" if entry.find(root) is not None else "no"
        size = megabytes(1_000_000 * entry.size) if entry.size else ""
        table.add_row(name, here, str(entry.classes), train, test, size, entry.licence)
    return table


def _places(root: Path) -> Table:
    table = Table(
        "", f"what it is, where below {root} it is or was looked for, how to get it", box=None, pad_edge=False
    )
    for name, entry in CATALOG.items():
        table.add_row(name, "\n".join([entry.title, *_where(name, entry, root)]), end_section=True)
    return table


def _where(name: str, entry: CatalogEntry, root: Path) -> list[str]:
    if not entry.places:
        return [] if entry.how == entry.licence else [entry.how]
    found = entry.find(root)
    if found is not None:
        parents = dict.fromkeys(path if path.is_dir() else path.parent for path in found)
        held = sum(path.stat().st_size for path in found if path.is_file())
        shown = (
            f"{next(iter(parents))} and {len(parents) - 1} more folders"
            if len(parents) > 2
            else ", ".join(map(str, parents))
        )
        return [f"in {shown}" + (f" ({megabytes(held)})" if held else "")]
    looked = [f"not there: {place}" for place in entry.alternatives()]
    ways = [f"→ python -m fedexp.data fetch {name}"] if entry.downloads or entry.package else []
    return [*looked, *ways, *([f"→ {entry.how}"] if entry.how else [])]
