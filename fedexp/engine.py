"""The engine: one round loop for every algorithm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
from torch import Tensor

from fedexp.client.messages import ClientResult, Job
from fedexp.core.algorithm import Algorithm, Private
from fedexp.core.record import Record
from fedexp.core.state import Message, Tree, digest, fingerprints, sizes
from fedexp.display import Display
from fedexp.errors import CheckpointError
from fedexp.evaluate.protocols import MapProtocol
from fedexp.evaluate.tester import BatchSpans, Score, aggregation, personalization, pooled
from fedexp.execute.base import Blueprint, Executor
from fedexp.execute.task import Measure, MeasureServer, Task, TaskResult, Train, Visit, complete
from fedexp.runs import ledger as ledgers
from fedexp.runs.checkpoint import Checkpoint, RunProgress
from fedexp.runs.directory import RunDir
from fedexp.runs.ledger import Ledger
from fedexp.server.aggregate import Fold, blocks
from fedexp.server.sampler import ClientDropouts, UniformSampler, largest_first
from fedexp.server.update import Weighting, advance, cohort_weights
from fedexp.system import signals
from fedexp.track.base import RunCard, Tracker


@dataclass(frozen=True)
class Every:
    """How often, in rounds."""

    evaluate: int
    checkpoint: int


@dataclass(frozen=True)
class PendingRound:
    """A round that the server has been through, and that is not written down yet."""

    round: int
    results: dict[int, ClientResult]
    due: bool  # for evaluation
    tests: Sequence[Task]  # of the server's model; the record waits for them


@dataclass
class Engine:
    """A run: its parts, and the loop over rounds.

    A round is written down while the workers are at the next one already: the test of the server's model comes first
    among its tasks. It counts once it is written down; an error before that undoes it.
    """

    algorithm: Algorithm
    executor: Executor
    classify: Callable[[Tree, Tensor], Tensor]
    tests: BatchSpans
    sampler: UniformSampler
    mishaps: ClientDropouts
    weighting: Weighting
    rounds: int
    every: Every
    protocol: MapProtocol
    rundir: RunDir
    checkpoint: Checkpoint
    tracker: Tracker
    display: Display
    plain: Blueprint | None = None  # of workers that do plain local training, for protocols that ask for it
    progress: RunProgress = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    records: list[Record] = field(default_factory=list)
    _since: float = field(default=0.0, init=False)  # when the last round was written down

    def run(self, card: RunCard) -> list[Record]:
        """Runs from wherever ``open`` left off to the last round; returns the records of all evaluated rounds."""
        self.tracker.start(card, self.records[:])
        try:
            self.play(self.rounds)
        except CheckpointError:  # another checkpoint with damaged slots would push out one that is whole
            raise
        except BaseException:
            self._save()
            raise
        return self.records

    def play(self, until: int) -> None:
        """Plays so many rounds in all, each whole or not at all."""
        self._since = time.perf_counter()
        self._keep()
        try:
            played: PendingRound | None = None
            for t in range(self.progress.state.round, until):
                played = self._play(t, played)
                if t + 1 == until or self.protocol.asks_clients:
                    self._commit_round(played, self.test_server() if played.tests else None)
                    played = None
        except BaseException:
            self.progress = self._kept
            self.progress.store.rollback()
            self.ledger.drop()
            raise

    def open(self) -> int:
        """Takes up the last checkpoint, or begins; returns the rounds already done."""
        fresh = self.algorithm.fresh_state()
        saved = self.checkpoint.load(self.rundir.cut)
        if saved is None:
            self.rundir.cut({})
            saved = RunProgress(fresh, self.checkpoint.new_store())
        self.progress = saved
        self.progress.state.mailboxes = {**fresh.mailboxes, **self.progress.state.mailboxes}
        self.records = self.rundir.records()
        self.ledger = Ledger.from_rows(self.rundir.rows("ledger.csv"))
        return self.progress.state.round

    def _play(self, t: int, last: PendingRound | None) -> PendingRound:
        """One round: work, advance. Meanwhile the last one is written down."""
        results = self._exchange(t, self.sampler(t), last)
        due = (t + 1) % self.every.evaluate == 0 or t + 1 == self.rounds
        return PendingRound(t, results, due, self._tests() if due and self.algorithm.global_view else ())

    def _commit_round(self, played: PendingRound, score: Score | None) -> None:
        """Ends a round: its rows, its record, a checkpoint if it is time."""
        self._write_rows(played)
        if played.due:
            self._evaluate(played, score)
        now = time.perf_counter()
        self._clock({"elapsed": now - self._since})
        self._since = now
        self._keep()
        if (played.round + 1) % self.every.checkpoint == 0 or played.round + 1 == self.rounds:
            self._save()

    def _keep(self) -> None:
        """From now on this is what an error falls back on."""
        with signals.defer_signals():  # all of it, or the slots would be those of another round than the model
            self.progress.store.commit()
            self.progress.written = self.rundir.marks
            self._kept = replace(self.progress)

    def _exchange(self, t: int, cohort: Sequence[int], last: PendingRound | None) -> dict[int, ClientResult]:
        """The two messages of a round. The state is changed when every client of the cohort has answered."""
        state = self.progress.state
        order = largest_first(cohort, self.algorithm.facts.counts)
        weights = cohort_weights(self.algorithm, self.weighting, order)
        fold, results = self._work(t, order, weights, last)
        there = [c for c in order if results[c].error is None]
        share = 1.0 if len(there) == len(order) else sum(weights[c] for c in there)
        with self.timed("aggregate"):
            if share:
                weights = {c: weights[c] / share for c in there}
                new = advance(self.algorithm, state, weights, fold, self.classify, share)
            else:
                new = replace(state, round=t + 1)
        self.progress.state = new
        return {c: results[c] for c in sorted(order)}

    def _work(
        self, t: int, order: Sequence[int], weights: Mapping[int, float], last: PendingRound | None
    ) -> tuple[Fold, dict[int, ClientResult]]:
        """The cohort's uploads, reduced as they come, and its results without them."""
        broadcast = self.algorithm.broadcast(self.progress.state)
        everyones = sizes(broadcast)
        tests = last.tests if last else ()
        globally = self.protocol.tests_clients_globally(self.algorithm)
        results: dict[int, ClientResult] = {}

        def job(client: int) -> Job:
            mail, private = self._own(client)
            self.ledger.count(t + 1, client, "down", {**everyones, **sizes(mail)})
            return Job(t, client, mail, private, weights[client], self.mishaps.share(t, client), globally)

        gone = self.mishaps.dropped(t, order)
        for client in gone:
            job(client)  # it gets the message, and is not heard of again
            results[client] = ClientResult(client, error="dropped out")
        staying = [c for c in order if c not in gone]
        cuts = blocks(staying, self._samples)
        tasks = chain(tests, (Train(i, tuple(job(c) for c in b)) for i, b in enumerate(cuts, len(tests))))
        message = self.progress.state.message if tests else broadcast
        fold = Fold.empty(self.algorithm)
        with closing(complete(self.executor.map(tasks, message), len(tests) + len(cuts))) as answers:
            if last:
                self._commit_round(last, self._pooled(islice(answers, len(tests))))
            self.display.cohort(t + 1, len(staying), sum(self._samples[c] for c in staying))
            for answer in answers:
                self._clock({"transfer": answer.transfer})
                with self.timed("aggregate"):
                    fold.merge(answer.fold)
                for result in answer.results:
                    self._note(t, result)
                    self.progress.store.put(result.client, result.private)
                    results[result.client] = replace(result, private={})  # stored, then forgotten
        return fold, results

    def _note(self, t: int, result: ClientResult) -> None:
        """Counts what a client sent and took."""
        self._clock(result.seconds)
        self.display.client(sum(result.seconds.values()), self._samples[result.client])
        if result.error is None:
            self.ledger.count(t + 1, result.client, "up", result.sent)
        else:
            self.ledger.count(t + 1, result.client, "up", {"failed": 0})
        self._say_left_out(result)

    def _say_left_out(self, result: ClientResult) -> None:
        if result.error is not None:
            self.display.note(f"left out: {result.error}")

    def _own(self, client: int) -> tuple[Message, Private]:
        """What goes to this client alone, and what it keeps."""
        return self.algorithm.mail(self.progress.state, client), self.progress.store.get(client)

    # ------------------------------------------------------------ for protocols: of these results nothing is kept
    def test_clients(self, clients: Sequence[int]) -> dict[int, Score | None]:
        """Tests clients' personal models as they stand."""
        tasks = (Measure(i, (Job(self.progress.state.round, c, *self._own(c)),)) for i, c in enumerate(clients))
        answers = self.executor.map(tasks, self.algorithm.broadcast(self.progress.state))
        return {r.client: r.after for r in self._heard(answers)}

    def visit(self, clients: Sequence[int]) -> dict[int, ClientResult]:
        """What another round of these clients would measure, after the last one."""
        broadcast = self.algorithm.broadcast(self.progress.state)
        count = self.algorithm.facts.n_clients
        some = "all clients" if len(clients) == count else f"{len(clients)} of {count} clients"
        return self.after_rounds(f"{some} once more", clients, broadcast, self._last_job)

    def _last_job(self, client: int) -> Job:
        return Job(self.progress.state.round, client, *self._own(client), final=True)

    def after_rounds(
        self, what: str, clients: Sequence[int], broadcast: Message, job: Callable[[int], Job]
    ) -> dict[int, ClientResult]:
        """What training these clients would measure, by client, who fails included. ``what`` names it to the user."""
        samples = sum(self._samples[c] for c in clients)
        self.display.after(what, self._in_rounds(clients), len(clients), samples)
        order = largest_first(clients, self.algorithm.facts.counts)
        tasks = (Visit(i, (job(c),), len(clients) - i - 1) for i, c in enumerate(order))
        return {r.client: r for r in self._heard(self.executor.map(tasks, broadcast), shown=True)}

    @property
    def work_after(self) -> float:
        """The work after the last round, in rounds."""
        everyone = range(self.algorithm.facts.n_clients)
        once = self._in_rounds(self.protocol.final_clients(self.algorithm.facts))
        return once + self.protocol.passes(self.algorithm) * self._in_rounds(everyone)

    def _in_rounds(self, clients: Sequence[int]) -> float:
        """The work of training these clients, where a round of the mean cohort is 1."""
        return sum(self._samples[c] for c in clients) * len(self._samples) / sum(self._samples) / self.sampler.size

    def _heard(self, answers: Iterable[TaskResult], *, shown: bool = False) -> list[ClientResult]:
        """The results of answers, by client. Who is left out is said."""
        results = []
        for result in (result for answer in answers for result in answer.results):
            if shown:
                self.display.client(sum(result.seconds.values()), self._samples[result.client])
            self._say_left_out(result)
            results.append(result)
        return sorted(results, key=lambda r: r.client)

    def test_server(self) -> Score | None:
        """Tests the server's model on the global test set, which is divided among the workers."""
        tests = self._tests()
        return self._pooled(complete(self.executor.map(tests, self.progress.state.message), len(tests)))

    def _tests(self) -> list[Task]:
        return [MeasureServer(i, span=span) for i, span in enumerate(self.tests(self.executor.workers))]

    def _pooled(self, answers: Iterable[TaskResult]) -> Score | None:
        """The score of all stretches of a test; None if there were none."""
        scores: list[Score] = []
        for answer in answers:
            self._clock({"transfer": answer.transfer, "evaluate": answer.seconds})
            scores += answer.scores
        return pooled(scores) if scores else None

    def _write_rows(self, played: PendingRound) -> None:
        with self.timed("write"):
            columns = client_columns(self.algorithm)
            rows = [self._client_row(played.round, r) for r in played.results.values()]
            self.rundir.append_rows("clients.csv", columns, rows)
            self.rundir.append_rows("ledger.csv", ledgers.COLUMNS, self.ledger.close_round(played.round + 1))
            weights = {"round": played.round + 1, **fingerprints(self.progress.state.model)}
            self.rundir.append_rows("weights.csv", list(weights), [weights])

    def _client_row(self, t: int, result: ClientResult) -> dict[str, Any]:
        row: dict[str, Any] = {
            "round": t + 1,
            "client": result.client,
            "status": "ok" if result.error is None else result.error.splitlines()[0],
            "n": self._samples[result.client],
            "classes": self._classes[result.client],
            **{f"loss/{k}": v for k, v in result.terms.items()},
        }
        for name, score in (("before", result.before), ("after", result.after), ("globally", result.globally)):
            if score is not None:
                row[name] = score.accuracy
        if result.after is not None:
            row |= {"owned": result.after.owned_accuracy, "tested": result.after.n}
        return row

    def _evaluate(self, played: PendingRound, score: Score | None) -> None:
        record: Record = {"round": played.round + 1}
        results = played.results
        if score is not None:
            record["aggregation"] = aggregation(score)
            if self.protocol.keeps_best and self._is_best(score):
                self.progress.best = dict(self.progress.state.model)
        before = {c: r.before for c, r in results.items() if r.before is not None}
        with self.timed("evaluate"):
            personal = self.protocol.personal_scores(self, results)
        if personal:
            record["personalization"] = personalization(personal, before)
        record["terms"] = mean_terms([r.terms for r in results.values()])
        record["bytes"] = {"up": self.ledger.up, "down": self.ledger.down}
        record["seconds"] = {k: round(v, 3) for k, v in self.progress.seconds.items()}
        elapsed = self.progress.seconds.get("elapsed", 0.0) + time.perf_counter() - self._since
        record["seconds"]["elapsed"] = round(elapsed, 3)
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
            self.rundir.sync()
            self.checkpoint.save(self.progress)

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Counts the seconds of a kind of work."""
        started = time.perf_counter()
        yield
        self._clock({kind: time.perf_counter() - started})

    def _clock(self, seconds: dict[str, float]) -> None:
        for kind, value in seconds.items():
            self.progress.seconds[kind] = self.progress.seconds.get(kind, 0.0) + value

    @cached_property
    def _samples(self) -> list[int]:
        return self.algorithm.facts.counts.sum(1).int().tolist()

    @cached_property
    def _classes(self) -> list[int]:
        return (self.algorithm.facts.counts > 0).sum(1).tolist()

    def digests(self) -> dict[str, str]:
        """What two equal runs have in common."""
        return {"model": digest({"model": self.progress.state.model}), "clients": self.progress.store.digest()}


def client_columns(algorithm: Algorithm) -> list[str]:
    """The columns of clients.csv, the same for every round of a run."""
    terms = [f"loss/{p.name}/{term}" for p in algorithm.phases for term in algorithm.term_names(p.name)]
    return ["round", "client", "status", "n", "classes", "tested", "before", "after", "owned", "globally", *terms]


def mean_terms(terms: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each loss term over the clients that have it."""
    names = dict.fromkeys(k for t in terms for k in t)
    return {k: float(np.mean([t[k] for t in terms if k in t])) for k in names}
