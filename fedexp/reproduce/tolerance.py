"""How far our number may be from a published one and still be the same, by the rule of its kind. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedexp.reproduce.entry import Entry, Number

CAP = 1.5  # points, where the paper prints no spread over seeds

ACCURACIES = frozenset(
    {"aggregation", "personalization", "GA", "PA", "accuracy", "accuracy_best", "accuracy_final"},
)
GAINS = frozenset({"gain_over_fedavg", "gain_over_best", "PA_gap_to_fedgela", "GA_gap_to_fedgela"})
COUNTS = frozenset(
    {
        "clients", "classes", "classes_per_client", "samples_per_client", "test_samples", "rounds", "epochs",
        "fraction", "lr", "momentum", "batch", "parameters", "feature_dim", "layers", "parameters_million",
        "extra_percent",
    }
)  # fmt: skip

ACCURACY_RULE = (
    "Tolerance of an accuracy: the larger of the paper's own spread, if it is over seeds, twice the binomial error "
    f"of its test set, and half of the last printed digit; at most {CAP} points where the paper prints no spread over "
    "seeds, and just that where the size of its test set is not known either. What else differs between two runs of "
    "the paper's, such as its draws, is left out where no spread over seeds is printed."
)
GAIN_RULE = (
    "Tolerance of a gain: √2 times twice the largest binomial error of the test set, since both accuracies have one, "
    f"or half of the last printed digit if that is larger; at most {CAP} points."
)
COUNT_RULE = "A count agrees if it is the printed one after rounding to the printed digits."
NO_RULE = (
    "Seconds, rounds that a run needs and variances get no verdict: the papers print no error for them. Seconds depend "
    "on the machine; their ratio within the table is what compares."
)


@dataclass(frozen=True)
class Tolerance:
    """How far from a published number is still the same."""

    points: float | None  # None: nothing can be said
    rule: str  # the sentence in the foot of the table
    basis: str = ""  # what decided here: "2 binomial errors of 10,000 samples"


def tolerance(number: Number, entry: Entry) -> Tolerance:
    """How far our mean may be from a number, by the rule of its kind."""
    if number.metric in ACCURACIES:
        return _of_accuracy(number, entry)
    if number.metric in GAINS:
        return _of_gain(number, entry)
    if number.metric in COUNTS:
        return Tolerance(number.rounding, COUNT_RULE, "printed digits")
    return Tolerance(None, NO_RULE)


def _of_accuracy(number: Number, entry: Entry) -> Tolerance:
    over_seeds = number.spread if entry.spread == "seeds" else None
    sizes = _test_sizes(number, entry)
    error = _binomial(number.value, sizes)
    if over_seeds is None and error is None:
        return Tolerance(CAP, ACCURACY_RULE, f"neither a spread over seeds nor the test set's size known: {CAP} points")
    bases = {"half of the last digit": number.rounding}
    if over_seeds is not None:
        bases["the paper's spread over seeds"] = over_seeds
    if error is not None:
        bases[_errors_of(sizes)] = 2 * error
    basis = max(bases, key=bases.__getitem__)
    if over_seeds is None and bases[basis] > CAP:
        return Tolerance(CAP, ACCURACY_RULE, f"{basis}, capped")
    return Tolerance(bases[basis], ACCURACY_RULE, basis)


def _of_gain(number: Number, entry: Entry) -> Tolerance:
    sizes = _test_sizes(number, entry)
    error = _binomial(50.0, sizes)
    if error is None:
        return Tolerance(CAP, GAIN_RULE, f"the test set's size is not known: {CAP} points")
    bases = {"half of the last digit": number.rounding, f"√2 · {_errors_of(sizes)}": 2 * math.sqrt(2) * error}
    basis = max(bases, key=bases.__getitem__)
    return Tolerance(min(CAP, bases[basis]), GAIN_RULE, f"{basis}{', capped' if bases[basis] > CAP else ''}")


def _errors_of(sizes: Sequence[int]) -> str:
    return f"2 binomial errors of {' + '.join(f'{n:,}' for n in sizes)} samples"


def _binomial(percent: float, sizes: Sequence[int]) -> float | None:
    """Standard error in points of an accuracy, or of the mean of several; None if no test set's size is known."""
    if not sizes:
        return None
    share = min(max(percent / 100, 0.0), 1.0)
    return 100 * math.sqrt(sum(share * (1 - share) / n for n in sizes)) / len(sizes)


def _test_sizes(number: Number, entry: Entry) -> list[int]:
    """Samples per accuracy in each scene that a number is over; empty if one is not known."""
    sizes = [entry.tested(scene, number.metric) for scene in entry.scenes_of(number)]
    known = [size for size in sizes if size is not None]
    return known if len(known) == len(sizes) else []
