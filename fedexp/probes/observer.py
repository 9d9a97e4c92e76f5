"""Probes at work on a client's round, and on the server's. Generators stay as they are, and seconds are counted."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedexp.core.seeding import seeded, torch_rng
from fedexp.core.state import Tree
from fedexp.data.source import Samples
from fedexp.errors import ClientError, ProbeError
from fedexp.evaluate.tester import batch_size
from fedexp.probes.base import ClientView, Log, Observation, Place, Probe, Row, ServerView, overrides

if TYPE_CHECKING:
    from fedexp.core.views import Facts, Step

Probes = Mapping[str, Probe]
NO_PROBES: Probes = {}  # a plain one, since it goes to worker processes
Network = Callable[[Tree, Tensor], Tensor]  # features of samples under any weights


@dataclass
class ClientObserver:
    """The probes that watch one client in one round."""

    probes: Probes
    facts: Facts
    round: int
    client: int
    steps_per_epoch: int
    seconds: float = 0.0
    _logs: dict[str, Log] = field(default_factory=dict)
    _taken: int = 0

    @classmethod
    def of(cls, probes: Probes, facts: Facts, round: int, client: int, steps: int) -> ClientObserver | None:  # noqa: A002
        """The observer of a client's round; None if no probe is due."""
        due = {n: p for n, p in probes.items() if p.due(round, facts.rounds) and p.watches(client)}
        seen = {n: p for n, p in due.items() if overrides(p, "step") or overrides(p, "client")}
        return cls(seen, facts, round, client, steps) if seen else None

    def stepping(self, batches: int) -> Callable[[Step], None] | None:
        """What is to be called at each step of a phase whose steps have so many batches; None if no probe looks."""
        looking = {n: p for n, p in self.probes.items() if overrides(p, "step")}
        if not looking:
            return None
        per_epoch = max(self.steps_per_epoch // batches, 1)

        def look(step: Step) -> None:
            at = Place(self._taken, self._taken // per_epoch, (self._taken + 1) % per_epoch == 0)
            self._taken += 1
            for name, probe in looking.items():
                with self._counted(name):
                    probe.step(step, at, self._log(name))

        return look

    def finish(self, view: ClientView) -> None:
        """Shows the trained client to the probes."""
        for name, probe in self.probes.items():
            if overrides(probe, "client"):
                with self._counted(name):
                    probe.client(view, self._log(name))

    def observation(self) -> Observation:
        """All that was written down."""
        rows = [row for name, log in self._logs.items() for row in _rows(self.round, self.client, name, log)]
        arrays = {f"{n}/{self.client}/{key}": a for n, log in self._logs.items() for key, a in log.arrays.items()}
        return Observation(tuple(rows), arrays)

    def _log(self, name: str) -> Log:
        return self._logs.setdefault(name, Log())

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        with undisturbed(self.facts, name, self.round, self.client):
            yield
        self.seconds += time.perf_counter() - started


@dataclass(frozen=True)
class ServerObserver:
    """The probes of a run as the server knows them."""

    probes: Probes
    facts: Facts
    features: Network
    samples: Samples  # the global test set

    def observe(self, round_: int, before: Tree, after: Tree | None, clients: Mapping[int, Observation]) -> Observation:
        """What was seen in a round, by client and at last at the server."""
        rows: list[Row] = [row for client in sorted(clients) for row in clients[client].rows]
        arrays = {name: a for client in sorted(clients) for name, a in clients[client].arrays.items()}
        for name, probe in self.probes.items():
            if probe.due(round_, self.facts.rounds) and overrides(probe, "server"):
                log, own = Log(), {c: _arrays_of(name, c, seen.arrays) for c, seen in clients.items()}
                view = ServerView(round_, self.facts, tuple(sorted(clients)), before, after, own, self._test)
                with undisturbed(self.facts, name, round_, "server"):
                    probe.server(view, log)
                rows += _rows(round_, None, name, log)
                arrays |= {f"{name}/server/{key}": array for key, array in log.arrays.items()}
        return Observation(tuple(rows), arrays)

    def _test(self, tree: Tree, count: int) -> tuple[Tensor, Tensor]:
        some, whole = drawn(self.samples, count, self.facts.seed, "test"), {**self.facts.initial, **tree}
        batches = torch.split(some.x, batch_size(some.x[0].numel()))
        return torch.cat([self.features(whole, x) for x in batches]), some.y


@contextmanager
def undisturbed(facts: Facts, name: str, round_: int, who: int | str) -> Iterator[None]:
    """A probe may draw from torch's generators, without any effect on the run; gradients are not recorded.

    Raises:
        ProbeError: If it fails.
    """
    try:
        with seeded(facts.seed, "probe", name, round_, who), torch.no_grad():
            yield
    except ClientError:  # its time is up
        raise
    except Exception as cause:
        at = f"round {round_ + 1}, {'server' if who == 'server' else f'client {who}'}"
        said = (str(cause).splitlines() or [""])[0]
        raise ProbeError(
            f"{at}: probe {name!r} failed ({type(cause).__name__}: {said}). Mend it, or leave it out: the same command "
            "without it continues the run.", "".join(traceback.format_exception(cause)),
        ) from cause  # fmt: skip


def drawn(samples: Samples, count: int, seed: int, purpose: str) -> Samples:
    """So many of the samples, always the same, in the order of a draw; all of them if there are no more, or for 0."""
    if not count or count >= len(samples.y):
        return samples
    order = torch.randperm(len(samples.y), generator=torch_rng(seed, "probe", purpose))
    return samples.select(order[:count].to(samples.y.device))


def _rows(round_: int, client: int | None, probe: str, log: Log) -> list[Row]:
    return [{"round": round_ + 1, "client": client, "probe": probe, **row} for row in log.rows]


def _arrays_of(probe: str, client: int, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{probe}/{client}/"
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
