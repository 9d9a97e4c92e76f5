"""Executors: where the clients' work runs. Results come back in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import torch

from fedexp.client import Job, Result
from fedexp.evaluate import Score
from fedexp.state import ServerState
from fedexp.worker import Worker


class Executor(Protocol):
    """Runs jobs, and tests models."""

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]: ...
    def test_clients(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Score | None]]: ...
    def test_server(self, state: ServerState) -> Score: ...


class SerialExecutor:
    """One client after another, in this process."""

    def __init__(self, worker: Worker, *, threads: int) -> None:
        torch.set_num_threads(threads)
        self._worker = worker

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results of the jobs."""
        return map(self._worker.work, jobs)

    def test_clients(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Score | None]]:
        """Tests clients' personal models as they stand."""
        return ((job.client, self._worker.test_client(job)) for job in jobs)

    def test_server(self, state: ServerState) -> Score:
        """Tests the server's model on the global test set."""
        return self._worker.test_server(state)


R = TypeVar("R", bound=Result)


def in_order(cohort: Sequence[int], results: Iterable[R]) -> Iterator[R]:
    """The results in cohort order, each as soon as all before it are there."""
    waiting: dict[int, R] = {}
    due = iter(cohort)
    client = next(due, None)
    for result in results:
        waiting[result.client] = result
        while client in waiting:
            yield waiting.pop(client)
            client = next(due, None)
    if client is not None:
        raise RuntimeError(f"no result came back for client {client}")
