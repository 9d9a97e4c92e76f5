"""The rounds of many clients side by side: what several of them ask for is answered at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedexp.client.asks import Ask, Asking, ClientRound, Done, Fit, Spent, Test, answered, resume
from fedexp.client.batched.fit import StackFitter
from fedexp.client.batched.score import StackTester
from fedexp.client.faults import attribute_errors
from fedexp.client.messages import ClientResult, Job
from fedexp.errors import ClientError, PlanError

Outcome = ClientResult | ClientError
Answer = Callable[[Ask], Any]


@dataclass
class _Client:
    """A client whose round is under way."""

    job: Job
    asking: Asking[ClientResult]
    spent: Spent
    ask: Ask | None = None
    outcome: Outcome | None = None

    def go_on(self, answer: Any) -> None:
        """Gives the round an answer, or an error, and takes what it asks for next, or its end."""
        try:
            with attribute_errors(self.job):
                said = resume(self.asking, answer, self.spent)
        except ClientError as error:
            self.ask, self.outcome = None, error
            return
        self.ask = None if isinstance(said, Done) else said
        self.outcome = said.result if isinstance(said, Done) else None


@dataclass(frozen=True)
class Lockstep:
    """Answers for many clients.

    Attributes:
        fitter: Fits phases of many clients.
        tester: Tests models of many clients.
        phases: In the order of a round.
        unstacked: Phases that are fitted one by one, with the reason.
    """

    fitter: StackFitter
    tester: StackTester
    phases: Sequence[str]
    unstacked: Mapping[str, str] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job], work: ClientRound, one: Answer) -> list[Outcome]:
        """What becomes of the clients, in the order of their jobs; ``one`` answers a client alone."""
        spent = [Spent() for _ in jobs]
        clients = [_Client(job, work(job, own), own) for job, own in zip(jobs, spent, strict=True)]
        for client in clients:
            client.go_on(None)
        while waiting := self._next([client for client in clients if client.ask is not None]):
            for client, answer in zip(waiting, self._answers(waiting, one), strict=True):
                client.go_on(answer)
        return [client.outcome for client in clients if client.outcome is not None]

    def _next(self, asking: Sequence[_Client]) -> list[_Client]:
        """The clients that are answered next: all that wait for a test, or else for the earliest phase."""
        if testing := [c for c in asking if isinstance(c.ask, Test)]:
            return testing
        names = [c.ask.phase.name for c in asking if isinstance(c.ask, Fit)]
        earliest = min(names, key=self.phases.index, default=None)
        return [c for c, name in zip(asking, names, strict=True) if name == earliest]

    def _answers(self, clients: Sequence[_Client], one: Answer) -> list[Any]:
        asks = [c.ask for c in clients if c.ask is not None]
        first = asks[0]
        if isinstance(first, Fit) and first.phase.name in self.unstacked:
            return [answered(ask, one, c.spent) for c, ask in zip(clients, asks, strict=True)]
        clock = time.perf_counter()
        answers = self._together(asks, one)
        for client, ask in zip(clients, asks, strict=True):
            client.spent.add(ask, (time.perf_counter() - clock) / len(asks))
        return answers

    def _together(self, asks: Sequence[Ask], one: Answer) -> list[Any]:
        """The answers to all. If something fails for all at once, each client is tried alone to find whose fault it is.

        Raises:
            PlanError: If it is nobody's.
        """
        fits, tests = [a for a in asks if isinstance(a, Fit)], [a for a in asks if isinstance(a, Test)]
        try:
            return self.fitter.fit(fits) if fits else self.tester.score(tests)
        except Exception as error:
            alone = [answered(_from_here(ask), one, Spent()) for ask in asks]
            sound = [ask for ask, answer in zip(asks, alone, strict=True) if not isinstance(answer, Exception)]
            if len(sound) == len(asks):
                where = f"phase {fits[0].phase.name!r}" if fits else "a test"
                raise PlanError(
                    f"loop=batched: {where} cannot be done for many clients at once ({_first_line(error)}). Use "
                    "loop=fabric, or let the component's class say why with `unbatched`."
                ) from error
            rest = iter(self._together(sound, one) if sound else [])
            return [answer if isinstance(answer, Exception) else next(rest) for answer in alone]


def _from_here(ask: Ask) -> Ask:
    """The same without the optimizer that it goes on with, which is that of a stack."""
    return replace(ask, after=None) if isinstance(ask, Fit) else ask


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
