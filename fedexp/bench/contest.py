"""Contestants that play their rounds in turns, each in a process of its own."""

from __future__ import annotations

import multiprocessing as mp
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from fedexp.bench import usage
from fedexp.errors import FedexpError

PATIENCE = 10.0  # seconds in which a process that was told to end has to end
Player = Callable[..., None]  # takes a connection, then the arguments


@dataclass(frozen=True)
class Lap:
    """One round of one contestant."""

    wall: float
    cpu: float  # of the contestant's whole process tree
    others: float  # cores that somebody else kept busy meanwhile
    memory: float  # megabytes after the round
    seconds: dict[str, float]  # by kind of work, as the contestant counts them
    accuracy: float | None = None
    steps: int | None = None


@dataclass
class Contestant:
    """A process that plays a round on request and is idle otherwise. Open it with ``with``."""

    name: str
    player: Player
    arguments: tuple[Any, ...]
    laps: list[Lap] = field(default_factory=list)
    startup: float = 0.0  # seconds from the start of the process until it could play

    def __enter__(self) -> Self:
        started = time.perf_counter()
        self._connection, theirs = mp.get_context("spawn").Pipe()
        self._process = mp.get_context("spawn").Process(
            target=_enter, args=(self.player, theirs, self.arguments), name=self.name
        )
        self._process.start()
        theirs.close()
        self._answer()
        self.startup = time.perf_counter() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # it has ended already
            self._connection.send(False)  # noqa: FBT003 - "no more rounds"
        self._process.join(PATIENCE)
        for end in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                end()
                self._process.join(PATIENCE)
        self._connection.close()

    def lap(self) -> Lap:
        """Plays one round and notes what it took."""
        pids = usage.family(self._pid)
        cpu, machine, started = usage.cpu_seconds(pids), usage.machine_cpu(), time.perf_counter()
        self._connection.send(True)  # noqa: FBT003 - "one more round"
        answer = self._answer()
        elapsed, machine = time.perf_counter() - started, usage.machine_cpu() - machine
        pids = usage.family(self._pid)
        cpu = usage.cpu_seconds(pids) - cpu
        lap = Lap(cpu=cpu, others=max(machine - cpu, 0.0) / elapsed, memory=usage.memory(pids), **answer)
        self.laps.append(lap)
        return lap

    @property
    def _pid(self) -> int:
        pid = self._process.pid
        if pid is None:
            raise RuntimeError(f"{self.name} was not started")
        return pid

    def _answer(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._connection.recv()
        except (EOFError, OSError) as cause:
            self._process.join(PATIENCE)
            raise FedexpError(f"{self.name}: its process ended with code {self._process.exitcode}.") from cause
        if "error" in answer:
            raise FedexpError(f"{self.name}: {answer['error']}")
        return answer


def _enter(player: Player, connection: Connection, arguments: tuple[Any, ...]) -> None:
    try:
        player(connection, *arguments)
    except (KeyboardInterrupt, EOFError):  # the other end has gone
        return
    except FedexpError as error:
        connection.send({"error": f"{type(error).__name__}: {error}"})
    except Exception:
        connection.send({"error": traceback.format_exc()})


def interleave(
    base: Contestant, others: Sequence[Contestant], rounds: int, *, warmup: int, tell: Callable[[str], None]
) -> list[tuple[str, float]]:
    """Plays rounds in turns, the base before and after every other; returns who took how long, in order.

    The first ``warmup`` turns are played and forgotten. Contestants are open already.
    """
    for turn in range(warmup):
        for contestant in (base, *others):
            tell(f"warm-up {turn + 1}/{warmup}: {contestant.name}")
            contestant.lap()
            contestant.laps.clear()
    times = [(base.name, base.lap().wall)]
    for turn in range(rounds):
        for contestant in others:
            tell(f"round {turn + 1}/{rounds}: {contestant.name}")
            times += [(c.name, c.lap().wall) for c in (contestant, base)]
    return times


def opened(contestants: Sequence[Contestant], stack: ExitStack, tell: Callable[[str], None]) -> None:
    """Starts contestants one after the other, so that none disturbs another's start."""
    for contestant in contestants:
        tell(f"starting {contestant.name}")
        stack.enter_context(contestant)
