"""Does a run stay the same size when clients or rounds become many? ``python -m fedexp.bench scale --help``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedexp.bench import usage
from fedexp.bench.arguments import positive
from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.display import SilentDisplay
from fedexp.runs.storage_estimate import SLOT_MEMORY_BYTES
from fedexp.server.sampler import cohort_size
from fedexp.system import scratch
from fedexp.terminal.console import open_console
from fedexp.terminal.numbers import human_bytes

if TYPE_CHECKING:
    from fedexp.engine import Engine

CLIENTS = (100, 1_000, 10_000)
FRACTION = 0.01
MIN_FITS, MIN_ROUNDS = 600, 20  # of each federation
MARKS = (100, 500)  # fits after which memory is compared
LOOPS = ("fabric", "trainer")
POOL, TRAIN, TEST = 2_000, 40, 10  # samples there are; of them each client's own to train and to test on, at random
NETWORK = ("model=mlpnet", "model.hidden=[64,64]")  # 21,120 parameters on 16×16


@dataclass(frozen=True)
class Case:
    """A federation and how long it is watched. The samples are shared, so that the data set is always the same."""

    clients: int
    fraction: float
    rounds: int
    loop: str
    store: str

    def overrides(self, folder: Path) -> list[str]:
        """The settings of the run; its partition and its files are in ``folder``."""
        return [
            *("algo=map", "data=synthetic", f"data.samples={POOL // 10}", "data.test=10", *NETWORK),
            *("partition=file", f"partition.path={folder / 'partition.json'}", f"out={folder}"),
            *(f"cohort.clients={self.clients}", f"cohort.fraction={self.fraction}", f"rounds={self.rounds}"),
            *("local.epochs=5", "local.batch_size=10", f"every.evaluate={self.rounds}", "evaluate.all_clients=false"),
            *(f"loop={self.loop}", "executor=serial", f"store={self.store}", "keep=all"),  # all in one process
        ]

    def deal(self, folder: Path) -> None:
        """Writes the partition."""
        rng = np.random.default_rng(0)
        drawn = (rng.choice(POOL, TRAIN + TEST, replace=False) for _ in range(self.clients))
        clients = [{"train": np.sort(d[TEST:]).tolist(), "test": np.sort(d[:TEST]).tolist()} for d in drawn]
        (folder / "partition.json").write_text(json.dumps({"clients": clients}))


class Watch(SilentDisplay):
    """Counts clients, and notes the resident memory after some of them."""

    def __init__(self) -> None:
        self.fits = 0
        self.marks: dict[int, float] = {}

    def client(self, seconds: float, samples: int) -> None:  # noqa: ARG002
        """Is told that a client is done."""
        self.fits += 1
        if self.fits in MARKS:
            self.marks[self.fits] = resident()


def resident(field: str = "VmRSS") -> float:
    """Megabytes of this process that are in memory now or (``VmHWM``) were at most since ``look_anew``."""
    lines = (usage.PROC / "self" / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024 / 1e6


def look_anew() -> None:
    """Forgets the most that was in memory so far."""
    (usage.PROC / "self" / "clear_refs").write_text("5")


def settle(engine: Engine) -> None:
    """Gives every client the slots of one that has taken part: a first time is shorter, and would make many look fast.

    So all slots there can be are there from the start.
    """
    from fedexp.client.messages import Job
    from fedexp.execute.task import Train

    state = engine.progress.state
    task = Train(0, (Job(state.round, 0, {}, {}),))
    (answer,) = engine.executor.map([task], engine.algorithm.broadcast(state))
    slots = answer.results[0].private
    for client in range(engine.algorithm.facts.n_clients):
        engine.progress.store.put(client, slots)
    engine.progress.store.commit()


def observe(case: Case) -> dict[str, Any]:
    """Plays a case in this process, which should be a fresh one, and says what it took."""
    from fedexp.build import build
    from fedexp.runs.directory import RunDir

    with scratch.folder() as folder:
        case.deal(folder)
        config = composed(case.overrides(folder))
        begun = time.perf_counter()
        experiment = build(config)
        watch = Watch()
        with RunDir(run_path(config)) as rundir:
            engine = experiment.engine(rundir, watch)
            engine.open()
            settle(engine)
            setup, start = time.perf_counter() - begun, resident()
            look_anew()
            begun = time.perf_counter()
            engine.run(experiment.card(rundir))
            wall = time.perf_counter() - begun
            files = [p for p in (rundir.path / "checkpoint").iterdir() if p.is_file()]
            return {
                **asdict(case), "fits": watch.fits, "setup": setup, "marks": watch.marks,
                "start": start, "peak": resident("VmHWM"), "per_client": wall / watch.fits,
                "beside": (wall - sum(engine.progress.seconds.get(k, 0) for k in ("train", "evaluate"))) / watch.fits,
                "disk": sum(p.stat().st_size for p in files), "kept": len(list(engine.progress.store)),
                "slots": experiment.plan.content["bytes_kept_per_client"],
                "data": experiment.plan.content["footprint"]["data"],
            }  # fmt: skip


def main(argv: Sequence[str] = ()) -> int:
    """Measures, prints two tables, and returns 1 if a target was missed."""
    asked = _parser().parse_args(argv)
    usage.demand_linux()
    console = open_console(width_without_terminal=140)
    rounds = [max(asked.fits // cohort_size(clients, FRACTION), MIN_ROUNDS) for clients in asked.clients]
    cases = [Case(c, FRACTION, r, asked.loop, asked.store) for c, r in zip(asked.clients, rounds, strict=True)]
    turns = [[_fresh(case) for case in cases] for _ in range(asked.turns)]
    federations = [_middle(found) for found in zip(*turns, strict=True)]
    long = [_fresh(Case(20, 0.5, MARKS[-1] // 10, loop, asked.store)) for loop in LOOPS]
    _show(federations, long, console)
    if asked.json is not None:
        asked.json.write_text(json.dumps({"clients": federations, "fits": long}, indent=2) + "\n")
    flat = [r["peak"] for r in federations]
    steady = [r["marks"][MARKS[-1]] / r["marks"][MARKS[0]] for r in long]
    return int(max(flat) > 1.2 * min(flat) or max(steady) > 1.05)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fedexp.bench scale",
        description="Measures memory, time and disk of MAP with 1 % of more and more clients in a round, and memory "
        "over many rounds. Ends with 1 if memory is not flat: within 20 % over clients, 5 % from 100 to 500 fits.",
    )
    parser.add_argument("--clients", type=positive, nargs="+", default=list(CLIENTS))
    parser.add_argument("--fits", type=positive, default=MIN_FITS, help="clients to train in each case, or more")
    parser.add_argument("--turns", type=positive, default=3, help="measurements of each; the middle counts")
    parser.add_argument("--store", choices=("disk", "memory"), default="disk")
    parser.add_argument("--loop", choices=LOOPS, default="fabric")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser


def _fresh(case: Case) -> dict[str, Any]:
    """The case in a process of its own, so that nothing of another is in its memory."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, case))
    process.start()
    there.close()
    try:
        found: dict[str, Any] = here.recv()
    except EOFError:
        raise RuntimeError(f"the process that played {case} ended early; its error is above") from None
    finally:
        process.join()
    return found


def _middle(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The one whose time per client is the median: a machine's speed drifts."""
    return sorted(found, key=lambda r: r["per_client"])[len(found) // 2]


def _child(connection: Connection, case: Case) -> None:
    connection.send(observe(case))


def _show(federations: list[dict[str, Any]], long: list[dict[str, Any]], console: Console) -> None:
    first = federations[0]
    table = Table(
        "clients", "in a round", "rounds", "with slots", "setup", "MB at start", "MB at most", "per client",
        "of it beside training", "on disk",
        title=f"MAP, {first['loop']} loop, store={first['store']}: {human_bytes(first['slots'])} of slots per client, "
        f"{human_bytes(SLOT_MEMORY_BYTES)} of them in memory at most, data set {human_bytes(first['data'])}, shared",
    )  # fmt: skip
    for r in federations:
        table.add_row(
            f"{r['clients']:,}", str(r["fits"] // r["rounds"]), str(r["rounds"]), f"{r['kept']:,}",
            f"{r['setup']:.1f} s", f"{r['start']:.0f}", f"{r['peak']:.0f} ({r['peak'] / first['peak'] - 1:+.0%})",
            f"{1000 * r['per_client']:.1f} ms ({r['per_client'] / first['per_client'] - 1:+.0%})",
            f"{1000 * r['beside']:.1f} ms", human_bytes(r["disk"]),
        )  # fmt: skip
    console.print(table)
    table = Table("loop", *(f"MB after {m} fits" for m in MARKS), "growth", title="Memory over many fits, 20 clients")
    for r in long:
        low, high = (r["marks"][m] for m in MARKS)
        table.add_row(r["loop"], f"{low:.1f}", f"{high:.1f}", f"{high / low - 1:+.1%}")
    console.print(table)
