"""``python -m fedexp.bench startup``: seconds from the command to its first round."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedexp.bench import imports
from fedexp.bench.contest import Contestant
from fedexp.bench.ratios import RatioSpread
from fedexp.bench.workload import WORKLOADS
from fedexp.errors import FedexpError
from fedexp.system import scratch

if TYPE_CHECKING:
    from rich.console import Console

POLL_SECONDS = 0.005  # between two looks at the run's directory
SHOWN_IMPORTS = 8  # packages, the dearest; the rest is one line


def measure(names: Sequence[str], *, turns: int, console: Console) -> dict[str, Any]:
    """Starts fedexp and the raw loop in turns, ``turns`` times each; prints a table, and what imports cost."""
    found: dict[str, Any] = {}
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("", "seconds to", "median", "quartiles"):
        table.add_column(heading, no_wrap=True)
    for name in names:
        with scratch.folder() as folder, console.status(name):
            seconds, packages = _seconds(name, folder, turns)
            found[name] = {**WORKLOADS[name].facts, "seconds": seconds, "imports": packages}
        for what, values in found[name]["seconds"].items():
            spread = RatioSpread.of(values)
            table.add_row(name, what, f"{spread.median:.2f}", f"{spread.lower:.2f}–{spread.upper:.2f}")
    console.print(table)
    for name in names:
        console.print(
            f"[dim]{name}, seconds of imports by package: {_said(found[name]['imports'])}[/]", highlight=False
        )
    return found


def _said(packages: dict[str, float]) -> str:
    """The dearest packages, and all others together."""
    shown = list(packages.items())[:SHOWN_IMPORTS]
    rest = sum(packages.values()) - sum(seconds for _, seconds in shown)
    return ", ".join(f"{package} {seconds:.2f}" for package, seconds in (*shown, ("all others", rest)))


def _seconds(name: str, folder: Path, turns: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds to each point of a start, by turn, and seconds of imports."""
    from fedexp.bench import raw, raw_player
    from fedexp.build import build
    from fedexp.config.compose import composed

    workload = WORKLOADS[name]
    workload.deal(folder)
    overrides = workload.overrides(folder)
    raw.RawTask.of(build(composed(overrides))).save(folder)
    setting = raw.Setting(1, 1)
    found: dict[str, list[float]] = {
        name: [] for name in ("end of round 1, raw", "begin of round 1", "end of round 1", "end of a run of one round")
    }
    for turn in range(turns + 1):
        with ExitStack() as stack:
            started = time.perf_counter()
            stack.enter_context(Contestant("raw", raw_player.play, (folder, workload, setting))).lap()
            by_hand = time.perf_counter() - started
        turned = [*overrides, "executor=serial", "rounds=1", f"name=turn{turn}"]
        times = launch(turned, folder / "runs" / f"turn{turn}")
        if turn:  # the first of all finds cold files
            for values, value in zip(found.values(), (by_hand, *times), strict=True):
                values.append(value)
    return found, imports.measure([*overrides, "executor=serial", "rounds=1", "name=imports"])


def launch(overrides: Sequence[str], folder: Path) -> tuple[float, float, float]:
    """Runs the command; returns when its first round began and was recorded, and its end, in seconds from its start."""
    started = time.perf_counter()
    first: float | None = None
    command = [sys.executable, "-m", "fedexp", *overrides]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:  # noqa: S603
        while process.poll() is None:
            if first is None and any(folder.glob("*/metrics.jsonl")):
                first = time.perf_counter() - started
            time.sleep(POLL_SECONDS)
        end = time.perf_counter() - started
        said = process.stdout.read() if process.stdout else ""
    metrics = next(folder.glob("*/metrics.jsonl"), None)
    if process.returncode or metrics is None:
        raise FedexpError(f"`{' '.join(command)}` failed in {Path.cwd()}:\n{said}")
    first = end if first is None else first
    record = json.loads(metrics.read_text().splitlines()[0])
    return first - record["seconds"]["elapsed"], first, end
