"""From scores to the metrics of a record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedexp.client.messages import ClientResult
from fedexp.evaluate.tester import Score


def aggregation(score: Score) -> dict[str, Any]:
    """Metrics of the server's model on the global test set."""
    return {"accuracy": score.accuracy, "loss": score.loss / score.n, "per_class": per_class([score])}


def personalization(results: Iterable[ClientResult]) -> dict[str, Any]:
    """Metrics of personal models on their owners' held-out samples, averaged over clients; empty if none was tested.

    Beside the personal model after training: ``before``, the model as it was downloaded; ``personal_before``, the
    personal model before training; ``unadapted``, the personal model without the method's test phases.
    """
    results = list(results)
    after = [r.after for r in results if r.after is not None]
    if not after:
        return {}
    others = {
        "before": [r.before for r in results if r.before is not None],
        "personal_before": [r.personal_before for r in results if r.personal_before is not None],
        "unadapted": [r.unadapted for r in results if r.unadapted is not None],
    }
    return {
        **spread([s.accuracy for s in after], [a for s in after if (a := s.owned_accuracy) is not None]),
        **{name: float(np.mean([s.accuracy for s in scores])) for name, scores in others.items() if scores},
        "per_class": per_class(after),
    }


def spread(accuracy: Sequence[float], owned: Sequence[float] = ()) -> dict[str, Any]:
    """How accuracies lie over clients. ``owned`` are those among the clients' own classes."""
    return {
        "accuracy": float(np.mean(accuracy)),
        **({"owned": float(np.mean(owned))} if owned else {}),
        "std": float(np.std(accuracy)),
        "worst_decile": worst_decile(accuracy),
        "clients": list(accuracy),
    }


def worst_decile(accuracy: Sequence[float]) -> float:
    """Mean accuracy of the worst tenth of the clients, at least one."""
    return float(np.sort(np.asarray(accuracy))[: max(len(accuracy) // 10, 1)].mean())


def per_class(scores: Sequence[Score]) -> list[float | None]:
    """Accuracy per class over all scores pooled; None for a class without samples."""
    correct = np.sum([s.correct for s in scores], axis=0)
    total = np.sum([s.total for s in scores], axis=0)
    return [float(c / t) if t else None for c, t in zip(correct, total, strict=True)]


def mean_of_each(numbers: Iterable[dict[str, float]]) -> dict[str, float]:
    """The mean of each name over those that have it."""
    numbers = list(numbers)
    names = dict.fromkeys(name for each in numbers for name in each)
    return {name: float(np.mean([n[name] for n in numbers if name in n])) for name in names}
