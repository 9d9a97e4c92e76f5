"""Reads what the papers print: one yaml per paper and one csv per table in ``published/``.

Settings of a run are not among them: those are in ``conf/experiment/<paper>/``, one file per scene. Free of torch.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from fedexp.config.yaml_files import LOADER
from fedexp.reproduce.entry import Entry, Method, Misprint, Number, Scene
from fedexp.reproduce.measure import Measure

FOLDER = Path(__file__).with_name("published")


@dataclass(frozen=True)
class Paper:
    """All that one paper prints."""

    entries: dict[str, Entry]
    scenes: dict[str, Scene]
    methods: dict[str, Method]


def read_paper(paper: str) -> Paper:
    """Reads one paper's files."""
    content = yaml.load((FOLDER / f"{paper}.yaml").read_text(encoding="utf-8"), LOADER)  # noqa: S506 (a safe loader)
    scenes = {name: _scene(paper, name, told) for name, told in content["scenes"].items()}
    methods = {m.name: m for name, told in content["methods"].items() for m in _methods(paper, name, told)}
    entries = {
        part: _entry(f"{paper}/{part}", told, content, scenes, methods) for part, told in content["entries"].items()
    }
    return Paper(entries, scenes, methods)


def _scene(paper: str, name: str, told: Mapping[str, Any]) -> Scene:
    return Scene(
        paper, name, f"{paper}/{name.replace('/', '_')}",
        assumed=tuple(told.get("assumed", ())), stand_in=told.get("stand_in", False), hours=told["hours"],
        instead=tuple(told.get("instead", ())), tested=tuple(told["tested"].items()),
    )  # fmt: skip


def _methods(paper: str, name: str, told: Mapping[str, Any]) -> Iterator[Method]:
    """A method as we read the paper, then as it may be read otherwise: ``<method> <reading>``, with more overrides."""
    special = tuple((pattern, tuple(more)) for pattern, more in told.get("overrides_in", {}).items())
    overrides = told["overrides"]
    method = Method(
        paper, name, None if overrides is None else tuple(overrides), told["stated"],
        grid=_grid(told.get("grid", [])), cost=told.get("cost", 1.0), grid_printed=told.get("grid_printed", False),
        special=special,
    )  # fmt: skip
    yield method
    for reading, other in told.get("readings", {}).items():
        yield replace(
            method, name=f"{name} {reading}", overrides=(*overrides, *other["overrides"]), stated=other["what"],
            grid=(), cost=other.get("cost", method.cost), reading_of=name,
        )  # fmt: skip


def _grid(told: Mapping[str, list[Any]] | list[list[str]]) -> tuple[tuple[str, ...], ...]:
    """The settings of a grid: listed, or all combinations of the values of each key."""
    if not isinstance(told, Mapping):
        return tuple(map(tuple, told))
    return tuple(product(*([f"{key}={value}" for value in values] for key, values in told.items())))


def _entry(
    name: str,
    told: Mapping[str, Any],
    paper: Mapping[str, Any],
    scenes: Mapping[str, Scene],
    methods: Mapping[str, Method],
) -> Entry:
    measures = tuple(Measure(metric, **paper["measures"][metric]) for metric in told.get("metrics", ()))
    used = (*told.get("scenes", ()), *told.get("stand_ins", ()))
    rows, numbers = told.get("methods", ()), _numbers(name)
    return Entry(
        name, told["kind"], told["title"], measures,
        scenes=tuple(told.get("scenes", ())), stand_ins=tuple(told.get("stand_ins", ())),
        methods=tuple(methods[row] for row in rows),
        readings=tuple(m for m in methods.values() if numbers and m.reading_of in rows),
        aggregates=tuple(told.get("aggregates", {}).items()),
        spread=told.get("spread"), seeds=told.get("seeds", 1), tuned=told.get("tuned", False),
        of_grids=told.get("of_grids", False),
        test_samples=tuple(
            ((s, m.metric), n)
            for s in used
            for m in measures
            for goal, n in scenes[s].tested
            if goal == _goal(m, paper["measures"])
        ),
        notes=tuple(_notes(told, paper)),
        paper_notes=tuple(_open_points(paper["not_stated"] if told.get("scenes") else {})),
        depends_on=tuple(told.get("depends_on", ())), numbers=numbers,
        probes=tuple(told.get("probe", ())),
        about=told.get("about", ""), axes=tuple(told.get("axes", ())),
        varied=tuple((key, tuple(map(str, values))) for key, values in told.get("varied", {}).items()),
        states=tuple((what, str(value)) for what, value in told.get("states", {}).items()),
        misprints=tuple(Misprint(tuple(m["cell"]), m["unlike"], m["value"]) for m in told.get("misprints", ())),
        lacks=tuple((scene, metric) for scene, metrics in told.get("lacks", {}).items() for metric in metrics),
        figure=tuple(told.get("figure", {}).items()),
    )  # fmt: skip


def _goal(measure: Measure, measures: Mapping[str, Mapping[str, Any]]) -> str:
    """What is tested for a metric, or for the metric that it is computed from: aggregation or personalization."""
    of = measures[measure.of]["of"] if measure.of in measures else measure.of
    return str(of).partition(".")[0]


def _notes(told: Mapping[str, Any], paper: Mapping[str, Any]) -> Iterator[str]:
    """What stands under a table: what is assumed, what contradicts, what else to know."""
    if told["kind"] == "text":
        return
    yield from _open_points(told.get("not_stated", {}))
    yield from told.get("contradictions", ())
    if "remark" in told:
        yield told["remark"]
    if "stand_ins" in told:
        yield paper["stand_ins"]


def _open_points(points: Mapping[str, str | None]) -> Iterator[str]:
    return (f"Not stated: {what}.{f' Here: {ours}.' if ours else ''}" for what, ours in points.items())


def _numbers(name: str) -> tuple[Number, ...]:
    file = FOLDER / f"{name}.csv"
    if not file.exists():  # figures have none
        return ()
    with file.open(encoding="utf-8", newline="") as lines:
        return tuple(
            Number(
                name, row["group"], row["setting"], row["method"], row["metric"], row["value"],
                float(row["spread"]) if row["spread"] else None, row["note"],
            )
            for row in csv.DictReader(lines)
        )  # fmt: skip
