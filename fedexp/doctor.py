"""``python -m fedexp.doctor``: whether this machine can run fedexp, and what to do if it cannot."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from fedexp import __version__
from fedexp.config.settings import Settings
from fedexp.data.catalog import CATALOG
from fedexp.data.list_command import add_root
from fedexp.errors import ConfigError
from fedexp.system import resources, versions
from fedexp.system.memory import available_memory
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console
from fedexp.terminal.numbers import human_bytes

LEAST_MEMORY = 10**9  # bytes: torch, Lightning and the default run
LEAST_DISK = 10**8


@dataclass(frozen=True)
class Finding:
    """What was looked at, what is the case, and what to do about it if it is a problem."""

    topic: str
    fact: str
    problem: str = ""


def main(argv: Sequence[str]) -> int:
    """Prints what was found; the exit code is 0 if fedexp can be used, else 1."""
    return perform(lambda: _report(argv))


def _report(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m fedexp.doctor",
        description="Looks at cores, devices, memory, disk, data sets and installed versions.\n"
        "Exits with 0 if fedexp can be used here, else with 1 and what to do.",
    )
    parser.add_argument("--out", metavar="FOLDER", type=Path, default=Path(Settings().out), help="root of the runs")
    add_root(parser)
    given = parser.read(argv)
    findings = list(examine(given.out, given.root))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")  # so that no part of a path is lost
    for finding in (f for f in findings if f.fact):
        table.add_row(finding.topic, finding.fact)
    console = open_console(highlight=False, markup=False)
    console.print(table)
    problems = [finding.problem for finding in findings if finding.problem]
    for problem in problems:
        console.print(f"problem: {problem}", style="bold red", soft_wrap=True)
    console.print(f"problems: {len(problems)}" if problems else "fedexp can be used here.", style="bold")
    return 1 if problems else 0


def examine(out: Path, root: Path) -> Iterator[Finding]:
    """Looks at everything that a run depends on."""
    yield Finding("fedexp", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    yield _cores()
    yield from _torch()
    yield _memory()
    yield _disk(out)
    yield from _data(root)
    yield from _versions()


def _cores() -> Finding:
    try:
        usable = resources.cores()
    except ConfigError as error:
        return Finding("cores", "?", str(error))
    said = f", as {resources.CORES} says" if resources.CORES in os.environ else ""
    return Finding("cores", f"{usable} of {os.cpu_count()} may be used (affinity, cgroup, SLURM){said}")


def _torch() -> Iterator[Finding]:
    """Threads and devices, as torch sees them."""
    try:
        import torch

        importlib.import_module("torchvision")
    except Exception as error:  # whatever a broken installation raises
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Finding(
            "torch", "cannot be used", f"torch and torchvision cannot be imported ({why}). Install them together anew."
        )
        return
    yield Finding("threads", f"{torch.get_num_threads()} in one process; executor.threads for clients")
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    kind = torch.accelerator.current_accelerator() if count else None
    yield Finding("devices", f"{count} of {kind.type}" if kind else "cpu alone")


def _memory() -> Finding:
    free = available_memory()
    problem = (
        f"{human_bytes(free)} of memory are free, and a small run needs {human_bytes(LEAST_MEMORY)}. "
        "End other programs, or raise the limit of the container."
    )
    return Finding("memory", f"{human_bytes(free)} free", problem if free < LEAST_MEMORY else "")


def _disk(out: Path) -> Finding:
    """Whether runs can be written."""
    there = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    problem = ""
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        problem = f"Nothing can be written to {there}. Let runs go elsewhere: out=FOLDER."
    elif free < LEAST_DISK:
        problem = f"{human_bytes(free)} are free in {there}. Make room, or let runs go elsewhere: out=FOLDER."
    return Finding("disk", f"{human_bytes(free)} free in {there}", problem)


def _data(root: Path) -> Iterator[Finding]:
    here = [name for name, entry in CATALOG.items() if entry.find(root) is not None]
    missing = [name for name in CATALOG if name not in here]
    yield Finding("data", ", ".join(here))
    if missing:
        yield Finding("", f"not in {root}: {', '.join(missing)} (python -m fedexp.data list)")


def _versions() -> Iterator[Finding]:
    groups = versions.needed()
    have = {r.name: versions.installed(r.name) for requirements in groups.values() for r in requirements}
    yield Finding("versions", ", ".join(f"{name} {version}" for name, version in have.items() if version))
    for extra, requirements in groups.items():
        if extra and any(have[r.name] is None for r in requirements):
            yield Finding("", f"without {extra}: pip install 'fedexp[{extra}]'")
    yield from (Finding("", "", problem) for problem in versions.problems())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
