"""Tests and trainings of which nothing is kept: what evaluation protocols ask of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from fedexp.client.messages import ClientResult, Job
from fedexp.core.algorithm import Algorithm
from fedexp.core.record import Record
from fedexp.core.state import Message
from fedexp.execute.task import Measure, TaskResult, Visit
from fedexp.server.aggregate import groups
from fedexp.server.sampler import largest_first

if TYPE_CHECKING:
    from fedexp.engine import Engine


class Measurement:
    """An engine as evaluation protocols see it (``fedexp.evaluate.protocol.Federation``)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def algorithm(self) -> Algorithm:
        """The method, with the facts of the run."""
        return self._engine.algorithm

    @property
    def records(self) -> Sequence[Record]:
        """The records of all evaluated rounds so far."""
        return self._engine.records

    def client_rows(self) -> Iterator[dict[str, str]]:
        """The rows of clients.csv."""
        return self._engine.rundir.rows("clients.csv")

    def latest(self, column: str) -> dict[int, float]:
        """The last number that each tested client has in a column of clients.csv."""
        rows = self._engine.latest.items()
        return {client: float(row[column]) for client, row in rows if row.get(column) not in (None, "")}

    def test_clients(self, clients: Iterable[int], *, personal: bool = True) -> dict[int, ClientResult]:
        """Tests clients' personal models, or the models they receive; those without a test set are absent."""
        state = self._engine.progress.state
        dealt = groups(list(clients), self._engine.group or 1)
        tasks = (
            Measure(i, tuple(Job(state.round, c, *self._engine.own(c)) for c in some), personal=personal)
            for i, some in enumerate(dealt)
        )
        answers = self._engine.executor.map(tasks, self.algorithm.broadcast(state))
        return {r.client: r for r in self._results(answers) if r.after is not None}

    def train_once_more(self, clients: Sequence[int]) -> dict[int, ClientResult]:
        """What another round of these clients would measure, after the last one."""
        count = self.algorithm.facts.n_clients
        some = "all clients" if len(clients) == count else f"{len(clients)} of {count} clients"
        state, missing = self._engine.progress.state, self._engine.protocol.missing
        return self._train(
            f"{some} once more",
            clients,
            self.algorithm.broadcast(state),
            lambda c: Job(state.round, c, *self._engine.own(c), missing=missing, final=True),
        )

    def finetune(self, epochs: float) -> dict[int, ClientResult]:
        """What all clients measure after plain training of the best server model.

        The executor's workers are those of plain training from then on. Learning rates are those of the first round.
        """
        plain, best = self._engine.plain, self._engine.progress.best
        if plain is None:
            raise RuntimeError("the protocol fine-tunes, but the engine has no blueprint for plain training")
        self._engine.executor.use(replace(plain, local=replace(plain.local, epochs=epochs)))
        everyone = range(self.algorithm.facts.n_clients)
        model = {"model": {n: best[n] for n in self.algorithm.travelling}}
        return self._train("fine-tuning of all clients", everyone, model, lambda c: Job(0, c, {}, {}, final=True))

    @property
    def work_after_rounds(self) -> float:
        """How much is trained after the last round, where a round of the mean cohort is 1."""
        protocol, facts = self._engine.protocol, self.algorithm.facts
        once_more = self._in_rounds(protocol.final_clients(facts))
        finetuned = protocol.finetune_epochs_for(self.algorithm) is not None
        return once_more + finetuned * self._in_rounds(range(facts.n_clients))

    def _in_rounds(self, clients: Sequence[int]) -> float:
        samples = self._engine.samples
        return sum(samples[c] for c in clients) * len(samples) / sum(samples) / self._engine.sampler.size

    def _train(
        self, what: str, clients: Sequence[int], broadcast: Message, job: Callable[[int], Job]
    ) -> dict[int, ClientResult]:
        """What training these clients would measure, failures included. ``what`` names it to the user."""
        engine = self._engine
        engine.display.after(what, self._in_rounds(clients), len(clients), sum(engine.samples[c] for c in clients))
        order = largest_first(clients, self.algorithm.facts.counts)
        dealt = groups(order, engine.group or 1)
        ahead = [len(order) - n for n in accumulate(map(len, dealt))]
        tasks = (Visit(i, tuple(map(job, some)), ahead[i]) for i, some in enumerate(dealt))
        return {r.client: r for r in self._results(engine.executor.map(tasks, broadcast), shown=True)}

    def _results(self, answers: Iterable[TaskResult], *, shown: bool = False) -> list[ClientResult]:
        """The results of answers, by client. The user is told of clients that are left out."""
        results = []
        for result in (result for answer in answers for result in answer.results):
            if shown:
                self._engine.display.client(sum(result.seconds.values()), self._engine.samples[result.client])
            self._engine.say_if_left_out(result)
            results.append(result)
        return sorted(results, key=lambda r: r.client)
