"""``python -m fedexp.bench gpu-check``: what could not be tried where fedexp was written, tried on your accelerator.

With ``--device cpu`` it is a trial of the script itself: methods then run on a pretended device.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedexp.bench.workload import WORKLOADS
from fedexp.config.hydra_loader import choices_of
from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fedexp.bench.gpu_checks import Place

State = Literal["held", "failed", "measured", "not checked"]
COLOURS = {"held": "green", "failed": "red", "measured": "cyan", "not checked": "yellow"}
DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class Finding:
    """What was looked at, and what was found."""

    what: str
    state: State
    found: str


Check = Callable[["Place"], Iterator[Finding]]


def main(argv: Sequence[str], console: Console) -> int:
    """Runs all checks and prints what held; 1 if something did not."""
    asked = _parser().parse_args(argv)
    for option, given, known in (
        ("--workloads", asked.workloads, list(WORKLOADS)),
        ("--algos", asked.algos, choices_of("algo")),
    ):
        if unknown := [name for name in given if name not in known]:
            raise ConfigError(f"{option} {unknown[0]}: this is not known. {nearest(unknown[0], known)}")
    from fedexp.bench import gpu_checks

    place = gpu_checks.Place.of(asked.device, asked.algos or choices_of("algo"), asked.workloads)
    console.print(f"[bold]{place.title}[/]", highlight=False)
    found: list[Finding] = []
    for title, check in gpu_checks.CHECKS.items():
        started = time.perf_counter()
        with console.status(title):
            new = list(_guarded(title, check, place))
        console.print(f"\n[bold]{title}[/] [dim]({time.perf_counter() - started:.0f} s)[/]", highlight=False)
        for each in new:
            console.print(f"  [{COLOURS[each.state]}]{each.state:11}[/] {each.what}: {each.found}", highlight=False)
        found += new
    return _conclude(found, place, asked.json, console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fedexp.bench gpu-check", description=__doc__)
    parser.add_argument("--device", choices=DEVICES, default="auto", help="what to check (default: what is there)")
    parser.add_argument("--algos", nargs="*", default=[], help="methods (default: all)")
    parser.add_argument("--workloads", nargs="*", default=["W1", "W2", "W3"], help="to be timed (default: W1 W2 W3)")
    parser.add_argument("--json", type=Path, help="write all findings to this file")
    return parser


def _guarded(title: str, check: Check, place: Place) -> Iterator[Finding]:
    """A check that breaks has failed, and the others go on."""
    try:
        yield from check(place)
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        yield Finding(title, "failed", f"{type(error).__name__}: {said}")


def _conclude(found: list[Finding], place: Place, path: Path | None, console: Console) -> int:
    counts = Counter(each.state for each in found)
    console.print(f"\n[bold]{', '.join(f'{n} {state}' for state, n in counts.items())}[/]", highlight=False)
    for each in found:
        if each.state in ("failed", "not checked"):
            console.print(f"  {each.state}: {each.what}: {each.found}", highlight=False)
    if path is not None:
        from fedexp.bench import record

        record.write_json(path, {"gpu-check": {"device": place.title, "findings": found}})
    return 1 if counts["failed"] else 0


def measured(what: str, figures: dict[str, Any]) -> Finding:
    """Figures without a verdict."""
    return Finding(what, "measured", ", ".join(f"{name} {value}" for name, value in figures.items()))
