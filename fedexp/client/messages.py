"""What goes to a client and comes back, and how long it trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from fedexp.client.schedules import ConstantRate, Schedule
from fedexp.config.settings import LocalSettings
from fedexp.core.algorithm import Private
from fedexp.core.component import Phase
from fedexp.core.state import Message
from fedexp.evaluate.tester import Score
from fedexp.probes.base import Observation


@dataclass(frozen=True)
class Local(LocalSettings):
    """The run's local settings with its schedule, and the steps that follow from them."""

    schedule: Schedule = ConstantRate()  # noqa: RUF009 - frozen

    def steps(self, phase: Phase, per_epoch: int, share: float = 1.0) -> range:
        """The steps of a phase in the sequence of a client's batches, of which an epoch has ``per_epoch``."""
        epochs = self.epochs if phase.epochs is None else phase.epochs
        total = max(_whole(share * epochs * per_epoch / phase.batches), 1)
        begin = _whole(phase.begin * total)
        return range(begin, max(_whole(phase.end * total), begin + 1))

    def lr_factor(self, round: int, rounds: int) -> float:  # noqa: A002
        """The factor on learning rates; what is trained after the last round has that of the last."""
        return self.schedule.factor(min(round, rounds - 1), rounds)


def _whole(steps: float) -> int:
    """Whole steps: 1.15 · 100 is 115, and not a little less."""
    return int(steps + 1e-9)


@dataclass(frozen=True)
class Job:
    """One client's work in one round: tensors and numbers only, so that it can go anywhere."""

    round: int
    client: int
    downlink: Message  # in a task only what is for this client alone
    private: Private
    weight: float = 1.0  # of its uploads, where they are weighted
    share: float = 1.0  # of the local steps that it does; a straggler does fewer
    test_globally: bool = False  # also test the trained model on the global test set
    missing: bool | int = False  # samples of the global test set to measure missing classes on, if a test is due
    due: bool = True  # a test is due: phases for the test run before it
    final: bool = False  # after the last round: measured, and nothing of it kept


@dataclass(frozen=True)
class ClientResult:
    """What comes back: messages on the CPU, and what was measured. A client that failed has nothing but its error."""

    client: int
    uplink: Message = field(default_factory=dict)
    private: Private = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)  # mean loss terms, "phase/term"
    numbers: dict[str, float] = field(default_factory=dict)  # recorded by components, "component.name"
    seconds: dict[str, float] = field(default_factory=dict)
    before: Score | None = None  # the model as received, after ``start``
    personal_before: Score | None = None  # the personal model before training; None if that is the downloaded one
    after: Score | None = None  # the personal model
    unadapted: Score | None = None  # the same without the phases for the test; None if there are none
    globally: Score | None = None  # the personal model on the global test set
    missing: dict[str, float] = field(default_factory=dict)  # measures of missing classes
    sent: dict[str, int] = field(default_factory=dict)  # bytes of each upload
    error: str | None = None
    observed: Observation | None = None  # by probes


class Scores(TypedDict, total=False):
    """The scores of a result, and what follows from them."""

    before: Score
    personal_before: Score
    after: Score
    unadapted: Score
    globally: Score
    missing: dict[str, float]
