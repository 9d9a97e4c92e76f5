"""``python -m fedexp.bench algos``: what a method's round costs, as a ratio to FedAvg's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
OWN_WORK: Mapping[str, str] = {  # what a method cannot do without, beside FedAvg's forward and backward pass a step
    "map": "a teacher's forward pass in half of the steps; a private model kept",
    "scaffold": "c - c_k added at each step; c sent both ways, c_k kept; no momentum to update",
    "fedmr": "an n × n product and a margin to 10 prototypes at each step; one forward pass over all samples a round",
    "fedgela": "a layer before the frame, no classifier; features normalised at each step",
    "fedrema": "cohort × cohort comparison of classifiers on the server; no global test, as there is no global model",
}
SETTING = ("loop=fabric", "executor=serial")


def alike(workload: Workload) -> Workload:
    """The same with clients that all take part in every round: what a method remembers is in use after the first."""
    title = workload.title.replace(f"{workload.clients:,} clients", f"{workload.per_round} clients")
    title = title.replace(f"{workload.per_round} a round", "all in each round")
    return replace(workload, title=title, clients=workload.per_round)


def measure(
    names: Sequence[str], methods: Sequence[str], *, turns: int, warmup: int, console: Console
) -> dict[str, Any]:
    """Times methods on workloads and prints a table for each workload."""
    from fedexp.bench import ours

    found: dict[str, Any] = {}
    for name in names:
        workload = alike(WORKLOADS[name])
        with (
            scratch.folder() as folder,
            console.status(name) as status,
            ExitStack() as stack,
        ):
            workload.deal(folder)
            overrides = [*workload.overrides(folder), *SETTING]
            base, *others = (
                Contestant(m, ours.play, ([*overrides, f"algo={m}", f"name={m}"],)) for m in (BASE, *methods)
            )
            opened([base, *others], stack, status.update)
            times = interleave(base, others, turns, warmup=warmup, row=workload.row, tell=status.update)
        lines = report.lines(base, others, times, OWN_WORK)
        found[name] = {**workload.facts, "times": times, "lines": lines}
        console.print(f"[dim]{name} runs on {found[name]['data']}[/]", highlight=False)
        report.show(f"{name}: {workload.title}; {' '.join(SETTING)}", lines, console)
    return found
