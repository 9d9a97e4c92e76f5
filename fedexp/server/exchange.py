"""What goes out in a round, and what comes back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedexp.client.messages import ClientResult
from fedexp.core.state import Message
from fedexp.probes.base import Observation
from fedexp.server.aggregate import Fold


@dataclass(frozen=True)
class Sent:
    """What the server sends in a round, and to whom."""

    round: int
    weights: Mapping[int, float]  # of the cohort's clients in the mean, the largest client first
    dropped: Collection[int]  # clients of the cohort that get the message and do not answer
    broadcast: Message  # to every client
    mail: Mapping[int, Message]  # to one client alone
    blocks: Sequence[Sequence[int]]  # the clients that answer, as they are given to workers


@dataclass(frozen=True)
class Work:
    """What the clients of a round have sent and measured."""

    round: int
    fold: Fold  # their uploads, summed
    results: Mapping[int, ClientResult]  # without messages; who dropped out or failed included
    numbers: Mapping[str, Any] = field(default_factory=dict)  # that components recorded at the server
    observed: Observation | None = None  # by probes
