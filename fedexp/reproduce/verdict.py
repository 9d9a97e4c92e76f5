"""What may be said of a published number when ours stands beside it.

The claim is equivalence, tested by two one-sided tests at 5 %: our 90 % interval over seeds lies within the tolerance
around the published number. "Not significantly different" would say nothing, since three seeds rarely differ
significantly from anything. Free of torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedexp.reproduce.entry import Entry, Number
from fedexp.reproduce.measure import NEEDS_ALL, Cell, Measure
from fedexp.reproduce.results import Result
from fedexp.reproduce.sample import Sample, averaged, sample
from fedexp.reproduce.tolerance import ACCURACY_RULE, COUNTS, GAIN_RULE, Tolerance, tolerance
from fedexp.terminal.numbers import count

LEVEL = 0.9  # of the interval: two one-sided tests at 5 %
MIN_SEEDS = 3  # with fewer, no interval over seeds is formed

NOT_COMPARED = ("missing", "failed", "reduced")  # words of verdicts that no tolerance has a part in

FEW_SEEDS = (
    f"With fewer than {MIN_SEEDS} seeds there is no interval: a run of ours is taken to be as noisy as the tolerance, "
    "so n of them are below or above only if their mean is further off than the tolerance times 1 + 1/√n, and "
    "compatible otherwise."
)
UNTUNED = (
    "The paper's number is the best of several hyper-parameter settings, ours is of one setting: expect it a little "
    "lower."
)
TUNED = "Each number of ours is that of the setting with the best mean, chosen on the test set, as in the paper."


@dataclass(frozen=True)
class Verdict:
    """Ours beside a published number."""

    word: str  # reproduced | compatible | below | above | reduced | missing | failed | unjudged
    ours: float | None
    by_seed: Mapping[int, float]
    interval: tuple[float, float] | None
    published: Number | None
    difference: float | None
    tolerance: Tolerance
    why: str
    tried: tuple[float, ...] = ()  # mean of each hyper-parameter setting, if there are several

    @property
    def values(self) -> tuple[float, ...]:
        """One per seed."""
        return tuple(self.by_seed.values())

    @property
    def spread_of_settings(self) -> float | None:
        """The standard deviation over hyper-parameter settings."""
        return statistics.stdev(self.tried) if len(self.tried) > 1 else None


def remarks(entry: Entry, verdicts: Iterable[Verdict], *, tune: str) -> Iterator[str]:
    """The sentences about verdicts that belong in the foot of an entry's table."""
    rules = dict.fromkeys(verdict.tolerance.rule for verdict in verdicts if verdict.word not in NOT_COMPARED)
    if not rules:
        return
    yield from rules
    if rules.keys() & {ACCURACY_RULE, GAIN_RULE}:
        yield FEW_SEEDS
    if entry.tuned:
        yield TUNED if tune == "paper" else UNTUNED
    if entry.seeds > 1:
        yield f"The paper's numbers are means over {entry.seeds} seeds."


def judge(number: Number, entry: Entry, results: Sequence[Result], *, tune: str) -> Verdict:
    """Compares a published number with our results.

    Args:
        number: The published number.
        entry: Its table.
        results: All results of the table, or at least those of the number's cell; of all of its scenes if it is a mean.
        tune: ``paper``: the best hyper-parameter setting is taken; ``none``: the method's own values.
    """
    measure = next((m for m in entry.measures if m.metric == number.metric and m.computed), None)
    worked_out = _computed(number.cell, measure, entry, results, tune=tune) if measure else None
    ours = worked_out or _sample(number.cell, entry, results, tune=tune)
    allowed = tolerance(number, entry)
    mean = statistics.fmean(ours.values.values()) if ours.values else None
    blank = Verdict(
        word="missing",
        ours=mean,
        by_seed=ours.values,
        interval=interval(list(ours.values.values()), LEVEL) if len(ours.values) >= MIN_SEEDS else None,
        published=number,
        difference=None if mean is None else mean - number.value,
        tolerance=allowed,
        why="",
        tried=ours.tried,
    )
    word, why = _word(blank, ours)
    if word == "unjudged" and number.metric == "seconds":
        why = _ratio(number, entry, blank, results, tune=tune)
    return replace(blank, word=word, why=why)


def _sample(cell: Cell, entry: Entry, results: Sequence[Result], *, tune: str) -> Sample:
    """Our numbers of a cell, or of the scenes that it is the mean of."""
    setting, method, metric = cell
    scenes = entry.members(setting) or (setting,)
    found = {scene: sample([r for r in results if r.cell == (scene, method, metric)], tune=tune) for scene in scenes}
    return found[setting] if list(found) == [setting] else averaged(found)


def _computed(cell: Cell, measure: Measure, entry: Entry, results: Sequence[Result], *, tune: str) -> Sample | None:
    """What is worked out from other cells of its setting as they are shown: from tuned ones, from means over scenes.

    None if one that is needed has no number, or one of runs that are reduced in something else: then what was worked
    out from runs counts.
    """
    setting, method, _ = cell
    own = _sample((setting, method, measure.of), entry, results, tune=tune)
    printed = {n.method for n in entry.numbers if (n.setting, n.metric) == (setting, measure.of)}
    samples = {name: _sample((setting, name, measure.of), entry, results, tune=tune) for name in printed}
    alike = {name: one.values for name, one in samples.items() if one.reduced == own.reduced}
    values: dict[int, float] = {}
    for seed in own.values:
        cells = {(setting, name, measure.of): by_seed[seed] for name, by_seed in alike.items() if seed in by_seed}
        value = measure.computed_from(cells, setting, method)
        if value is not None and (measure.rule != NEEDS_ALL or len(cells) == len(printed)):
            values[seed] = value
    return replace(own, values=values, tried=()) if values else None


def interval(values: Sequence[float], level: float) -> tuple[float, float]:
    """Student's interval of the mean of at least two values."""
    from scipy.stats import t

    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = float(t.ppf((1 + level) / 2, len(values) - 1)) * error
    return mean - half, mean + half


def _word(verdict: Verdict, ours: Sample) -> tuple[str, str]:
    """The word of a verdict that is complete but for it, and why."""
    runs = len(ours.values) + len(ours.failed) + ours.unfinished
    if ours.failed:
        return "failed", f"{len(ours.failed)} of {count(runs, 'run')} failed: {ours.failed[0]}"
    if not ours.values:
        return "missing", ours.absent or f"{count(ours.unfinished, 'run')} not finished"
    if ours.reduced:
        return "reduced", ours.reduced
    word, why = _compared(verdict)
    notes = [
        *([f"best of {count(len(ours.tried), 'setting')}"] if ours.tried else []),
        *([f"{count(ours.unfinished, 'run')} not finished"] if ours.unfinished else []),
    ]
    return word, "; ".join([why, *notes])


def _compared(verdict: Verdict) -> tuple[str, str]:
    """The word of a mean or an interval against a tolerance."""
    points, difference = verdict.tolerance.points, verdict.difference
    if points is None or difference is None or verdict.published is None:
        return "unjudged", "no error is known for this number"
    seeds = count(len(verdict.values), "seed")
    if verdict.published.metric in COUNTS:
        same = abs(difference) <= points * (1 + 1e-9)
        return ("reproduced" if same else _side(difference)), "a count"
    if verdict.interval is None:
        far = abs(difference) > points * (1 + 1 / math.sqrt(len(verdict.values)))
        return (_side(difference), f"{seeds}, too far off") if far else ("compatible", f"{seeds}, no interval")
    low, high = (end - verdict.published.value for end in verdict.interval)
    if -points <= low and high <= points:
        return "reproduced", f"{seeds}, interval within the tolerance"
    if high < -points or low > points:
        return _side(difference), f"{seeds}, interval outside the tolerance"
    return "compatible", f"{seeds}, interval only overlaps the tolerance"


def _ratio(number: Number, entry: Entry, verdict: Verdict, results: Sequence[Result], *, tune: str) -> str:
    """Seconds relative to the first method of the table, ours and the paper's."""
    unit = next(n for n in entry.numbers if (n.setting, n.metric) == (number.setting, number.metric))
    theirs = sample([r for r in results if r.cell == unit.cell], tune=tune)
    taken = statistics.fmean(theirs.values.values()) if theirs.values and not theirs.reduced else 0.0
    if verdict.ours is None or not taken:
        return f"no run of {unit.method} of full length to compare with"
    ratio = verdict.ours / taken
    return f"{ratio:.2f} times {unit.method}, in the paper {number.bound}{number.value / unit.value:.2f} times"


def _side(difference: float) -> str:
    return "below" if difference < 0 else "above"
