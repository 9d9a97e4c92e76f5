"""The engine: one round loop for every algorithm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from fedexp import ledger as ledgers
from fedexp.algorithm import Algorithm
from fedexp.checkpoint import Checkpoint, Saved
from fedexp.client import Job, Result
from fedexp.display import Display
from fedexp.errors import CheckpointError
from fedexp.evaluate import Score, aggregation, personalization
from fedexp.executor import Executor, in_order
from fedexp.ledger import Ledger
from fedexp.protocol import Protocol
from fedexp.rundir import Record, RunDir
from fedexp.sampler import UniformSampler
from fedexp.server import Weighting, advance, cohort_weights
from fedexp.state import Message, Tree, digest
from fedexp.track.base import RunCard, Tracker


@dataclass(frozen=True)
class Every:
    """How often, in rounds."""

    evaluate: int
    checkpoint: int


@dataclass
class Engine:
    """A run: its parts, and the loop over rounds."""

    algorithm: Algorithm
    executor: Executor
    classify: Callable[[Tree, Tensor], Tensor]
    sampler: UniformSampler
    weighting: Weighting
    rounds: int
    every: Every
    protocol: Protocol
    rundir: RunDir
    checkpoint: Checkpoint
    tracker: Tracker
    display: Display
    saved: Saved = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    records: list[Record] = field(default_factory=list)

    def run(self, card: RunCard) -> list[Record]:
        """Runs from wherever ``open`` left off to the last round; returns the records of all evaluated rounds."""
        self.tracker.start(card, self.records[:])
        try:
            for t in range(self.saved.state.round, self.rounds):
                self._play(t)
                if (t + 1) % self.every.checkpoint == 0 or t + 1 == self.rounds:
                    self._save()
        except CheckpointError:  # another checkpoint with damaged slots would push out one that is whole
            raise
        except BaseException:
            self._save()
            raise
        return self.records

    def open(self) -> int:
        """Takes up the last checkpoint, or begins; returns the rounds already done."""
        fresh = self.algorithm.fresh_state()
        self.saved = self.checkpoint.load() or Saved(fresh, self.checkpoint.new_store())
        self.saved.state.mailboxes = {**fresh.mailboxes, **self.saved.state.mailboxes}
        self.rundir.cut(self.saved.state.round)
        self.records = self.rundir.records()
        self.ledger = Ledger.from_rows(self.rundir.rows("ledger.csv"))
        return self.saved.state.round

    def _play(self, t: int) -> None:
        """One round, whole or not at all."""
        before = replace(self.saved)
        before.store.commit()  # what is staged belongs to the rounds before
        try:
            self._play_through(t)
        except BaseException:
            self.saved = before
            before.store.rollback()
            raise

    def _play_through(self, t: int) -> None:
        """One round: work, advance, write down, test."""
        cohort = self.sampler(t)
        self.display.cohort(t + 1, len(cohort))
        results = self._exchange(t, cohort)
        due = (t + 1) % self.every.evaluate == 0 or t + 1 == self.rounds
        self._write_rows(t, results)
        if due:
            self._evaluate(t, results)

    def _exchange(self, t: int, cohort: Sequence[int]) -> dict[int, Result]:
        """The two messages of a round. The state is changed when every client of the cohort has answered."""
        state, store = self.saved.state, self.saved.store
        done: dict[int, Result] = {}

        def uplinks() -> Iterator[tuple[int, Message]]:
            jobs = (self._job(t, c, counted=True) for c in cohort)
            for result in in_order(cohort, self.executor.map(jobs)):
                self.ledger.count(t + 1, result.client, "up", result.uplink)
                self._clock(result.seconds)
                self.display.client(sum(result.seconds.values()))
                store.put(result.client, result.private)
                done[result.client] = replace(result, uplink={}, private={})  # reduced and stored, then forgotten
                yield result.client, result.uplink

        weights = cohort_weights(self.algorithm, self.weighting, cohort)
        self.ledger.drop_round()
        started, worked = time.perf_counter(), sum(self.saved.seconds.values())
        new = advance(self.algorithm, state, weights, uplinks(), self.classify)
        worked = sum(self.saved.seconds.values()) - worked
        self._clock({"aggregate": time.perf_counter() - started - worked})
        self.saved.state = new
        return done

    def _job(self, t: int, client: int, *, counted: bool = False) -> Job:
        message = self.algorithm.downlink(self.saved.state, client)
        if counted:
            self.ledger.count(t + 1, client, "down", message)
        return Job(
            t, client, message, self.saved.store.get(client), self.protocol.tests_clients_globally(self.algorithm)
        )

    def jobs(self, clients: Sequence[int]) -> Iterator[Job]:
        """Jobs against the state as it stands, for tests; nothing of their results is kept."""
        return (self._job(self.saved.state.round, c) for c in clients)

    def _write_rows(self, t: int, results: dict[int, Result]) -> None:
        with self.timed("write"):
            columns = client_columns(self.algorithm)
            rows = [self._client_row(t, r) for r in results.values()]
            self.rundir.append_rows("clients.csv", columns, rows)
            self.rundir.append_rows("ledger.csv", ledgers.COLUMNS, self.ledger.close_round())

    def _client_row(self, t: int, result: Result) -> dict[str, Any]:
        counts = self.algorithm.facts.counts[result.client]
        row: dict[str, Any] = {
            "round": t + 1,
            "client": result.client,
            "n": int(counts.sum()),
            "classes": int((counts > 0).sum()),
            **{f"loss/{k}": v for k, v in result.terms.items()},
        }
        for name, score in (("before", result.before), ("after", result.after), ("globally", result.globally)):
            if score is not None:
                row[name] = score.accuracy
        if result.after is not None:
            row |= {"owned": result.after.owned_accuracy, "tested": result.after.n}
        return row

    def _evaluate(self, t: int, results: dict[int, Result]) -> None:
        record: Record = {"round": t + 1}
        if self.algorithm.global_view:
            with self.timed("evaluate"):
                score = self.executor.test_server(self.saved.state)
            record["aggregation"] = aggregation(score)
            if self.protocol.keeps_best and self._is_best(score):
                self.saved.best = dict(self.saved.state.model)
        before = {c: r.before for c, r in results.items() if r.before is not None}
        with self.timed("evaluate"):
            personal = self.protocol.personal_scores(self, results)
        if personal:
            record["personalization"] = personalization(personal, before)
        record["terms"] = mean_terms([r.terms for r in results.values()])
        record["bytes"] = {"up": self.ledger.up, "down": self.ledger.down}
        record["seconds"] = {k: round(v, 3) for k, v in self.saved.seconds.items()}
        record["seconds"]["elapsed"] = round(sum(self.saved.seconds.values()), 3)
        self.records.append(record)
        with self.timed("write"):
            self.rundir.append_record(record)
            self.tracker.log(record)
        self.display.record(record)

    def _is_best(self, score: Score) -> bool:
        return all(score.accuracy > r["aggregation"]["accuracy"] for r in self.records)

    def _save(self) -> None:
        """Keeps the last complete round; also when the run is about to stop on an error."""
        with self.timed("write"):
            self.checkpoint.save(self.saved)

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Counts the seconds of a kind of work."""
        started = time.perf_counter()
        yield
        self._clock({kind: time.perf_counter() - started})

    def _clock(self, seconds: dict[str, float]) -> None:
        for kind, value in seconds.items():
            self.saved.seconds[kind] = self.saved.seconds.get(kind, 0.0) + value

    def digests(self) -> dict[str, str]:
        """What two equal runs have in common."""
        return {"model": digest({"model": self.saved.state.model}), "clients": self.saved.store.digest()}


def client_columns(algorithm: Algorithm) -> list[str]:
    """The columns of clients.csv, the same for every round of a run."""
    terms = [
        f"loss/{p.name}/{term}"
        for p in algorithm.phases
        for term in ("ce", *(k for k, _ in algorithm.active(p.name, "loss")))
    ]
    return ["round", "client", "n", "classes", "tested", "before", "after", "owned", "globally", *terms]


def mean_terms(terms: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each loss term over the clients that have it."""
    names = dict.fromkeys(k for t in terms for k in t)
    return {k: float(np.mean([t[k] for t in terms if k in t])) for k in names}
