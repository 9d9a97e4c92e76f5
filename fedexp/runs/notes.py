"""What the user is told of a run before it begins, because she might not expect it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedexp.config.compose import Config, federation
from fedexp.core.algorithm import Algorithm
from fedexp.evaluate.protocol import EvaluationProtocol
from fedexp.partition.base import ClientSplit
from fedexp.server.sampler import cohort_size
from fedexp.server.update import Weighting

LARGE_FINAL = 0.25  # share of all training after the last round, above which the user is told


def unlike_the_paper(algorithm: Algorithm, weighting: Weighting, protocol: EvaluationProtocol) -> Iterator[str]:
    """Says so if a method's paper weighs or evaluates otherwise."""
    ours = {"weighting": weighting, "evaluate": protocol.name}
    papers = dict.fromkeys(c.paper for c in algorithm.components.values() if c.paper is not None)
    for paper in papers:
        theirs = {"weighting": paper.weighting, "evaluate": paper.evaluate}
        if other := [key for key in ours if ours[key] != theirs[key]]:
            has = (", ".join(f"{key}={of[key]}" for key in other) for of in (theirs, ours))
            yield "algo: {}'s paper has {}; this run has {}.".format(paper.name, *has)


def centralized(config: Config) -> Iterator[str]:
    """Says so if one client has everything."""
    if config["centralized"]:
        yield f"centralized: one client has the samples of all {config['cohort']['clients']:,}."


def nothing_to_measure(algorithm: Algorithm, splits: Sequence[ClientSplit]) -> Iterator[str]:
    """Says so if no accuracy can be measured."""
    if not algorithm.global_view and not any(len(s.test) for s in splits):
        yield (
            "no accuracy will be measured: the method has no global model to test, and no client has a test set. "
            "partition.test=holdout gives each one."
        )


def after_the_last_round(
    config: Config, algorithm: Algorithm, protocol: EvaluationProtocol, splits: Sequence[ClientSplit]
) -> Iterator[str]:
    """Says so if much of the work comes after the rounds."""
    if not any(len(s.test) for s in splits):
        return
    again, epochs = len(protocol.final_clients(algorithm.facts)), protocol.finetune_epochs_for(algorithm)
    more = again + (epochs is not None) * len(splits)
    rounds = config["rounds"] * cohort_size(*federation(config))
    if again > LARGE_FINAL * (rounds + more):
        fewer = ", and evaluate.all_clients=100 takes 100 of them" if again > 100 else ""
        yield (
            f"evaluate: clients trained and tested once more after the last round: {again:,}, which is about "
            f"{100 * again / (rounds + more):.0f} % of all training. evaluate.all_clients=false leaves that out{fewer}."
        )
    if more - again > LARGE_FINAL * (rounds + more):
        yield (
            f"evaluate: clients fine-tuned after the last round: {more - again:,}, each for "
            f"evaluate.finetune_epochs={epochs:g}."
        )
