"""Which figures a report has: every kind of ``fedexp.report.figures`` that the runs at hand can give."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter
from itertools import chain, combinations, zip_longest
from typing import Any

from fedexp.errors import ConfigError
from fedexp.report import frames
from fedexp.report.extra import pandas
from fedexp.report.figures.figure import Figure
from fedexp.report.figures.kinds import KINDS, Kind
from fedexp.report.figures.style import TooManyError
from fedexp.report.html.blocks import Drawing
from fedexp.report.html.layout import METHOD, REFERENCE, SEED, Layout
from fedexp.report.load import Runs
from fedexp.report.measure import Metric, both_goals, values
from fedexp.terminal.numbers import count

MAX_ROUNDS = 120  # of a line
MAX_OF_A_KIND = 4  # figures over hyper-parameters
LEADING = 8  # methods that are drawn where all of them do not fit
SCENES = ("panels", "scenes", "across")  # options that take the settings of scenes
OTHERS = "others"  # where kinds are shown that ``PLAN`` does not name


@dataclass(frozen=True)
class Wanted:
    """A figure that a report has if the runs can give it."""

    where: str  # the section
    kind: str
    title: str = ""  # the figure's own, if nothing is said
    options: Mapping[str, str] = field(default_factory=dict)


PLAN = (
    Wanted("results", "curves", "Aggregation over rounds"),
    Wanted("results", "curves", "Personalization over rounds", {"metric": "personalization.accuracy"}),
    Wanted("results", "plane"),
    Wanted("parameters", "parameter"),
    Wanted("parameters", "heatmap", options={"metric": "aggregation.mean"}),
    Wanted("parameters", "heatmap", options={"metric": "personalization.mean"}),
    Wanted("missing", "curves", "Absent classes over rounds", {"metric": "missing.absent"}),
    Wanted("missing", "curves", "Forgotten in local training", {"metric": "missing.forgotten"}),
    Wanted("missing", "curves", "Answers that are owned classes", {"metric": "missing.predicted_owned"}),
    Wanted("missing", "curves", "Rare classes over rounds", {"metric": "missing.rare"}),
    Wanted("clients", "gains"),
    Wanted("clients", "fairness"),
    Wanted("clients", "zigzag"),
    Wanted("clients", "classes", "Aggregation by class, last round"),
    Wanted("clients", "classes", "Personalization by class, last round", {"goal": "personalization"}),
    Wanted("clients", "partition"),
    Wanted(
        OTHERS, "observed", "Class vectors of a client's own and of missing classes",
        {"numbers": "classifier.trained.norm_observed,classifier.trained.norm_missing", "split": "lines"},
    ),
    Wanted(
        OTHERS, "observed", "Angles between class means",
        {"numbers": "class_means.aggregated.angle,class_means.trained.angle"},
    ),
    Wanted("cost", "curves", "Aggregation over bytes", {"x": "bytes"}),
    Wanted("cost", "curves", "Aggregation over seconds", {"x": "seconds"}),
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """The figures of a report by section, and what could not be drawn."""

    drawn: Mapping[str, Sequence[Drawing]]
    refused: Sequence[str]  # a sentence each

    def of(self, section: str) -> tuple[Drawing, ...]:
        """Those of a section."""
        return tuple(self.drawn.get(section, ()))


def figures_of(runs: Runs, layout: Layout) -> Figures:
    """Draws whatever these runs can give."""
    thin = runs.thinned(MAX_ROUNDS)
    planned = {wanted.kind for wanted in PLAN}
    drawn: dict[str, list[Drawing]] = {}
    refused: dict[str, None] = {}
    for wanted in (*PLAN, *(Wanted(OTHERS, name) for name in KINDS if name not in planned)):
        try:
            figures = list(_attempts(wanted, thin, layout))
        except ConfigError as reason:
            if wanted.where == OTHERS:  # figures of what probes have seen, and of a paper's own scenes
                continue
            refused[f"{wanted.title or KINDS[wanted.kind].about.rstrip('.')}: {reason}"] = None
            continue
        for figure in figures:
            number = sum(map(len, drawn.values())) + 1
            drawn.setdefault(wanted.where, []).append(
                drawing(figure, f"figure-{number}", KINDS[wanted.kind], wanted.title)
            )
    return Figures(drawn, list(refused))


def drawing(figure: Figure, name: str, kind: Kind | None = None, title: str = "") -> Drawing:
    """A figure as a part of a page, which writes title and caption itself."""
    spec: dict[str, Any] = figure.chart.to_dict(validate=False)  # which takes longer than all else
    spec.pop("config", None)
    spec.pop("$schema", None)
    shown = title or figure.title
    methods = sorted(set(map(str, figure.data["method"]))) if "method" in figure.data else []
    told = [shown + ".", kind.about if kind else "", f"Shown: {', '.join(methods)}." if methods else "", figure.caption]
    return Drawing(name, shown, figure.caption, " ".join(filter(None, told)), spec)


def _attempts(wanted: Wanted, runs: Runs, layout: Layout) -> Iterator[Figure]:
    """The figures of a kind: of all runs, or else of those of the first seed, or else of each of these."""
    kind = KINDS[wanted.kind]
    for options in _options(wanted, kind, runs, layout):
        try:
            yield kind(runs, options)
        except TooManyError:
            yield _of_leading(kind, runs, layout, options)
        except ConfigError:
            if "over" in kind.options:  # it knows what to do with several seeds
                raise
            yield from _of_one_seed(kind, runs, layout, options)


def _of_leading(kind: Kind, runs: Runs, layout: Layout, options: Mapping[str, Any]) -> Figure:
    """The figure of the reference and of the methods that are best in either goal."""
    labels = dict(zip(runs.done.config["run"], frames.labels(runs.done.config, layout.methods), strict=True))
    names = leading(runs, labels)
    figure = kind(runs.only(run for run, label in labels.items() if label in names), options)
    first = f"{REFERENCE} and " if REFERENCE in names else ""
    told = f"Of {len(set(labels.values()))} methods {first}those that are best in either goal."
    return replace(figure, caption=f"{figure.caption} {told}")


def leading(runs: Runs, labels: Mapping[str, str]) -> set[str]:
    """The reference and the methods with the highest means of both goals, in turns, as many as fit.

    Args:
        runs: The runs.
        labels: The method of each finished run.
    """
    ranked = []
    for name in both_goals(runs):
        found = values(runs, Metric(name))
        means = found["value"].groupby(found["run"].map(labels)).mean()
        ranked.append(list(means.sort_values(ascending=False).index))
    turns = chain.from_iterable(zip_longest(*ranked))
    first = [REFERENCE] if REFERENCE in labels.values() else []
    return set(list(dict.fromkeys(name for name in (*first, *turns) if name is not None))[:LEADING])


def _of_one_seed(kind: Kind, runs: Runs, layout: Layout, options: Mapping[str, Any]) -> Iterator[Figure]:
    config = runs.done.config
    if config.empty:
        return
    first = runs.done.only(config[config[SEED] == config[SEED].min()]["run"])
    try:
        yield kind(first, options)
    except ConfigError:
        known: dict[str, tuple[Figure, list[str]]] = {}
        for run in first.found:
            figure = kind(first.only([run.name]), options)
            known.setdefault(json.dumps(figure.chart.to_dict(validate=False), default=str), (figure, []))[1].append(
                run.name
            )
        for figure, names in list(known.values())[:MAX_OF_A_KIND]:
            yield replace(figure, title=f"{figure.title}, {_shared(first.only(names), layout)}")


def _shared(runs: Runs, layout: Layout) -> str:
    """What runs have in common that others have not."""
    first = runs.config.iloc[0]
    return frames.label({key: first[key] for key in layout.keys if runs.config[key].nunique() == 1})


def _options(wanted: Wanted, kind: Kind, runs: Runs, layout: Layout) -> Iterator[dict[str, Any]]:
    """The options to draw a kind with; several if it needs settings to be named, one for each choice of these."""
    lacking = [name for name, option in kind.options.items() if option.default is Parameter.empty]
    needed = [name for name in lacking if name not in wanted.options]
    choices = list(combinations(_varying(runs, layout), len(needed)))
    if not choices:
        raise ConfigError(f"it needs {count(len(needed), 'varied setting')} with numbers.")
    for chosen in choices[:MAX_OF_A_KIND]:
        options: dict[str, Any] = {**dict(zip(needed, chosen, strict=True)), **wanted.options}
        methods, scenes = (tuple(k for k in keys if k not in chosen) for keys in (layout.methods, layout.scenes))
        usual = {"by": methods or (METHOD,), **dict.fromkeys(SCENES, scenes)}
        yield {**{name: keys for name, keys in usual.items() if name in kind.options}, **options}


def _varying(runs: Runs, layout: Layout) -> list[str]:
    """The settings of methods and scenes that are numbers, with several values."""
    config = runs.done.config
    return [
        key
        for key in dict.fromkeys((*layout.methods, *layout.scenes))
        if key in config and pandas().to_numeric(config[key], errors="coerce").nunique() > 1
    ]
