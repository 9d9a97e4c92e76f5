"""What can go wrong with a client's work, how it is said, and what follows from it."""

from __future__ import annotations

import math
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from fedexp.client.messages import Job
from fedexp.config.suggest import nearest
from fedexp.core.algorithm import Private
from fedexp.core.component import Phase
from fedexp.core.state import Tree
from fedexp.errors import ClientError, FedexpError, PlanError
from fedexp.server.aggregate import is_finite


@dataclass(frozen=True)
class Faults:
    """What happens when a client fails: an exception, a number that is not finite, or too long a time."""

    policy: Literal["raise", "skip"] = "raise"
    seconds: float | None = None  # for one client's round


RAISE = Faults()


def check_terms(job: Job, terms: Mapping[str, float]) -> None:
    """Refuses a loss term, by ``phase/term``, that is not finite."""
    if bad := [k for k, v in terms.items() if not math.isfinite(v)]:
        phase, _, term = bad[0].rpartition("/")
        raise ClientError(f"{where(job)}, phase {phase!r}: loss term {term!r} is not finite. {ADVICE}")


def check_slots(job: Job, slots: Private) -> None:
    """Refuses a private slot that is not finite: the client would fail in every later round."""
    if lost := [name for name, tree in slots.items() if not is_finite(tree)]:
        raise ClientError(f"{where(job)}: its slot {lost[0]!r} has a value that is not finite. {ADVICE}")


def check_numbers(job: Job, numbers: Mapping[str, float]) -> None:
    """Refuses a recorded number that is not finite."""
    if bad := [k for k, v in numbers.items() if not math.isfinite(v)]:
        raise ClientError(f"{where(job)}: the recorded number {bad[0]!r} is not finite. {ADVICE}")


def check_declared(kind: str, given: Mapping[str, Tree], declared: Mapping[str, Tree]) -> None:
    """Refuses slots or uploads, by ``component.name``, that were not declared, or not with these tensors.

    Raises:
        PlanError: Saying what was declared.
    """
    for name, tree in given.items():
        key, _, own = name.partition(".")
        if name not in declared:
            known = [n.removeprefix(f"{key}.") for n in declared if n.startswith(f"{key}.")]
            raise PlanError(
                f"component {key!r} handed back the {kind} {own!r}, but it declares no such one. {nearest(own, known)}"
            )
        now, then = ({n: (tuple(v.shape), v.dtype) for n, v in t.items()} for t in (tree, declared[name]))
        if now != then:
            which = next(n for n in (*then, *now) if now.get(n) != then.get(n))
            raise PlanError(
                f"component {key!r} handed back the {kind} {own!r} with {which!r} as {_shape(now.get(which))}, but it "
                f"was declared as {_shape(then.get(which))}. Names, shapes and types stay as declared."
            )


def _shape(what: tuple[tuple[int, ...], object] | None) -> str:
    return "absent" if what is None else f"{list(what[0])} of {what[1]}"


def where(job: Job) -> str:
    """The round and the client of a job, as messages name them."""
    return f"{'after the last round' if job.final else f'round {job.round + 1}'}, client {job.client}"


ADVICE = "Lower optim.lr, set local.clip, or look at this client's data."


class attribute_errors:  # noqa: N801 - to be read as a clause; not a generator, which takes longer
    """Any exception of the block becomes a ClientError that says where, and carries the traceback."""

    def __init__(self, job: Job, phase: Phase | None = None) -> None:
        self._job, self._phase = job, phase

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, cause: BaseException | None, trace: object) -> None:
        if isinstance(cause, Exception) and not isinstance(cause, ClientError):
            place = where(self._job) + (f", phase {self._phase.name!r}" if self._phase else "")
            said = (str(cause).splitlines() or [""])[0]
            traced = "".join(traceback.format_exception(cause))
            kind = "" if isinstance(cause, FedexpError) else f"{type(cause).__name__}: "
            raise ClientError(f"{place}: {kind}{said}", traced) from cause


@contextmanager
def time_limit(seconds: float | None, job: Job) -> Iterator[None]:
    """Raises a ClientError when the block exceeds the limit; None is no limit.

    The alarm repeats every second, because an exception that is raised in a destructor is discarded.
    """
    if seconds is None:
        yield
        return

    def late(*_: object) -> None:
        raise ClientError(f"{where(job)}: not done after {seconds:g} s (limit)")

    before = signal.signal(signal.SIGALRM, late)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # in here: a short time is up at once
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # also if the time was up in the lines above
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
