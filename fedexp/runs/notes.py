"""What the user is told of a run before it begins, because she might not expect it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from fedexp.client.batched.reasons import Stackable
from fedexp.client.messages import Local
from fedexp.config.compose import Config, federation
from fedexp.core.algorithm import Algorithm
from fedexp.data.federated import FederatedData
from fedexp.evaluate.protocol import EvaluationProtocol
from fedexp.models.split import SplitModel
from fedexp.partition.base import ClientSplit
from fedexp.server.sampler import cohort_size
from fedexp.server.update import Weighting

LARGE_FINAL = 0.25  # share of all training after the last round, above which the user is told
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TINY, LARGE = 20_000, 100_000  # parameters up to which loop=batched pays on a CPU, and from which it does not
MANY = 10  # clients in a round from which it pays
GAIN = "1.5 to 6"  # times faster, with 10 to 100 clients in a round and batches of 8 to 64
MANY_TESTED = 2  # samples that clients are tested on for missing classes for each that they train on, likewise


def unlike_the_paper(algorithm: Algorithm, weighting: Weighting, protocol: EvaluationProtocol) -> Iterator[str]:
    """Says so if a method's paper weighs or evaluates otherwise."""
    ours = {"weighting": weighting, "evaluate": protocol.name}
    papers = dict.fromkeys(c.paper for c in algorithm.components.values() if c.paper is not None)
    for paper in papers:
        theirs = {"weighting": paper.weighting, "evaluate": paper.evaluate}
        if other := [key for key in ours if ours[key] != theirs[key]]:
            has = (", ".join(f"{key}={of[key]}" for key in other) for of in (theirs, ours))
            yield "algo: {}'s paper has {}; this run has {}.".format(paper.name, *has)


def of_components(algorithm: Algorithm) -> Iterator[str]:
    """What the components say themselves."""
    yield from (f"algo.{k}: {n}" for k, c in algorithm.components.items() if (n := c.note(algorithm.facts)))


def centralized(config: Config, algorithm: Algorithm, data: FederatedData) -> Iterator[str]:
    """Says so if one client has everything, and for how long it is trained."""
    if not config["centralized"]:
        return
    local = Local(**config["local"])
    per_epoch = data.steps_per_epoch(0, local.batch_size)
    steps = [config["rounds"] * len(local.steps(phase, per_epoch)) for phase in algorithm.phases]
    batches = sum(taken * phase.batches for taken, phase in zip(steps, algorithm.phases, strict=True))
    yield (
        f"centralized: one client has the samples of all {config['cohort']['clients']:,}; its numbers are those of "
        f"{sum(steps):,} steps, {batches / per_epoch:,g} epochs over them."
    )


def nothing_to_measure(algorithm: Algorithm, splits: Sequence[ClientSplit]) -> Iterator[str]:
    """Says so if no accuracy can be measured."""
    if not algorithm.global_view and not any(len(s.test) for s in splits):
        yield (
            "no accuracy will be measured: the method has no global model to test, and no client has a test set. "
            "partition.test=holdout gives each one."
        )


def missing_classes(config: Config, protocol: EvaluationProtocol, data: FederatedData) -> Iterator[str]:
    """Says so if measuring missing classes takes longer than training."""
    there = len(data.test)
    tested = there * protocol.missing if isinstance(protocol.missing, bool) else min(protocol.missing, there)
    clients, fraction = federation(config)
    cohort = cohort_size(clients, fraction)
    tested *= protocol.count_measured(cohort)
    trained = cohort * config["local"]["epochs"] * float(data.counts.sum(1).mean())
    if tested > MANY_TESTED * trained * config["every"]["evaluate"]:
        yield (
            f"evaluate.missing: clients are tested on {tested:,} samples of the global test set in a round, but train "
            f"on about {trained:,.0f}. every.evaluate=10 tests in every tenth round only, and evaluate.missing=false "
            "leaves this test out."
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


def stacking(
    config: Config, algorithm: Algorithm, net: SplitModel, can: Callable[[], Stackable], device: torch.device
) -> Iterator[str]:
    """Says which phases ``loop=batched`` does not do for many clients at once, and where it would pay or does not."""
    size = sum(p.numel() for p in net.parameters())
    convolves = any(isinstance(m, CONVOLUTIONS) for m in net.modules())
    if "group" not in config["loop"]:
        cohort = cohort_size(*federation(config))
        pays = size <= TINY and cohort >= MANY and not convolves and device.type == "cpu"
        if pays and not can().one_by_one:
            yield (
                f"loop: with {size:,} parameters a step is mostly overhead. loop=batched takes the steps of many "
                f"clients at once, about {GAIN} times faster with {cohort:,} of them in a round; numbers are equal to "
                "rounding, and the run has another id."
            )
        return
    found = can()
    for phase in algorithm.all_phases:
        if phase.name in found.one_by_one:
            why = found.one_by_one[phase.name]
            yield f"loop=batched: phase {phase.name!r} is trained one client after another, because {why}."
        elif phase.name in found.by_size:
            yield (
                f"loop=batched: in phase {phase.name!r} only clients whose batches have the same size take a step "
                f"together, because {found.by_size[phase.name]}."
            )
    if device.type == "cpu" and (convolves or size > LARGE):
        kind = "convolutions" if convolves else f"a network of {size:,} parameters"
        yield f"loop=batched is slower than loop=fabric on a CPU for {kind}; it pays for tiny perceptrons."
