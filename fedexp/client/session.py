"""A client during its job."""

from __future__ import annotations

from dataclasses import dataclass

from fedexp.core.algorithm import Private
from fedexp.core.state import Message, Tree
from fedexp.core.views import View
from fedexp.data.federated import Info
from fedexp.probes.observer import ClientObserver


@dataclass(frozen=True)
class ClientSession:
    """A client during a job: what it starts from, what it keeps, how components see both."""

    round: int
    received: Tree
    message: Message
    private: Private
    info: Info
    view: View
    observer: ClientObserver | None = None  # probes, if any is due
