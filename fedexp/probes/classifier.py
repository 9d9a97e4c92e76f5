"""Class vectors of the classes that a client has, and of those it does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedexp.core.state import Tree
from fedexp.core.views import Facts, Step
from fedexp.probes.base import ClientView, Log, Place, Probe, ServerView, Value
from fedexp.probes.vectors import (
    class_vectors,
    mean_angle,
    mean_distance,
    mean_norm,
    vector_name,
    without_vectors,
)


@dataclass(frozen=True, kw_only=True)
class ClassifierProbe(Probe):
    """Norms, distances and angles of class vectors, and their gradients in local training.

    Rows ``received``, ``trained`` (the model whose end is sent) and ``aggregated`` (the server's, as a mean over the
    round's clients with the classes that each has): mean norm, mean distances O-O, O-M and M-M as in MAP, figure 6, and
    mean angles in degrees as in FedGELA, figure 2, of observed (O) and missing (M) classes. Rows ``epoch`` add the norm
    of the gradient, summed over the epoch's steps (MAP, figure 6). A row ``steps`` has the same summed over all local
    steps, and the mean probability of the true class (FedRS, figure 6). Gradients are those of the loss, before they
    are corrected or clipped.
    """

    def problems(self, facts: Facts) -> Iterator[str]:
        """Without class vectors there is nothing to see."""
        yield from super().problems(facts)
        yield from without_vectors(facts)

    def step(self, step: Step, at: Place, log: Log) -> None:
        """Adds up gradients and probabilities."""
        if step.info is None:
            return
        _end_epoch(log, step.phase, step.facts, step.weights, step.info.owned)
        name, kept = vector_name(step.facts), log.kept
        vectors = step.weights[name] if name else None
        # frozen vectors still have the gradient of whoever trained them last
        gradient = vectors.grad if vectors is not None and vectors.requires_grad else None
        for span in ("epoch", "steps"):
            if gradient is not None:
                known = kept.get(span)
                kept[span] = gradient.double() if known is None else known + gradient
        true = step.z.softmax(1).gather(1, step.y[:, None]).double()
        kept["probability"] = kept.get("probability", 0.0) + true.sum()
        kept["samples"] = kept.get("samples", 0) + len(true)
        if at.ends_epoch:  # but for the last update
            kept.setdefault("ended", {})[step.phase] = at.epoch, _gradients(log, "epoch", step.info.owned)
            kept.pop("epoch", None)

    def client(self, view: ClientView, log: Log) -> None:
        """Compares the model before and after."""
        observed = view.info.owned
        for phase, end in view.ends.items():
            _end_epoch(log, phase, view.facts, end, observed)
        for name, tree in (("received", view.received), ("trained", view.uploaded)):
            log.row(name, shape(class_vectors(view.facts, tree), observed))
        if samples := log.kept.get("samples"):
            seen = {"probability": log.kept["probability"] / samples}
            log.row("steps", {**_gradients(log, "steps", observed), **seen})

    def server(self, view: ServerView, log: Log) -> None:
        """The aggregated model, with the eyes of the round's clients."""
        if view.after is None:
            return
        vectors = class_vectors(view.facts, view.after)
        seen = [shape(vectors, view.facts.counts[client] > 0) for client in view.cohort]
        if seen:
            log.row("aggregated", {key: torch.stack([values[key] for values in seen]).nanmean(0) for key in seen[0]})


def shape(vectors: Tensor, observed: Tensor) -> dict[str, Tensor]:
    """What there is to say of class vectors; NaN where there are no such classes."""
    here, away = vectors[observed.to(vectors.device)], vectors[~observed.to(vectors.device)]
    return {
        "norm_observed": mean_norm(here),
        "norm_missing": mean_norm(away),
        "distance_oo": mean_distance(here, here),
        "distance_om": mean_distance(here, away),
        "distance_mm": mean_distance(away, away),
        "angle_observed": mean_angle(here),
        "angle_missing": mean_angle(away),
        "angle_between": mean_angle(here, away),
        "norms": vectors.norm(dim=1),
    }


def _end_epoch(log: Log, phase: str, facts: Facts, tree: Tree, observed: Tensor) -> None:
    """Writes down the epoch that ended with the last step of this phase, if one did; its vectors are known only now."""
    if ended := log.kept.get("ended", {}).pop(phase, None):
        epoch, gradients = ended
        log.row("epoch", {**shape(class_vectors(facts, tree), observed), **gradients}, epoch=epoch, phase=phase)


def _gradients(log: Log, span: str, observed: Tensor) -> Mapping[str, Value]:
    total: Tensor | None = log.kept.get(span)
    if total is None:  # nothing trains the classifier
        return {}
    return {
        "gradient_observed": mean_norm(total[observed]),
        "gradient_missing": mean_norm(total[~observed]),
        "gradients": total.norm(dim=1),
    }
