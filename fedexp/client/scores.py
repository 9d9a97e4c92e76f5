"""Tests around a client's round: of what it receives, and of what it has learned."""

from __future__ import annotations

from collections.abc import Callable

from fedexp.client.asks import Asking, Test
from fedexp.client.messages import Job, Scores
from fedexp.client.session import ClientSession
from fedexp.core.algorithm import Algorithm
from fedexp.core.state import Tree
from fedexp.data.federated import FederatedData
from fedexp.data.source import Samples
from fedexp.evaluate.missing import DownloadScores, measures, rare_classes, sample
from fedexp.evaluate.tester import Score, Tester

Adapt = Callable[[Job, ClientSession, Tree], Asking[Tree]]  # a model after the phases for the test


class ClientScores:
    """The scores of clients' models, on their own samples and on the global test set."""

    def __init__(self, tester: Tester, data: FederatedData, algorithm: Algorithm, adapted: Adapt) -> None:
        self.data, self.algorithm = data, algorithm
        self._tester, self._adapted = tester, adapted
        self._rare = rare_classes(algorithm.facts.counts)
        self._samples: dict[int, Samples] = {}  # of the global test set, by how many they are
        self._downloads = DownloadScores(algorithm)

    def before(self, session: ClientSession) -> Asking[Scores]:
        """The downloaded model and, where that is another one, the personal model, on the client's own samples."""
        own = self.data.own_test(session.info.client)
        if own is None:
            return {}
        scores: Scores = {"before": (yield Test(session.received, own, session))}
        if self.algorithm.using("view"):
            personal = self.algorithm.compose(session.received, session.view, "view")
            scores["personal_before"] = yield Test(personal, own, session)
        return scores

    def download(self, job: Job, session: ClientSession) -> Score | None:
        """The downloaded model on the sample of the global test set, if there is one."""
        samples = self._sample(job)
        if samples is None:
            return None
        key, model = (job.round, len(samples)), job.downlink.get("model", {})
        return self._downloads.score(key, model, lambda: self.score(Test(session.received, samples, session)))

    def _sample(self, job: Job) -> Samples | None:
        """The part of the global test set on which missing classes are measured; None if that is not asked for."""
        test = self.data.test
        count = len(test) if job.missing is True else min(job.missing, len(test))
        if not count or not job.due:
            return None
        if count not in self._samples:
            self._samples[count] = sample(test, count, self.algorithm.facts.seed)
        return self._samples[count]

    def after(
        self, job: Job, session: ClientSession, weights: Tree, *, personal: bool = True, download: Score | None = None
    ) -> Asking[Scores]:
        """The personal model, or the weights as they are; after the phases for the test, if one is due.

        ``download`` is the score of the downloaded model where missing classes are measured.
        """
        own, asked_globally = self.data.own_test(job.client), job.test_globally or self._sample(job) is not None
        scores: Scores = {}
        if own is None and not asked_globally:
            return scores
        if personal:
            weights = self.algorithm.compose(weights, session.view, "view")
        if self.algorithm.test_phases:
            if own is not None:
                scores["unadapted"] = yield Test(weights, own, session)
            if not job.due:
                return scores
            weights = yield from self._adapted(job, session, weights)
        if own is not None:
            scores["after"] = yield Test(weights, own, session)
        if asked_globally:
            scores.update((yield from self._scores_globally(job, session, weights, download)))
        return scores

    def _scores_globally(
        self, job: Job, session: ClientSession, weights: Tree, download: Score | None
    ) -> Asking[Scores]:
        """A model on the global test set, and the measures of missing classes on a sample of it, as asked for."""
        test, sampled = self.data.test, self._sample(job)
        scores: Scores = {}
        if job.test_globally:
            scores["globally"] = yield Test(weights, test, session)
        if sampled is not None:
            known = scores.get("globally") if sampled is test else None
            after = known or (yield Test(weights, sampled, session))
            owned = (self.algorithm.facts.counts[job.client] > 0).tolist()
            scores["missing"] = measures(download, after, owned, self._rare)
        return scores

    def score(self, ask: Test) -> Score:
        """Tests a client's model."""
        session = ask.session
        return self._tester.score(ask.weights, ask.samples, session.view.views, session.info, session.round)
