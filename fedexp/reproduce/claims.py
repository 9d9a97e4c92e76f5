"""The papers' main claims, as comparisons of cells.

A claim is a list of comparisons, kept in ``claims.yaml``. A comparison is a weighted sum of cells, paired by seed, that
must be above a margin: two cells for "A is above B", four for "the lead of A over B shrinks". What our results say of
them is decided in ``fedexp.reproduce.claim_verdict``. Free of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fedexp.errors import ConfigError
from fedexp.reproduce.entry import Entry, Method
from fedexp.reproduce.measure import Measure

FILE = Path(__file__).with_name("claims.yaml")
ANY = "*"  # tuning of a term that stands for every setting that was tried


@dataclass(frozen=True)
class Term:
    """A cell in a sum."""

    weight: float
    setting: str
    tuning: str  # as in ``Result``
    method: str
    metric: str


@dataclass(frozen=True)
class Comparison:
    """A sum of cells that is to be above a margin."""

    entry: str  # whose runs decide
    part: str  # what is compared; a claim needs each of its parts
    where: str
    terms: tuple[Term, ...]
    margin: float = 0.0
    stand_in: bool = False
    settings: int = 0  # hyper-parameter settings that a term with ``ANY`` stands for

    def with_tuning(self, tuning: str) -> Comparison:
        """The same for one hyper-parameter setting."""
        terms = tuple(replace(term, tuning=tuning) if term.tuning == ANY else term for term in self.terms)
        return replace(self, where=f"{self.where} {tuning}", terms=terms, settings=0)

    def with_readings(self, readings: Iterable[Method]) -> Comparison:
        """The same with other readings of its methods."""
        names = {reading.reading_of: reading.name for reading in readings}
        terms = tuple(replace(term, method=names.get(term.method, term.method)) for term in self.terms)
        instead = f"with {' and '.join(names.values())} in place of {' and '.join(names)}"
        return replace(self, where=f"{instead}, {self.where}", terms=terms)


@dataclass(frozen=True)
class Claim:
    """What a paper says."""

    id: str  # map/both-goals
    says: str
    source: str
    comparisons: tuple[Comparison, ...] = ()
    probe: str = ""  # what to look at, where no comparison decides
    because: str = ""  # why it was refuted here

    @property
    def paper(self) -> str:
        """The paper's short name."""
        return self.id.partition("/")[0]


@cache
def claims() -> tuple[Claim, ...]:
    """All claims, in the file's order."""
    return tuple(_claim(told) for told in _read()["claims"])


def measures(entry: Entry, method: str) -> tuple[Measure, ...]:
    """What claims need from a run of a method besides the measures of its entry."""
    known = _read()["measures"].get(entry.paper, {})
    used = {
        term.metric
        for claim in claims()
        if claim.paper == entry.paper
        for comparison in claim.comparisons
        for term in comparison.terms
        if term.method == method
    }
    printed = {measure.metric for measure in entry.measures}
    return tuple(Measure(metric, **how) for metric, how in known.items() if metric in used - printed)


# ---------------------------------------------------------------- reading
Place = tuple[str, str]  # a scene, and what a figure varies in it
Sums = Iterator[tuple[str, list[Term]]]  # what is compared, and how


def _above(told: Mapping[str, Any], place: Place, *, tuning: str | None = None) -> Sums:
    setting, varied = place
    times, words = _times(told)
    for rival in told["lower"]:
        yield (
            f"{told['higher']} − {words}{rival}, {told['metric']}",
            [
                Term(1, setting, tuning or varied, told["higher"], told["metric"]),
                Term(-times, setting, varied, rival, told["metric"]),
            ],
        )


def _every_setting(told: Mapping[str, Any], place: Place) -> Sums:
    return _above(told, place, tuning=ANY)


def _gap_shrinks(told: Mapping[str, Any], wide: Place, narrow: Place) -> Sums:
    leads = zip(_above(told, wide), _above(told, narrow), strict=True)
    for (part, first), (_, second) in leads:
        yield f"shrinkage of {part}", [*first, *(replace(term, weight=-term.weight) for term in second)]


def _drops(told: Mapping[str, Any], first: Place, second: Place) -> Sums:
    method, metric = told["method"], told["metric"]
    yield f"drop of {method}, {metric}", [Term(1, *first, method, metric), Term(-1, *second, method, metric)]


def _fades(told: Mapping[str, Any], place: Place) -> Sums:
    method, early, late = told["method"], told["early"], told["late"]
    times, words = _times(told)
    yield f"{method}, {early} − {words}{late}", [Term(1, *place, method, early), Term(-times, *place, method, late)]


def _times(told: Mapping[str, Any]) -> tuple[float, str]:
    """How many times the lower one is taken off, and in words."""
    times = told.get("times", 1)
    return times, f"{times:g} · " if times != 1 else ""


KINDS: Mapping[str, Callable[..., Sums]] = {
    "above": _above, "every_setting": _every_setting, "gap_shrinks": _gap_shrinks, "drops": _drops, "fades": _fades,
}  # fmt: skip


@cache
def _read() -> Mapping[str, Any]:
    content: Mapping[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return content


def _claim(told: Mapping[str, Any]) -> Claim:
    rest = {key: value for key, value in told.items() if key != "decided_by"}
    return Claim(**rest, comparisons=tuple(c for item in told.get("decided_by", ()) for c in _comparisons(item)))


def _comparisons(told: Mapping[str, Any]) -> Iterator[Comparison]:
    if told["kind"] not in KINDS:
        raise ConfigError(f"claims.yaml: kind {told['kind']!r} is not known. Known: {', '.join(KINDS)}.")
    for stand_in, key in ((False, "scenes"), (True, "stand_ins")):
        for where in told.get(key, ()):
            texts = [where] if isinstance(where, str) else where
            for part, terms in KINDS[told["kind"]](told, *map(_place, texts)):
                yield Comparison(
                    entry=told["entry"],
                    part=part,
                    where=" → ".join(texts),
                    terms=tuple(terms),
                    margin=float(told.get("margin", 0)),
                    stand_in=stand_in,
                    settings=told.get("settings", 0),
                )


def _place(text: str) -> Place:
    setting, _, varied = text.partition(" ")
    return setting, varied
