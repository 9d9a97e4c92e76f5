"""What our results say of a claim.

A comparison is confirmed if the 95 % interval of its mean over seeds lies above the margin, refuted if below, undecided
if it includes it or if there are fewer than three seeds. Free of torch.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fedexp.reproduce import published
from fedexp.reproduce.claims import ANY, Claim, Comparison, Term, claims
from fedexp.reproduce.entry import Method
from fedexp.reproduce.paired import Differences, contrast
from fedexp.reproduce.results import Result
from fedexp.reproduce.verdict import MIN_SEEDS
from fedexp.terminal.numbers import count

STAND_IN = "stand-in"
WORDS = ("refuted", "confirmed", "undecided", "not run")  # the strongest first
SHOWN = 8  # lines of evidence


@dataclass(frozen=True)
class Gaps:
    """How many of a grid's hyper-parameter settings lack something, though some have runs."""

    run: int  # any run
    interval: int  # an interval
    interval_at_full_length: int  # an interval of runs at full length


@dataclass(frozen=True)
class Evidence:
    """What our results say of a comparison."""

    comparison: Comparison
    differences: Differences
    reduced: str = ""  # as in ``Result``
    failed: int = 0  # runs without a number
    gaps: Gaps | None = None  # of a grid that is not whole

    @property
    def mark(self) -> str:
        """Empty if the runs are the paper's, else in what they are not."""
        stand_in = [STAND_IN] if self.comparison.stand_in or STAND_IN in self.reduced else []
        return " ".join([*(["reduced"] if self.reduced not in ("", STAND_IN) else []), *stand_in])

    @cached_property
    def word(self) -> str:
        """confirmed, refuted, undecided or not run."""
        if not self.differences.by_seed:
            return "not run"
        if self.differences.interval is None:
            return "undecided"
        low, high = self.differences.interval
        if low > self.comparison.margin:
            return "confirmed"
        return "refuted" if high < self.comparison.margin else "undecided"

    def __str__(self) -> str:
        """``fmnist/lenet: MAP − FedAvg, aggregation: +1.20 [+0.70, +1.70], 3 seeds: … (confirmed)``."""
        if self.gaps:
            lacking, length = self.gaps.interval, ""
            if not lacking:
                lacking, length = self.gaps.interval_at_full_length, " at full length"
            what = f"{count(lacking, 'setting')} without an interval{length}"
            return f"{self.comparison.where}: {self.comparison.part}: {what}"
        notes = [self.word]
        if self.comparison.margin:
            notes.append(f"margin {self.comparison.margin:+g}".replace("-", "−"))
        if self.comparison.stand_in and STAND_IN not in self.reduced:
            notes.append(STAND_IN)
        notes += [self.reduced] if self.reduced else []
        notes += [f"{count(self.failed, 'run')} failed"] if self.failed else []
        return f"{self.comparison.where}: {self.comparison.part}: {self.differences} ({', '.join(notes)})"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim and what became of it here."""

    claim: Claim
    word: str  # confirmed | refuted | undecided | not run
    marks: tuple[str, ...]  # what kind of runs decided, if not the paper's: reduced, stand-in, reduced stand-in
    evidence: tuple[Evidence, ...]  # of comparisons that were run
    of_readings: tuple[Evidence, ...] = ()  # the same with other readings of methods, which decide nothing

    @property
    def said(self) -> str:
        """``confirmed (stand-in)``."""
        return f"{self.word} ({', '.join(self.marks)})" if self.marks else self.word

    @property
    def commands(self) -> tuple[str, ...]:
        """What to run to decide the claim: in the first stand-in, and in the paper's first scene. None if decided."""
        if self.word in ("confirmed", "refuted"):
            return ()
        kinds = (True, False)  # stand-ins are the cheaper ones
        return tuple(dict.fromkeys(c for mine in kinds for c in _commands(self.claim, self.evidence, stand_in=mine)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons and evidence, one line each; of much evidence, that of the strongest words."""
        claim = self.claim
        ordered = sorted(self.evidence, key=lambda one: WORDS.index(one.word))
        shown = self.evidence if len(ordered) <= SHOWN else ordered[:SHOWN]
        return (
            *([f"look at what a probe has seen: {claim.probe}"] if claim.probe else []),
            *([f"because {claim.because}"] if claim.because and self.word == "refuted" else []),
            *map(str, shown),
            *([f"and {len(ordered) - SHOWN} more, {_tally(ordered[SHOWN:])}"] if len(ordered) > SHOWN else []),
            *map(str, self.of_readings),
        )


def judged(results: Iterable[Result], of: Sequence[Claim] | None = None) -> list[ClaimVerdict]:
    """What our results say of each claim, of all of them if none are given.

    The paper's own scenes at full length decide where they can; where not, stand-ins and reduced runs are added, and
    the verdict says so. A claim is confirmed if each of its parts is confirmed somewhere and whatever has an interval
    is; it is refuted if anything is.
    """
    runs = _Runs(results)
    known = claims() if of is None else of
    return [
        replace(
            _verdict(claim, [e for c in claim.comparisons for e in _evidence(c, runs)]),
            of_readings=tuple(e for c in claim.comparisons for e in _of_readings(c, runs)),
        )
        for claim in known
    ]


class _Runs:
    """Results by cell, and within a cell by what they are reduced in."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._cells: dict[tuple[str, ...], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
        self._tunings: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
        self._papers: set[str] = set()
        for result in results:
            paper = result.entry.partition("/")[0]
            self._papers.add(paper)
            self._cells[paper, *result.cell, result.tuning][result.reduced].append(result)
            self._tunings[paper, *result.cell][result.tuning] = None

    def any_of(self, entry: str) -> bool:
        """Whether there are results of an entry's paper."""
        return entry.partition("/")[0] in self._papers

    def of(self, paper: str, term: Term) -> Mapping[str, Sequence[Result]]:
        return self._cells.get((paper, term.setting, term.method, term.metric, term.tuning), {})

    def tunings(self, paper: str, term: Term) -> list[str]:
        """The settings that were tried, besides the method's own values."""
        return [tuning for tuning in self._tunings.get((paper, term.setting, term.method, term.metric), {}) if tuning]


def _evidence(comparison: Comparison, runs: _Runs) -> Iterator[Evidence]:
    """At most two of a comparison: from runs of full length, and from those of the reduced ones that are closest to it.

    Runs that are reduced in different things are never compared.
    """
    paper = comparison.entry.partition("/")[0]
    if comparison.settings:
        yield from _of_each_setting(comparison, runs, paper)
        return
    cells = [runs.of(paper, term) for term in comparison.terms]
    common = set.intersection(*(set(cell) for cell in cells))
    less = sorted(common - {""}, key=lambda label: (max(r.closeness for r in cells[0][label]), label))
    found = [_compared(comparison, cells, label) for label in ([""] if "" in common else []) + less[-1:]]
    yield from found or [Evidence(comparison, Differences({}))]


def _of_each_setting(comparison: Comparison, runs: _Runs, paper: str) -> Iterator[Evidence]:
    (term,) = (term for term in comparison.terms if term.tuning == ANY)
    found = [list(_evidence(comparison.with_tuning(tuning), runs)) for tuning in runs.tunings(paper, term)]
    yield from (one for each in found for one in each)
    decided = Counter(one.reduced for each in found for one in each if one.differences.interval)
    if not found:
        yield Evidence(comparison, Differences({}))
    elif decided[""] < comparison.settings:
        with_interval = (len(found), max(decided.values(), default=0), decided[""])
        yield Evidence(comparison, Differences({}), gaps=Gaps(*(comparison.settings - n for n in with_interval)))


def _of_readings(comparison: Comparison, runs: _Runs) -> Iterator[Evidence]:
    """What there is of a comparison with other readings of its methods: of all that can be read in the same way."""
    methods = {term.method for term in comparison.terms}
    known = published.entry(comparison.entry).readings if runs.any_of(comparison.entry) else ()
    alike: dict[str, list[Method]] = {}
    for reading in known:
        if reading.reading_of in methods and not comparison.settings:
            alike.setdefault(reading.name.removeprefix(reading.reading_of), []).append(reading)
    for readings in alike.values():
        yield from (one for one in _evidence(comparison.with_readings(readings), runs) if one.word != "not run")


def _compared(comparison: Comparison, cells: Sequence[Mapping[str, Sequence[Result]]], label: str) -> Evidence:
    results = [cell[label] for cell in cells]
    weights = (term.weight for term in comparison.terms)
    return Evidence(
        comparison,
        contrast([(weight, _finished(part)) for weight, part in zip(weights, results, strict=True)]),
        reduced=label,
        failed=len({_run(r) for part in results for r in part if r.status in ("failed", "diverged")}),
    )


def _run(result: Result) -> tuple[str | int, ...]:
    """What tells runs apart; one may have several results."""
    return result.setting, result.method, result.tuning, result.seed


def _finished(results: Iterable[Result]) -> dict[int, float]:
    return {r.seed: r.value for r in results if r.status == "done" and r.value is not None and math.isfinite(r.value)}


def _verdict(claim: Claim, evidence: Sequence[Evidence]) -> ClaimVerdict:
    ran = tuple(one for one in evidence if one.word != "not run" or one.failed or one.gaps)
    papers_own = [one for one in ran if not one.mark]
    parts = {one.comparison.part for one in evidence}
    whole = not any(one.gaps for one in papers_own), not any(one.gaps and one.gaps.interval for one in ran)
    for used, all_settings in zip((papers_own, ran), whole, strict=True):
        if word := _decision(used, parts, all_settings=all_settings):
            marks = tuple(sorted({one.mark for one in used if one.mark and one.word == word}))
            return ClaimVerdict(claim, word, marks, ran)
    return ClaimVerdict(claim, "undecided" if ran else "not run", (), ran)


def _tally(evidence: Sequence[Evidence]) -> str:
    """``3 confirmed, 2 undecided``."""
    return ", ".join(f"{number} {word}" for word, number in Counter(one.word for one in evidence).items())


def _decision(evidence: Sequence[Evidence], parts: set[str], *, all_settings: bool) -> str:
    """Confirmed, refuted, or empty; confirmed only if all hyper-parameter settings of each grid have an interval."""
    words = {one.word for one in evidence if one.differences.interval is not None}
    if "refuted" in words:
        return "refuted"
    confirmed = {one.comparison.part for one in evidence if one.word == "confirmed"}
    return "confirmed" if confirmed == parts and words == {"confirmed"} and all_settings else ""


def _commands(claim: Claim, evidence: Sequence[Evidence], *, stand_in: bool) -> Iterator[str]:
    """One for each entry: in the first scene of the kind whose interval does not decide, else in the first."""
    ran = _seeds_by_place(evidence)
    open_ones = {_place(one.comparison) for one in evidence if one.word == "undecided" and one.differences.interval}
    firsts: dict[tuple[str, str], Comparison] = {}
    for comparison in sorted(claim.comparisons, key=lambda one: _place(one) not in open_ones):
        if comparison.stand_in == stand_in:
            firsts.setdefault((comparison.entry, comparison.part), comparison)
    for entry in dict.fromkeys(entry for entry, _ in firsts):
        chosen = [comparison for (of, _), comparison in firsts.items() if of == entry]
        terms = [term for comparison in chosen for term in comparison.terms]
        seeds = _lacking(set.intersection(*(ran.get(_place(comparison), set()) for comparison in chosen)))
        words = [
            f"settings={','.join(dict.fromkeys(term.setting for term in terms))}",
            f"methods={','.join(dict.fromkeys(term.method for term in terms))}",
            f"seeds={','.join(map(str, seeds))}",
            *(["tune=paper"] if any(comparison.settings for comparison in chosen) else []),
        ]
        if seeds:
            yield shlex.join(["python", "-m", "fedexp.reproduce", entry, *words])


def _seeds_by_place(evidence: Iterable[Evidence]) -> dict[object, set[int]]:
    """The seeds that were run at full length; in a grid, those of all hyper-parameter settings."""
    ran: dict[object, set[int]] = {}
    for one in evidence:
        if one.gaps is None and one.reduced in ("", STAND_IN):
            seeds = set(one.differences.by_seed)
            ran[_place(one.comparison)] = ran.get(_place(one.comparison), seeds) & seeds
    return ran | {_place(one.comparison): set() for one in evidence if one.gaps and one.gaps.run}


def _place(comparison: Comparison) -> object:
    """What a command can narrow a comparison to: not to a hyper-parameter setting."""
    return comparison.entry, comparison.part, tuple(term.setting for term in comparison.terms)


def _lacking(ran: set[int]) -> list[int]:
    """The seeds that are needed for an interval; once more as many if it is undecided.

    None after that: whoever adds seeds until an interval decides will find that one does at last.
    """
    wanted = MIN_SEEDS if len(ran) < MIN_SEEDS else 2 * MIN_SEEDS
    return [seed for seed in range(wanted) if seed not in ran]
