"""``python -m fedexp.bench W1 W2 W3``: rounds of fedexp as a ratio to the raw limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedexp.bench import report, usage
from fedexp.bench.contest import Contestant, interleave, opened
from fedexp.bench.peers import catalog
from fedexp.bench.workload import WORKLOADS, Workload
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.errors import FedexpError
from fedexp.system import scratch

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import nn

    from fedexp.bench.raw import Setting

Tell = Callable[[str], None]
EXECUTORS: Mapping[str, tuple[str, ...]] = {
    "serial": ("executor=serial",),
    "processes": ("executor=processes", f"executor.workers={usage.cores()}", "executor.threads=1"),
    "ray": ("executor=ray", f"executor.workers={usage.cores()}", "executor.threads=1"),
}
VARIANTS: Mapping[str, tuple[str, ...]] = {
    f"{loop}/{executor}": (f"loop={loop}", *overrides)
    for loop, (executor, overrides) in product(("trainer", "fabric", "batched"), EXECUTORS.items())
}


def usual() -> list[str]:
    """The variants that are measured unless others are asked for: without what needs Ray, or is for tiny networks."""
    have = choices_of("executor")
    others = [name for name in VARIANTS if name.endswith("/ray") or name.startswith("batched/")]
    return [name for name in VARIANTS if name.partition("/")[2] in have and name not in others]


def measure(
    names: Sequence[str], variants: Sequence[str], *, turns: int, warmup: int, console: Console,
    more: Sequence[str] = (), peers: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Times workloads one after the other and prints a table for each.

    Args:
        names: The workloads.
        variants: Loops and executors of fedexp.
        turns: So many count.
        warmup: So many before them do not.
        console: Where to print.
        more: Settings of the loops.
        peers: Other frameworks.
    """
    found: dict[str, Any] = {}
    for name in names:
        with scratch.folder() as folder, console.status(name) as status:
            chosen = {v: (*VARIANTS[v], *more) for v in variants}
            tell = _teller(name, status.update)
            contest = _contest(WORKLOADS[name], chosen, peers, folder, turns=turns, warmup=warmup, tell=tell)
        found[name] = {**WORKLOADS[name].facts, **contest}
        calibration = ", ".join(f"{k} {v:.3f} s" for k, v in contest["raw"].items())
        console.print(f"[dim]{name} runs on {found[name]['data']}; raw: {calibration}[/]", highlight=False)
        report.show(f"{name}: {WORKLOADS[name].title}", contest["lines"], console)
    return found


def _teller(name: str, update: Callable[[str], None]) -> Tell:
    return lambda text: update(f"{name}, {text}")


def _contest(
    workload: Workload, variants: Mapping[str, Sequence[str]], peers: Sequence[str], folder: Path, *, turns: int,
    warmup: int, tell: Tell,
) -> dict[str, Any]:  # fmt: skip
    from fedexp.bench import ours
    from fedexp.bench.raw import RawTask
    from fedexp.build import build
    from fedexp.client.loops import first_device

    tell("preparing the raw loop")
    workload.deal(folder)
    overrides = workload.overrides(folder)
    experiment = build(composed([*overrides, *next(iter(variants.values()), ())]))
    task = RawTask.of(experiment)
    task.save(folder)
    device = first_device(experiment.config["loop"]["accelerator"])
    others = [
        Contestant(v, ours.play, ([*overrides, *own, f"name={v.replace('/', '-')}"],)) for v, own in variants.items()
    ]
    guests = catalog.contestants(peers, folder, workload)
    with ExitStack() as stack:
        raw, calibration = limit(workload, folder, stack, tell, settings(task.net, device))
        opened([*others, *guests], stack, tell)
        times = interleave(raw, [*others, *guests], turns, warmup=warmup, row=workload.row, tell=tell)
    if any(lap.steps != workload.steps for lap in raw.laps):
        raise FedexpError(f"the raw loop took {raw.laps[0].steps} steps, but a round has {workload.steps}")
    catalog.check(raw, guests, workload)
    lines = report.lines(raw, [*others, *guests], times, {})
    return {"raw": calibration, "times": times, "lines": lines, "variants": variants}


def settings(net: nn.Module, device: torch.device) -> list[Setting]:
    """All ways to use the machine that are worth a trial."""
    from torch.nn import Conv2d

    from fedexp.bench.raw import Setting

    cores, layouts = usage.cores(), (False, True) if any(isinstance(m, Conv2d) for m in net.modules()) else (False,)
    shapes = dict.fromkeys([(1, cores), (cores, 1)] if device.type == "cpu" else [(1, cores)])
    return [Setting(p, t, layout, str(device)) for (p, t), layout in product(shapes, layouts)]


def limit(
    workload: Workload, folder: Path, stack: ExitStack, tell: Tell, settings: Sequence[Setting]
) -> tuple[Contestant, dict[str, float]]:
    """The best of some raw settings after a short trial of each, ready to play, and the trial's seconds."""
    from fedexp.bench import raw_player

    contestants = {str(s): Contestant("raw", raw_player.play, (folder, workload, s)) for s in settings}
    with ExitStack() as trying:
        ends = {name: trying.enter_context(ExitStack()) for name in contestants}
        for name, contestant in contestants.items():
            opened([contestant], ends[name], tell)
        names = list(contestants)
        for _ in range(2):
            for name in names * workload.trials:
                tell(f"trying raw {name}")
                contestants[name].lap(workload.row)
            trial = {name: min(lap.wall for lap in c.laps) for name, c in contestants.items()}
            names = sorted(names, key=lambda name: trial[name])[: max(len(names) // 2, 1)]
        stack.push(ends[names[0]].pop_all())
    contestants[names[0]].laps.clear()
    return contestants[names[0]], trial
