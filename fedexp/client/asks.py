"""What a client's round asks for while it goes on: a phase to be fitted, a model to be tested.

A round is a generator that yields what it asks for and is sent the answer, so that it is written once, whoever answers:
``alone`` for one client after another, ``fedexp.client.batched.lockstep`` for many clients at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fedexp.client.messages import ClientResult, Job
from fedexp.client.session import ClientSession
from fedexp.core.component import Phase
from fedexp.core.state import Tree
from fedexp.data.source import Samples

T = TypeVar("T")


@dataclass(frozen=True)
class Fitted:
    """A phase that a client has gone through."""

    phase: Phase
    end: Tree  # the trained weights
    steps: int
    terms: Callable[[], dict[str, float]]  # mean loss terms; a device is waited for when they are asked for
    remembered: dict[str, Tree]  # new values of private slots, "component.slot"
    optimizer: Any  # to go on with; of whoever fitted the phase


@dataclass(frozen=True)
class Fit:
    """Asks for a phase, from given weights and after another one, if any; the answer is a ``Fitted``."""

    job: Job
    phase: Phase
    session: ClientSession
    start: Tree
    after: Fitted | None = None


@dataclass(frozen=True)
class Test:
    """Asks for a test of weights on samples; the answer is a ``Score``."""

    weights: Tree
    samples: Samples
    session: ClientSession


@dataclass(frozen=True)
class Done(Generic[T]):
    """The end of a round."""

    result: T


Ask = Fit | Test
Asking = Generator[Ask, Any, T]


@dataclass
class Spent:
    """Where a client's time has gone."""

    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0})
    _resumed: float = 0.0  # when the round went on

    @property
    def training(self) -> float:
        """Seconds of training so far, asked for by the round itself."""
        return self.seconds["train"] + time.perf_counter() - self._resumed

    def add(self, ask: Ask, seconds: float) -> None:
        """Counts the seconds that an answer took."""
        self.seconds["evaluate" if isinstance(ask, Test) else "train"] += seconds

    def resume(self) -> None:
        """The round itself goes on."""
        self._resumed = time.perf_counter()

    def pause(self) -> None:
        """The round waits for an answer."""
        self.seconds["train"] += time.perf_counter() - self._resumed

    @contextmanager
    def testing(self) -> Iterator[None]:
        """While the round itself does a test."""
        started = time.perf_counter()
        yield
        self._move("evaluate", time.perf_counter() - started)

    def count_probes(self, seconds: float) -> None:
        """Takes the time of probes out of that of training."""
        self.seconds["probe"] = 0.0
        self._move("probe", seconds)

    def _move(self, kind: str, seconds: float) -> None:
        self.seconds[kind] += seconds
        self.seconds["train"] -= seconds


ClientRound = Callable[[Job, Spent], Asking[ClientResult]]


def resume(asking: Asking[T], answer: Any, spent: Spent) -> Ask | Done[T]:
    """Gives a round its answer, or raises that in it if it is an error; returns what it asks for next, or its end."""
    spent.resume()
    try:
        return asking.throw(answer) if isinstance(answer, Exception) else asking.send(answer)
    except StopIteration as end:
        return Done(end.value)
    finally:
        spent.pause()


def alone(asking: Asking[T], answer: Callable[[Ask], Any], spent: Spent) -> T:
    """Goes through one client's round, answering at once."""
    ask = resume(asking, None, spent)
    while not isinstance(ask, Done):
        ask = resume(asking, answered(ask, answer, spent), spent)
    return ask.result


def answered(ask: Ask, answer: Callable[[Ask], Any], spent: Spent) -> Any:
    """The answer, or the error that it ended with."""
    clock = time.perf_counter()
    try:
        return answer(ask)
    except Exception as error:
        return error
    finally:
        spent.add(ask, time.perf_counter() - clock)
