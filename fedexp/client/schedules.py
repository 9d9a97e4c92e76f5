"""Learning rates as a function of the round: a factor on the rate of every phase, without state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from fedexp.core.ranges import Count, Share, ShareAbove0


class Schedule(Protocol):
    """The factor on the learning rates in a round; the first is 0, the last ``rounds - 1``."""

    total_rounds: ClassVar[str | None]  # why the factors depend on ``rounds``; None if they do not

    def factor(self, round: int, rounds: int) -> float: ...  # noqa: A002 - as everywhere


@dataclass(frozen=True, kw_only=True)
class ConstantRate:
    """The same rate in all rounds."""

    total_rounds: ClassVar[str | None] = None

    def factor(self, round: int, rounds: int) -> float:  # noqa: A002, ARG002
        """1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class StepDecay:
    """gamma ** (round // every): the rate is multiplied by gamma every so many rounds."""

    every: Count = 10
    gamma: ShareAbove0 = 0.5
    total_rounds: ClassVar[str | None] = None

    def factor(self, round: int, rounds: int) -> float:  # noqa: A002, ARG002
        """Gamma, as often as ``every`` rounds have passed."""
        return float(self.gamma ** (round // self.every))


@dataclass(frozen=True, kw_only=True)
class ExponentialDecay:
    """gamma ** round, as in FedDyn's public code."""

    gamma: ShareAbove0 = 0.99
    total_rounds: ClassVar[str | None] = None

    def factor(self, round: int, rounds: int) -> float:  # noqa: A002, ARG002
        """Gamma, once for each round that has passed."""
        return float(self.gamma**round)


@dataclass(frozen=True, kw_only=True)
class CosineDecay:
    """floor + (1 - floor) (1 + cos(π round / rounds)) / 2: from 1 in the first round down to nearly ``floor``."""

    floor: Share = 0.0
    total_rounds: ClassVar[str | None] = "the learning rate falls over the whole run"

    def factor(self, round: int, rounds: int) -> float:  # noqa: A002
        """Half a cosine over the run."""
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * round / rounds)) / 2
