"""What a paper prints: a table or figure, its numbers, and the scenes and methods they belong to. Free of torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from fedexp.errors import ConfigError
from fedexp.reproduce.measure import Cell, Measure

REPRODUCIBLE = ("train", "probe", "count", "partition")


@dataclass(frozen=True)
class Number:
    """One printed number. A cell of a table is its setting, its method and its metric."""

    entry: str  # map/table1
    group: str
    setting: str  # a scene, or a mean over scenes (see ``Entry.aggregates``)
    method: str
    metric: str
    printed: str  # as in the paper: how it is rounded is part of the number
    spread: float | None  # what is printed after ±; see ``Entry.spread``
    note: str = ""

    @property
    def cell(self) -> Cell:
        """What the number is of."""
        return self.setting, self.method, self.metric

    @property
    def value(self) -> float:
        """The number itself."""
        return float(self.printed)

    @property
    def bound(self) -> str:
        """``>`` if the number is only a lower bound; empty if it is the number itself."""
        return ">" * self.note.startswith("lower bound")

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit; of thousands, if it is printed in these."""
        if thousands := re.fullmatch(r"printed [\d.]+?(?:\.(\d+))?k", self.note):
            return 0.5 * 10.0 ** (3 - len(thousands[1] or ""))
        return 0.5 * 10.0 ** -len(self.printed.partition(".")[2])


@dataclass(frozen=True)
class Scene:
    """Data, partition, network and training of a column: ``experiment=<experiment>`` runs it."""

    paper: str
    name: str  # fmnist/mlpnet
    experiment: str  # map/fmnist_mlpnet
    assumed: tuple[str, ...] = ()  # settings that the paper does not state
    stand_in: bool = False  # not the paper's: smaller data, network or length in its place
    hours: float | None = None  # of one FedAvg run on two cores, by the cost model
    instead: tuple[str, ...] = ()  # of a stand-in: settings that are not the paper's
    tested: tuple[tuple[str, int], ...] = ()  # by goal (aggregation, personalization): samples behind one accuracy

    @property
    def network(self) -> str:
        """The network's name, which is behind that of the data."""
        return self.name.removeprefix("stand-in/").split("/")[1]


@dataclass(frozen=True)
class Method:
    """A row of the paper's tables, and the overrides that choose it."""

    paper: str
    name: str  # FedRS alpha=0.5
    overrides: tuple[str, ...] | None  # None: not a method, e.g. "best baseline"
    stated: str  # which hyper-parameters the paper prints
    grid: tuple[tuple[str, ...], ...] = ()  # further overrides, one tuple per setting that is tried
    cost: float = 1.0  # seconds of a round relative to FedAvg, a guess from the passes over the network
    grid_printed: bool = False  # by the paper; else the grid is ours, around the values of the method's own paper
    special: tuple[tuple[str, tuple[str, ...]], ...] = ()  # pattern of scenes, and overrides that are added there
    reading_of: str = ""  # of another reading of a method: that method's name; ``stated`` says how it is read

    @property
    def row(self) -> str:
        """The row of the paper's tables that it stands for."""
        return self.reading_of or self.name

    @property
    def all_overrides(self) -> tuple[tuple[str, ...], ...]:
        """The overrides that choose the method in some scene."""
        return (self.overrides or (), *((*(self.overrides or ()), *more) for _, more in self.special))

    def overrides_in(self, scene: str) -> tuple[str, ...]:
        """The overrides that choose the method in a scene.

        Raises:
            ConfigError: If the row is not a method that can be run.
        """
        if self.overrides is None:
            raise ConfigError(f"{self.paper}: {self.name} is not a method that can be run: {self.stated}.")
        return self.overrides + tuple(o for pattern, more in self.special if fnmatchcase(scene, pattern) for o in more)


@dataclass(frozen=True)
class Misprint:
    """A printed number that the paper's other numbers contradict."""

    cell: Cell
    unlike: str  # mean, gain: what it should be; or the table of the paper that prints another value
    value: float  # by those other numbers


@dataclass(frozen=True)
class Entry:
    """A table or figure."""

    id: str  # map/table1
    kind: str  # train | probe | count | partition | text
    title: str
    measures: tuple[Measure, ...] = ()
    scenes: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()  # scenes to run here in place of the paper's
    methods: tuple[Method, ...] = ()
    readings: tuple[Method, ...] = ()  # its methods read otherwise, to try where ours is far from the printed
    aggregates: tuple[tuple[str, str], ...] = ()  # a printed mean, and the pattern of the scenes it is over
    spread: str | None = None  # seeds | rounds | settings: what ± is over; None: not printed or not stated
    seeds: int = 1  # runs per cell in the paper, as far as it says
    tuned: bool = False  # each cell is the best of several hyper-parameter settings
    of_grids: bool = False  # a figure that shows each of the settings that the paper tried of a method
    test_samples: tuple[tuple[tuple[str, str], int], ...] = ()  # by scene and metric: what an accuracy is over
    notes: tuple[str, ...] = ()  # what the paper leaves open with our assumption, and its own contradictions
    paper_notes: tuple[str, ...] = ()  # the same of all tables of the paper
    depends_on: tuple[str, ...] = ()  # entries whose runs are this one's too
    probes: tuple[str, ...] = ()  # that observe its runs
    numbers: tuple[Number, ...] = ()
    about: str = ""  # what is measured, in words
    axes: tuple[str, ...] = ()  # of a figure: x, y
    varied: tuple[tuple[str, tuple[str, ...]], ...] = ()  # settings that a figure varies besides scenes and methods
    states: tuple[tuple[str, str], ...] = ()  # what the text says of a figure: numbers and claims
    misprints: tuple[Misprint, ...] = ()
    lacks: tuple[tuple[str, str], ...] = ()  # scenes, and metrics that they cannot have
    figure: tuple[tuple[str, Any], ...] = ()  # how it is drawn from runs: a kind of ``fedexp.report`` and its options

    @property
    def paper(self) -> str:
        """The paper's short name."""
        return self.id.partition("/")[0]

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of its methods."""
        return tuple(method.name for method in self.methods)

    @property
    def runnable(self) -> tuple[Method, ...]:
        """The methods that runs can be made of."""
        return tuple(method for method in self.methods if method.overrides is not None)

    @property
    def variations(self) -> tuple[tuple[str, ...], ...]:
        """The combinations of the settings that a figure varies; one, which is empty, if it varies none."""
        return tuple(product(*([f"{key}={value}" for value in values] for key, values in self.varied)))

    def tunings(self, method: Method, tune: str) -> tuple[tuple[str, ...], ...]:
        """The settings to run a method with, besides its own values: what a figure varies, or what the paper tries."""
        grid = method.grid if self.of_grids or (tune == "paper" and self.tuned) else ()
        return grid or self.variations

    @property
    def n_runs(self) -> int:
        """In a scene: methods with their settings, each with as many seeds as the paper has; in a table, untuned."""
        return self.seeds * sum(len(self.tunings(method, "none")) for method in self.runnable)

    def tuning_names(self, method: Method, tune: str) -> tuple[str, ...]:
        """The same as results name them."""
        return tuple(map(" ".join, self.tunings(method, tune)))

    def measured_in(self, scene: str) -> tuple[Measure, ...]:
        """The measures that runs of a scene can have."""
        return tuple(measure for measure in self.measures if (scene, measure.metric) not in self.lacks)

    def members(self, setting: str) -> tuple[str, ...]:
        """The scenes that a printed mean is over; none if the setting is not a mean."""
        pattern = dict(self.aggregates).get(setting)
        return tuple(s for s in self.scenes if fnmatchcase(s, pattern)) if pattern else ()

    def scenes_of(self, number: Number) -> tuple[str, ...]:
        """The scene of a number, or those that it is the mean of."""
        return self.members(number.setting) or (number.setting,)

    def tested(self, setting: str, metric: str) -> int | None:
        """How many samples a metric is measured on; None if nobody knows."""
        return dict(self.test_samples).get((setting, metric))
