"""The engine: one round loop for every algorithm."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedexp.client.messages import ClientResult, Job
from fedexp.config.settings import Every
from fedexp.core.algorithm import Algorithm, Private
from fedexp.core.record import Record
from fedexp.core.state import Message, Tree, digest, fingerprints, sizes
from fedexp.data.source import Samples
from fedexp.display import Display
from fedexp.errors import CheckpointError
from fedexp.evaluate.protocol import EvaluationProtocol
from fedexp.evaluate.tester import BatchSpans, Score, pooled
from fedexp.execute.base import Blueprint, Executor
from fedexp.execute.task import MeasureServer, Task, TaskResult, Train, complete
from fedexp.measurement import Measurement
from fedexp.overlap import play_overlapped
from fedexp.probes.base import Observation
from fedexp.probes.observer import ServerObserver
from fedexp.runs import ledger as ledgers
from fedexp.runs import observations
from fedexp.runs.checkpoint import Checkpoint, RunProgress
from fedexp.runs.directory import RunDir
from fedexp.runs.ledger import Ledger
from fedexp.runs.rows import Row, client_columns, client_row, round_record
from fedexp.runs.tensor_files import arrays_file
from fedexp.server.aggregate import Fold, blocks, groups
from fedexp.server.exchange import Sent, Work
from fedexp.server.network import ServerNetwork
from fedexp.server.sampler import ClientDropouts, UniformSampler, largest_first
from fedexp.server.update import Weighting, advance, cohort_weights
from fedexp.system import signals
from fedexp.track import RunCard, Trackers


@dataclass
class Engine:
    """A run: its parts, and the loop over rounds. A round counts once it is committed; an error before that undoes it.

    ``round`` tells what happens in which order. Where nothing keeps the next round waiting, ``play_overlapped`` takes
    the same steps.
    """

    algorithm: Algorithm
    executor: Executor
    network: ServerNetwork
    test_spans: BatchSpans
    sampler: UniformSampler
    mishaps: ClientDropouts
    weighting: Weighting
    rounds: int
    every: Every
    protocol: EvaluationProtocol
    rundir: RunDir
    checkpoint: Checkpoint
    tracker: Trackers
    display: Display
    public: Samples | None = None  # the server's own
    group: int | None = None  # clients that a loop takes together; None: one after another
    plain: Blueprint | None = None  # of workers that do plain local training, for protocols that ask for it
    probes: ServerObserver | None = None
    probe_settings: Mapping[str, Any] = field(default_factory=dict)  # by probe, to be written down with what it sees
    progress: RunProgress = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    records: list[Record] = field(default_factory=list)
    latest: dict[int, Row] = field(default_factory=dict)  # each client's last row in which it was tested
    _since: float = field(default=0.0, init=False)  # when the last round was committed
    _new_settings: dict[str, Any] = field(default_factory=dict, init=False)  # of probes, since the last commit

    # ------------------------------------------------------------ a run
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
        self.latest = {int(row["client"]): row for row in self.rundir.rows("clients.csv") if row["after"]}
        self._new_settings = observations.changes(self.rundir.observations(), self.probe_settings)
        return self.progress.state.round

    def run(self, card: RunCard) -> list[Record]:
        """Runs from wherever ``open`` left off to the last round; returns the records of all evaluated rounds."""
        self.tracker.start(card, self.records[:])
        try:
            self.play(self.rounds)
        except CheckpointError:  # another checkpoint with damaged slots would push out one that is whole
            raise
        except BaseException:
            self._save_checkpoint()
            raise
        return self.records

    def play(self, until: int) -> None:
        """Plays so many rounds in all, each whole or not at all."""
        self._since = time.perf_counter()
        self._mark_committed()
        rounds = range(self.progress.state.round, until)
        try:
            if self.protocol.asks_clients(self.algorithm):
                for t in rounds:
                    self.round(t)
            else:
                play_overlapped(self, rounds)
        except BaseException:
            self.progress = self._kept
            self.progress.store.rollback()
            self.ledger.drop()
            raise

    # ------------------------------------------------------------ a round
    def round(self, t: int) -> None:
        """One round, in time order."""
        sent = self.send(t)  # draws and weighs the cohort; bytes down are counted here
        with self.answers(self.tasks(sent), len(sent.blocks), sent.broadcast) as answers:
            work = self.collect(sent, answers)  # uploads are summed as they come; bytes up are counted here
        work = self.update(sent, work)  # the server's step
        score = self.test_server() if self.is_due(t) else None
        self.commit(work, score)  # rows, record; then a checkpoint if it is time

    def send(self, t: int) -> Sent:
        """Draws and weighs the round's clients, and counts what goes to each of them."""
        state, order = self.progress.state, largest_first(self.sampler(t), self.algorithm.facts.counts)
        dropped = self.mishaps.dropped(t, order)
        sent = Sent(
            round=t,
            weights=cohort_weights(self.algorithm, self.weighting, order),
            dropped=dropped,
            broadcast=self.algorithm.broadcast(state),
            mail={client: self.algorithm.mail(state, client) for client in order},
            blocks=self.dealt([c for c in order if c not in dropped]),
        )
        everyones = sizes(sent.broadcast)
        for client, mail in sent.mail.items():
            self.ledger.count(t + 1, client, "down", {**everyones, **sizes(mail)})
        return sent

    def dealt(self, clients: Sequence[int]) -> list[list[int]]:
        """Clients as they are given to workers: a function of who they are."""
        return blocks(clients, self.samples) if self.group is None else groups(clients, self.group)

    def tasks(self, sent: Sent, first: int = 0) -> Iterator[Task]:
        """The tasks of a round, numbered from ``first``. A client's slots are fetched when a worker is free for it."""
        globally = self.protocol.tests_clients_globally(self.algorithm)
        there = [client for block in sent.blocks for client in block]
        measured = set(self.protocol.measured_clients(sent.round, there, self.algorithm.facts))
        for index, block in enumerate(sent.blocks, first):
            yield Train(
                index, tuple(self._job(sent, c, globally=globally, measured=c in measured) for c in block)
            )  # fmt: skip

    def _job(self, sent: Sent, client: int, *, globally: bool, measured: bool) -> Job:
        return Job(
            sent.round, client, sent.mail[client], self.progress.store.get(client), weight=sent.weights[client],
            share=self.mishaps.share(sent.round, client), test_globally=globally,
            missing=measured and self.protocol.missing, due=self.is_due(sent.round),
        )  # fmt: skip

    def answers(
        self, tasks: Iterable[Task], count: int, message: Message
    ) -> AbstractContextManager[Iterator[TaskResult]]:
        """What the workers answer, in the order of the tasks; they are stopped when the block is left."""
        return closing(complete(self.executor.map(tasks, message), count))

    def collect(self, sent: Sent, answers: Iterable[TaskResult]) -> Work:
        """Sums uploads, counts them, and puts away what clients keep, as answers come."""
        there = [client for block in sent.blocks for client in block]
        results = {client: ClientResult(client, error="dropped out") for client in sent.dropped}
        fold = Fold.empty(self.algorithm)
        self.display.cohort(sent.round + 1, len(there), sum(self.samples[c] for c in there))
        for answer in answers:
            self._clock({"transfer": answer.transfer})
            with self.timed("aggregate"):
                fold.merge(answer.fold)
            for result in answer.results:
                self._clock(result.seconds)
                self.display.client(sum(result.seconds.values()), self.samples[result.client])
                self.say_if_left_out(result)
                uploads = result.sent if result.error is None else {"failed": 0}
                self.ledger.count(sent.round + 1, result.client, "up", uploads)
                self.progress.store.put(result.client, result.private)
                seen = result.observed.copied() if result.observed else None  # their memory is used again
                results[result.client] = replace(result, private={}, observed=seen)  # stored, then forgotten
        return Work(sent.round, fold, {client: results[client] for client in sorted(results)})

    def update(self, sent: Sent, work: Work) -> Work:
        """The server's step, with the weights of the clients that answered; without any, the model stays.

        Returns the work with the numbers that components recorded at the server.
        """
        before, weights = self.progress.state, sent.weights
        there = [client for client in weights if work.results[client].error is None]
        share = 1.0 if len(there) == len(weights) else sum(weights[client] for client in there)
        with self.timed("aggregate"):
            if share:
                normal = {client: weights[client] / share for client in there}
                new = advance(self.algorithm, before, normal, work.fold, self.network, share, self.public)
                self.progress.state, numbers = new.state, new.numbers
            else:
                self.progress.state, numbers = replace(before, round=sent.round + 1), {}
        work = replace(work, numbers=numbers)
        return work if self.probes is None else self._observe(self.probes, before.model, work)

    def _observe(self, probes: ServerObserver, before: Tree, work: Work) -> Work:
        """The work with what probes saw of the round."""
        seen = {c: r.observed or Observation() for c, r in work.results.items() if r.error is None}
        after = self.progress.state.model if self.algorithm.global_view else None
        with self.timed("probe"):
            return replace(work, observed=probes.observe(work.round, before, after, seen))

    def is_due(self, t: int) -> bool:
        """Whether a round is evaluated."""
        return (t + 1) % self.every.evaluate == 0 or t + 1 == self.rounds

    def test_server(self) -> Score | None:
        """Tests the server's model, if there is one, on the global test set, which is divided among the workers."""
        tests = self.server_tests()
        with self.answers(tests, len(tests), self.progress.state.message) as answers:
            return self.pooled(answers)

    def server_tests(self) -> list[Task]:
        """The tasks of testing the server's model; none if the method has no model to test."""
        spans = self.test_spans(self.executor.workers) if self.algorithm.global_view else ()
        return [MeasureServer(i, span=span) for i, span in enumerate(spans)]

    def pooled(self, answers: Iterable[TaskResult]) -> Score | None:
        """The score of all parts of a test; None if there were none."""
        scores: list[Score] = []
        for answer in answers:
            self._clock({"transfer": answer.transfer, "evaluate": answer.seconds})
            scores += answer.scores
        return pooled(scores) if scores else None

    # ------------------------------------------------------------ writing down
    def commit(self, work: Work, score: Score | None) -> None:
        """Writes down a round: its rows, its record, a checkpoint if it is time. From then on it counts."""
        self._write_rows(work)
        if self.is_due(work.round):
            self._write_record(work, score)
        now = time.perf_counter()
        self._clock({"elapsed": now - self._since})
        self._since = now
        self._mark_committed()
        if (work.round + 1) % self.every.checkpoint == 0 or work.round + 1 == self.rounds:
            self._save_checkpoint()

    def _write_rows(self, work: Work) -> None:
        with self.timed("write"):
            rows = [
                client_row(work.round + 1, self.samples[client], self._classes[client], result)
                for client, result in work.results.items()
            ]
            self.latest |= {row["client"]: row for row in rows if "after" in row}
            self.rundir.append_rows("clients.csv", client_columns(self.algorithm), rows)
            self.rundir.append_rows("ledger.csv", ledgers.COLUMNS, self.ledger.close_round(work.round + 1))
            weights = {"round": work.round + 1, **fingerprints(self.progress.state.model)}
            self.rundir.append_rows("weights.csv", list(weights), [weights])
            self._write_observation(work)

    def _write_observation(self, work: Work) -> None:
        settings = observations.settings_rows(work.round + 1, self._new_settings)
        seen = work.observed or Observation()
        arrays = arrays_file(seen.arrays) if seen.arrays else None
        self.rundir.append_observations(work.round + 1, [*settings, *seen.rows], arrays)
        self._new_settings = {}

    def _write_record(self, work: Work, score: Score | None) -> None:
        if score is not None and self.protocol.keeps_best and self._is_best(score):
            self.progress.best = self.algorithm.released(self.progress.state)
        with self.timed("evaluate"):
            personal = self.protocol.personal(self.measurement, work.results)
        elapsed = self.progress.seconds.get("elapsed", 0.0) + time.perf_counter() - self._since
        record = round_record(work, score, personal, self.ledger, {**self.progress.seconds, "elapsed": elapsed})
        self.records.append(record)
        with self.timed("write"):
            self.rundir.append_record(record)
            self.tracker.log(record)
        self.display.record(record)

    def _is_best(self, score: Score) -> bool:
        return all(score.accuracy > r["aggregation"]["accuracy"] for r in self.records)

    def _mark_committed(self) -> None:
        """From now on this is what an error falls back on."""
        with signals.defer_signals():  # all of it, or the slots would be those of another round than the model
            self.progress.store.commit()
            self.progress.written = self.rundir.marks
            self._kept = replace(self.progress)

    def _save_checkpoint(self) -> None:
        """Keeps the last complete round; also when the run is about to stop on an error."""
        with self.timed("write"):
            self.rundir.sync()
            self.checkpoint.save(self.progress)

    # ------------------------------------------------------------ what others ask for
    @property
    def measurement(self) -> Measurement:
        """The run as evaluation protocols see it; not kept, or an engine and its data set would outlast the run."""
        return Measurement(self)

    @cached_property
    def samples(self) -> list[int]:
        """The number of training samples of each client."""
        return self.algorithm.facts.counts.sum(1).int().tolist()

    @cached_property
    def _classes(self) -> list[int]:
        return (self.algorithm.facts.counts > 0).sum(1).tolist()

    @property
    def late_probes(self) -> list[str]:
        """The probes that begin to observe now, or do so with other settings than before."""
        return [name for name, settings in self._new_settings.items() if settings is not None]

    def own(self, client: int) -> tuple[Message, Private]:
        """What goes to this client alone, and what it keeps."""
        return self.algorithm.mail(self.progress.state, client), self.progress.store.get(client)

    def say_if_left_out(self, result: ClientResult) -> None:
        """Tells the user that a client failed, if it did."""
        if result.error is not None:
            self.display.note(f"left out: {result.error}")

    def digests(self) -> dict[str, str]:
        """What two equal runs have in common."""
        return {"model": digest({"model": self.progress.state.model}), "clients": self.progress.store.digest()}

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Counts the seconds of a kind of work."""
        started = time.perf_counter()
        yield
        self._clock({kind: time.perf_counter() - started})

    def _clock(self, seconds: Mapping[str, float]) -> None:
        for kind, value in seconds.items():
            self.progress.seconds[kind] = self.progress.seconds.get(kind, 0.0) + value
