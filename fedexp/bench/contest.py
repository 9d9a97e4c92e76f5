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

EXIT_SECONDS = 10.0  # how long a process may take to exit when it is told to
COUNT = "count"  # asks a contestant for the passes of a round, which is played slower
Player = Callable[..., None]  # takes a connection, then the arguments


@dataclass(frozen=True)
class Lap:
    """What a round of one contestant took; the mean, if it played several in a row."""

    wall: float
    cpu: float  # of the contestant's whole process tree
    others: float  # cores that somebody else kept busy meanwhile
    memory: float  # megabytes after it
    seconds: dict[str, float]  # by kind of work, as the contestant counts them
    accuracy: float | None = None
    steps: float | None = None


@dataclass
class Contestant:
    """A process that plays rounds on request and is idle otherwise. Open it with ``with``."""

    name: str
    player: Player
    arguments: tuple[Any, ...]
    laps: list[Lap] = field(default_factory=list)
    startup: float = 0.0  # seconds from the start of the process until it could play
    learned: dict[int, float] = field(default_factory=dict)  # accuracy by rounds played, warm-up and trials included
    _rounds: int = 0

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
            self._connection.send(0)
        self._process.join(EXIT_SECONDS)
        for end in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                end()
                self._process.join(EXIT_SECONDS)
        self._connection.close()

    def lap(self, rounds: int = 1) -> Lap:
        """Plays rounds and notes what one took."""
        pids = usage.family(self._pid)
        cpu, machine, started = usage.cpu_seconds(pids), usage.machine_cpu(), time.perf_counter()
        self._connection.send(rounds)
        answer = self._answer()
        elapsed, machine = time.perf_counter() - started, usage.machine_cpu() - machine
        pids = usage.family(self._pid)
        cpu = usage.cpu_seconds(pids) - cpu
        steps = answer.get("steps")
        lap = Lap(
            wall=answer["wall"] / rounds, cpu=cpu / rounds, others=max(machine - cpu, 0.0) / elapsed,
            memory=usage.memory(pids), seconds={k: v / rounds for k, v in answer["seconds"].items()},
            accuracy=answer.get("accuracy"), steps=None if steps is None else steps / rounds,
        )  # fmt: skip
        self.laps.append(lap)
        self._rounds += rounds
        if lap.accuracy is not None:
            self.learned[self._rounds] = lap.accuracy
        return lap

    def passes(self) -> Any:
        """The passes of a round more, as the contestant counts them."""
        self._connection.send(COUNT)
        return self._answer()["passes"]

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
            self._process.join(EXIT_SECONDS)
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
    base: Contestant, others: Sequence[Contestant], turns: int, *, warmup: int, row: int, tell: Callable[[str], None]
) -> list[tuple[str, float]]:
    """Plays in turns, the base before and after every other; returns who took how long for a round, in order.

    In each turn ``row`` rounds are played. The first ``warmup`` turns are forgotten. Contestants are open already.
    """
    for turn in range(warmup):
        for contestant in (base, *others):
            tell(f"warm-up {turn + 1}/{warmup}: {contestant.name}")
            contestant.lap(row)
            contestant.laps.pop()
    times = [(base.name, base.lap(row).wall)]
    for turn in range(turns):
        for contestant in others:
            tell(f"turn {turn + 1}/{turns}: {contestant.name}")
            times += [(c.name, c.lap(row).wall) for c in (contestant, base)]
    return times


def opened(contestants: Sequence[Contestant], stack: ExitStack, tell: Callable[[str], None]) -> None:
    """Starts contestants one after the other, so that none disturbs another's start."""
    for contestant in contestants:
        tell(f"starting {contestant.name}")
        stack.enter_context(contestant)
