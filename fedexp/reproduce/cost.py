"""How long runs take on this machine: as measured in finished ones, else as the cost model of the scenes says.

The model counts the passes over the network. It leaves out tests and overheads, and does not know the machine: where
runs of other scenes with the same network have finished, its hours are scaled by what those took. Free of torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import cache, cached_property
from itertools import product

from fedexp.config.compose import composed
from fedexp.reproduce import published
from fedexp.reproduce.entry import Entry, Method, Scene
from fedexp.reproduce.jobs import ReproJob, length_of
from fedexp.reproduce.results import Result
from fedexp.runs.sweep_manifest import rounds_done

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Cost:
    """Seconds of some runs one after another."""

    seconds: float = 0.0
    measured: int = 0  # runs whose time follows from finished ones in the same scene
    scaled: int = 0  # from the cost model, and finished runs of other scenes with the same network
    modelled: int = 0  # from the cost model alone
    unknown: int = 0  # from nothing: their seconds are not counted

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))

    def times(self, runs: int) -> Cost:
        """The cost of so many runs like this one."""
        return Cost(*(number * runs for number in astuple(self)))


class Costs:
    """What runs cost, learnt from results.

    A method that was not run in a scene takes as long as those that were, by the guess of how methods compare. A scene
    in which nothing was run takes as many times the model's hours as others with its network took.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self._seconds: dict[tuple[str, str], dict[str, dict[str, float]]] = {}  # of a round: scene, method, run
        for result in results:
            if result.status == "done" and result.seconds and result.rounds:
                scene = self._seconds.setdefault((result.entry.partition("/")[0], result.setting), {})
                scene.setdefault(result.method, {})[result.run] = result.seconds / result.rounds

    def of_run(self, scene: Scene, method: Method) -> Cost:
        """A run at the paper's length."""
        if (measured := self._of_round(scene, method)) is not None:
            return Cost(measured * _paper_rounds(scene, method), measured=1)
        if scene.hours is None:
            return Cost(unknown=1)
        seconds = scene.hours * SECONDS_PER_HOUR * method.cost
        factor = self._factor(scene.network)
        return Cost(seconds, modelled=1) if factor is None else Cost(seconds * factor, scaled=1)

    def of_job(self, job: ReproJob) -> Cost:
        """What is left of a job; all of it if its run is finished, but has to be made again for a probe."""
        left = job.config["rounds"] - (rounds_done(job.config) or 0)
        if (measured := self._of_round(job.scene, job.method)) is not None:
            return Cost(measured * left, measured=1)
        whole = self.of_run(job.scene, job.method)
        return replace(whole, seconds=whole.seconds * left / job.paper_rounds)

    def of_entry(self, entry: Entry, scenes: Iterable[Scene]) -> Cost:
        """All methods of an entry in some scenes, with as many seeds as the paper has."""
        runs = (
            self.of_run(scene, method).times(entry.seeds * len(entry.tunings(method, "none")))
            for scene in scenes
            for method in entry.runnable
        )
        return sum(runs, Cost())

    def _of_round(self, scene: Scene, method: Method) -> float | None:
        """The median of the method's own runs; else, of all methods' in the scene, brought to this one's cost."""
        known = {name: statistics.median(runs.values()) for name, runs in self._in(scene).items()}
        if method.name in known:
            return known[method.name]
        costs = {other.name: other.cost for other in published.methods(scene.paper)} if known else {}
        as_fedavg = [seconds / costs[name] for name, seconds in known.items() if name in costs]
        return statistics.median(as_fedavg) * method.cost if as_fedavg else None

    def _factor(self, network: str) -> float | None:
        """How many times the model's hours runs with a network took. Others say little: their overheads differ."""
        alike = [factor for scene, factor in self._factors.items() if scene.network == network]
        return statistics.median(alike) if alike else None

    @cached_property
    def _factors(self) -> dict[Scene, float]:
        """How many times the model's hours runs took, by scene."""
        found: dict[Scene, list[float]] = {}
        for paper in published.PAPERS:
            for scene, method in product(published.scenes(paper), published.methods(paper)):
                if scene.hours and (runs := self._in(scene).get(method.name)):
                    took = statistics.median(runs.values()) * _paper_rounds(scene, method)
                    found.setdefault(scene, []).append(took / (scene.hours * SECONDS_PER_HOUR * method.cost))
        return {scene: statistics.median(factors) for scene, factors in found.items()}

    def _in(self, scene: Scene) -> dict[str, dict[str, float]]:
        """Seconds of a round in a scene, by method and run."""
        return self._seconds.get((scene.paper, scene.name), {})


@cache
def _paper_rounds(scene: Scene, method: Method) -> int:
    return int(composed(length_of(scene, method))["rounds"])
