"""The checks of ``gpu-check``, on an accelerator or, for a trial, on the CPU."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import torch

from fedexp.bench.gpu_check import Check, Finding, measured
from fedexp.bench.workload import WORKLOADS, Workload
from fedexp.build import build
from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.loops import Accelerator, FabricLoop, PrecisionName, TrainerLoop, available, first_device
from fedexp.client.module import ClientModule
from fedexp.client.optim import Sgd
from fedexp.client.precision import FULL, problems
from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.config.make import make
from fedexp.core.algorithm import Components
from fedexp.core.seeding import torch_rng
from fedexp.core.views import Step, client_round, server_round, step
from fedexp.display import SilentDisplay
from fedexp.engine import Engine
from fedexp.errors import ConfigError
from fedexp.execute.processes import ProcessExecutor
from fedexp.runs.directory import RunDir
from fedexp.system import scratch
from fedexp.terminal.numbers import human_bytes
from fedexp.testing import play
from fedexp.testing.pretend_device import DEVICE, PretendDevice

TOLERANCE = 1e-3  # of weights after two rounds: kernels of a device sum in another order
HALF_TOLERANCE = 0.1  # the same for precisions of 16 bits
GROWTH = 1_000_000  # bytes that a device's memory may grow by from one round to a later one
ROUNDS = 3  # of a workload that are timed


@dataclass(frozen=True)
class Place:
    """Where and what is checked."""

    accelerator: Accelerator
    device: torch.device
    algos: Sequence[str]
    workloads: Sequence[str]

    @classmethod
    def of(cls, accelerator: Accelerator, algos: Sequence[str], workloads: Sequence[str]) -> Place:
        """The device of this machine that is asked for.

        Raises:
            ConfigError: If it is not there.
        """
        if not available(accelerator):
            raise ConfigError(f"--device {accelerator} is not on this machine. Use --device cpu for a trial.")
        return cls(accelerator, first_device(accelerator), algos, workloads)

    @property
    def is_trial(self) -> bool:
        """Whether there is no accelerator, or it is not asked for."""
        return self.device.type == "cpu"

    @property
    def title(self) -> str:
        """Device and versions."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        trial = "; a trial without an accelerator" if self.is_trial else ""
        return f"{name}, torch {torch.__version__}, Python {platform.python_version()}{trial}"

    def played(self, components: Components, kind: Callable[..., Any] = FabricLoop, **options: Any) -> Engine:
        """A tiny run of two rounds on the device; without batch norm, which enlarges rounding in small batches."""
        loop = {k: options.pop(k) for k in ("precision", "compile") if k in options}
        made = partial(kind, accelerator=self.accelerator, **loop)
        return play(components, **{"rounds": 2, "loop": made, "device": self.device, **options})


@cache
def components_of(algo: str) -> Components:
    """A method as its yaml has it."""
    return {key: make(node) for key, node in composed([f"algo={algo}"])["algo"].items()}


def compared(what: str, one: Engine, other: Engine, tolerance: float = TOLERANCE) -> Finding:
    """Whether two runs have the same weights."""
    if one.digests() == other.digests():
        return Finding(what, "held", "equal bit for bit")
    apart = distance(one, other)
    return Finding(
        what, "held" if apart <= tolerance else "failed", f"differ by {apart:.1e}, allowed are {tolerance:g}"
    )


def distance(one: Engine, other: Engine) -> float:
    """The largest difference of any weight of the server."""
    pairs = ((v, other.progress.state.model[n]) for n, v in one.progress.state.model.items())
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs), default=0.0)


# ---------------------------------------------------------------- the checks
def loops_and_executors(place: Place) -> Iterator[Finding]:
    """Both loops and executors against ``loop=fabric executor=serial``."""
    components = components_of("map")
    base = place.played(components)
    yield compared("the same run again", base, place.played(components))
    yield compared("loop=trainer", base, place.played(components, TrainerLoop))
    yield compared("loop=batched", base, place.played(components, BatchedLoop))
    for kind in (FabricLoop, TrainerLoop):
        there = place.played(components, kind, executor=partial(ProcessExecutor, workers=2))
        there.executor.close()
        yield compared(f"executor=processes, {kind.__name__}", base, there)


def methods(place: Place) -> Iterator[Finding]:
    """Every method on the device against the CPU; no step may make the host wait."""
    apart: dict[str, float] = {}
    drawing: list[str] = []
    for algo in place.algos:
        here = play(components_of(algo), rounds=2, loop=partial(FabricLoop, accelerator="cpu"))
        try:
            with _draws() as draws, _without_waits(place) as loop:
                there = play(components_of(algo), rounds=2, **loop)
                play(components_of(algo), rounds=2, norm=True, **loop)  # runs; not to be compared
        except Exception as error:
            yield Finding(f"algo={algo}", "failed", (str(error).splitlines() or [type(error).__name__])[0])
            continue
        if any(device.type != "cpu" for device in draws):
            drawing.append(algo)
        else:
            apart[algo] = distance(here, there)
    for algo in (a for a, d in apart.items() if d > TOLERANCE):
        yield Finding(f"algo={algo}", "failed", f"differs from the CPU by {apart[algo]:.1e}, allowed are {TOLERANCE:g}")
    if near := {a: d for a, d in apart.items() if d <= TOLERANCE}:
        worst = max(near, key=lambda a: near[a])
        what = "methods on a pretended device" if place.is_trial else "methods on the device"
        yield Finding(f"{len(near)} {what}", "held", f"as on the CPU; furthest is {worst} with {near[worst]:.1e}")
    if drawing:
        said = (
            f"run without fault, and draw random numbers on the device, so that they have others: {', '.join(drawing)}"
        )
        yield Finding(f"{len(drawing)} methods", "held", said)
    if place.device.type == "cuda":
        yield Finding(
            "waits inside training steps", "held", "none of the methods above has any (torch's own debug mode)"
        )
    else:
        yield Finding(
            "waits inside training steps", "not checked", "only CUDA tells; on a pretended device there are none"
        )


def precisions(place: Place) -> Iterator[Finding]:
    """Both loops in each precision, and how far from 32 bits they are."""
    played = partial(place.played, components_of("map"))
    full = played()
    for name in (p for p in get_args(PrecisionName) if p != FULL):
        if wrong := list(problems(name, place.device, Sgd())):
            yield Finding(f"loop.precision={name}", "not checked", wrong[0])
            continue
        one = played(precision=name)
        yield compared(f"loop.precision={name}, loop=trainer", one, played(kind=TrainerLoop, precision=name))
        yield compared(f"loop.precision={name} against {FULL}", full, one, HALF_TOLERANCE)


def compiled(place: Place) -> Iterator[Finding]:
    """A compiled network; for a trial without the compiler's long work."""
    backend = "aot_eager" if place.is_trial else True
    started = time.perf_counter()
    there = place.played({}, compile=backend)
    seconds = time.perf_counter() - started
    yield compared(f"loop.compile={str(backend).lower()}", place.played({}), there)
    yield measured("a compiled run of two tiny rounds", {"seconds": f"{seconds:.1f}"})
    if place.is_trial:
        yield Finding("loop.compile=true", "not checked", "takes minutes on a CPU: pytest --slow -k compiler")


def memory(place: Place) -> Iterator[Finding]:
    """What a workload takes of the device, and that it does not grow."""
    if place.device.type != "cuda":
        yield Finding("memory of the device", "not checked", "only CUDA tells")
        return
    for name in place.workloads:
        torch.cuda.reset_peak_memory_stats(place.device)
        with _opened(WORKLOADS[name], place, "loop=fabric") as engine:
            held = []
            for rounds in (2, 4):
                engine.play(engine.progress.state.round + rounds)
                gc.collect()
                held.append(torch.cuda.memory_allocated(place.device))
        grown, peak = held[1] - held[0], torch.cuda.max_memory_allocated(place.device)
        said = f"at most {human_bytes(peak)}; {max(grown, 0):,} bytes more after 6 rounds than after 2"
        yield Finding(f"{name}, memory", "held" if grown <= GROWTH else "failed", said)


def speed(place: Place) -> Iterator[Finding]:
    """Seconds of a round."""
    variants: Mapping[str, tuple[str, ...]] = {
        "fabric": ("loop=fabric",), "trainer": ("loop=trainer",), "batched": ("loop=batched",),
        "fabric, bf16-mixed": ("loop=fabric", "loop.precision=bf16-mixed"),
    }  # fmt: skip
    for name in place.workloads:
        figures = {v: f"{_seconds(WORKLOADS[name], place, *overrides):.3f} s" for v, overrides in variants.items()}
        yield measured(f"{name}, a round of {WORKLOADS[name].steps} steps, executor=serial", figures)
    if place.is_trial:
        yield Finding("speed of an accelerator", "not checked", "there is none; the seconds above are those of the CPU")


CHECKS: Mapping[str, Check] = {
    "loops and executors": loops_and_executors,
    "methods": methods,
    "precisions": precisions,
    "compiled networks": compiled,
    "memory": memory,
    "speed": speed,
}


# ---------------------------------------------------------------- how they look
@contextmanager
def _without_waits(place: Place) -> Iterator[dict[str, Any]]:
    """Options of a run on the device in whose steps the host never waits; for a trial, on a pretended device."""
    if place.is_trial:
        with PretendDevice() as pretended:
            yield {"loop": pretended.loop(FabricLoop), "device": DEVICE}
        if waits := pretended.waits_in("step"):
            raise AssertionError(f"a training step waits: {waits[0]}")
        return
    step, once = ClientModule.training_step, Step.once

    def strict(module: ClientModule, batch: Any, index: int) -> None:
        with _sync_mode(place, "error"):
            step(module, batch, index)

    def lenient(self: Step, name: str, make: Callable[[], Any]) -> Any:
        with _sync_mode(place, "default"):
            return once(self, name, make)

    with mock.patch.object(ClientModule, "training_step", strict), mock.patch.object(Step, "once", lenient):
        yield {"loop": partial(FabricLoop, accelerator=place.accelerator), "device": place.device}


@contextmanager
def _sync_mode(place: Place, mode: str) -> Iterator[None]:
    if place.device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _draws() -> Iterator[set[torch.device]]:
    """The devices that methods draw random numbers on."""
    seen: set[torch.device] = set()

    def noted(*address: Any, device: torch.device | str = "cpu") -> torch.Generator:
        seen.add(torch.device(device))
        return torch_rng(*address, device=device)

    with ExitStack() as patches:
        for place in (step, client_round, server_round):
            patches.enter_context(mock.patch.object(place, "torch_rng", noted))
        yield seen


@contextmanager
def _opened(workload: Workload, place: Place, *overrides: str) -> Iterator[Engine]:
    """A run of a workload, ready to be played."""
    with scratch.folder() as folder:
        workload.deal(folder)
        given = [*workload.overrides(folder), "executor=serial", *overrides, f"loop.accelerator={place.accelerator}"]
        config = composed(given)
        with RunDir(Path(run_path(config))) as rundir:
            experiment = build(config)
            engine = experiment.engine(rundir, SilentDisplay())
            engine.open()
            engine.tracker.start(experiment.card(rundir), [])
            yield engine
            engine.executor.close()


def _seconds(workload: Workload, place: Place, *overrides: str) -> float:
    with _opened(workload, place, *overrides) as engine:
        engine.play(engine.progress.state.round + 1)
        started = time.perf_counter()
        engine.play(engine.progress.state.round + ROUNDS)
        return (time.perf_counter() - started) / ROUNDS
