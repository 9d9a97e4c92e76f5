"""``python -m fedexp.bench algos``: what a method's round costs, as a ratio to FedAvg's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedexp.bench import report
from fedexp.bench.contest import Contestant, interleave, opened
from fedexp.bench.workload import WORKLOADS, Workload
from fedexp.system import scratch

if TYPE_CHECKING:
    from rich.console import Console

BASE = "fedavg"
OWN_WORK: Mapping[str, str] = {  # what a method cannot do without, beside passes through the network
    "fd": "mean logits of each class over all samples a round; a distance to them at each step",
    "feddc": "a drift and c - c_k added at each step; both kept",
    "feddf": "the optimizer's steps at the server",
    "feddistill": "mean logits of each class over all samples a round; a distance to them at each step",
    "feddyn": "a drift added at each step, and kept",
    "fedgela": "a layer before the frame, no classifier; features normalised at each step",
    "fedgen": "the generator's steps through every client's classifier, at the server; generated features at each step",
    "fedmmd": "five n × n kernels at each step",
    "fedmr": "an n × n product and a margin to 10 prototypes at each step",
    "fedproc": "a similarity to 10 prototypes at each step",
    "fedprox": "a distance over all weights at each step",
    "fedrema": "cohort × cohort comparison of classifiers on the server; no global test, as there is no global model",
    "fedrod": "a second head at each step",
    "flda": "a second network trained at each step, through which the one backward pass goes too",
    "map": "a private model kept",
    "moon": "a projection head, and cosines at each step; the previous model kept",
    "scaffold": "c - c_k added at each step; c sent both ways, c_k kept; no momentum to update",
}
AT_ONCE = 6  # contestants beside FedAvg
SETTING = ("loop=fabric", "executor=serial")


def alike(workload: Workload) -> Workload:
    """The same with clients that all take part in every round: what a method remembers is in use after the first."""
    title = workload.title.replace(f"{workload.clients:,} clients", f"{workload.per_round} clients")
    title = title.replace(f"{workload.per_round} a round", "all in each round")
    return replace(workload, title=title, clients=workload.per_round)


def measure(
    names: Sequence[str], methods: Sequence[str], *, turns: int, warmup: int, console: Console,
    more: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Times methods on workloads and prints a table for each workload. ``more`` are settings of the loop."""
    from fedexp.bench import ours

    found: dict[str, Any] = {}
    for name in names:
        workload = alike(WORKLOADS[name])
        with scratch.folder() as folder, console.status(name) as status:
            workload.deal(folder)
            overrides = [*workload.overrides(folder), *SETTING, *more]
            base, *others = (
                Contestant(m, ours.play, ([*overrides, f"algo={m}", f"name={m}"],)) for m in (BASE, *methods)
            )
            times: list[tuple[str, float]] = []
            work: dict[str, int] = {}
            with base:
                for some in batched(others, AT_ONCE):
                    with ExitStack() as stack:
                        opened(some, stack, status.update)
                        times += interleave(base, some, turns, warmup=warmup, row=workload.row, tell=status.update)
                        work |= {c.name: c.passes().work for c in (base, *some)}
        lines = [
            replace(line, passes=work[line.name] / work[BASE]) for line in report.lines(base, others, times, OWN_WORK)
        ]
        found[name] = {**workload.facts, "times": times, "lines": lines}
        console.print(f"[dim]{name} runs on {found[name]['data']}[/]", highlight=False)
        report.show(f"{name}: {workload.title}; {' '.join(SETTING)}", lines, console)
    return found


def batched(others: Sequence[Contestant], size: int) -> Iterator[Sequence[Contestant]]:
    """So many at a time, since each is a process that waits with its data in memory."""
    yield from (others[start : start + size] for start in range(0, len(others), size))
