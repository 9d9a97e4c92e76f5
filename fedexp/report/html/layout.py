"""How runs are told apart: which settings name a method, and which the scene that methods are compared in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedexp.report import frames
from fedexp.report.load import Runs

METHOD = "algo"
SEED = "seed"
REFERENCE = "fedavg"  # the method that others are compared with
LEAST_TELLING = ("name", "out")  # settings that are named only where no other tells two runs apart


@dataclass(frozen=True)
class Layout:
    """Settings in which runs differ, as few as tell all of them apart."""

    methods: tuple[str, ...]  # ``algo`` and its hyper-parameters
    scenes: tuple[str, ...]  # all others, without the seed

    @classmethod
    def of(cls, runs: Runs) -> Layout:
        """How these runs differ."""
        differing = [key for key in runs.differing(runs.config["run"]) if key != SEED]
        ordered = sorted(differing, key=lambda key: (key in LEAST_TELLING, "." in key))
        own = [key for key in ordered if key.partition(".")[0] == METHOD]
        others = [key for key in ordered if key.partition(".")[0] != METHOD]
        if _groups(runs, [*own, *others, SEED]) < len(runs.config):  # copies of a run in several folders
            others.append("run")
        return cls(tuple(_needed(runs, own)) or (METHOD,), tuple(_needed(runs, others)))

    @property
    def keys(self) -> tuple[str, ...]:
        """Scene, then method."""
        return *self.scenes, *self.methods

    def by_scene(self, runs: Runs) -> list[tuple[tuple[str, ...], Runs]]:
        """The values of the scenes' settings, and the runs that have them."""
        values = _values(runs, self.scenes)
        return [
            (scene, runs.only(run for run, own in values.items() if own == scene))
            for scene in sorted(set(values.values()), key=lambda scene: [frames.natural(value) for value in scene])
        ]

    def labels(self, runs: Runs) -> dict[str, tuple[str, ...]]:
        """By the label of a method: the values of its settings, one by one."""
        names = frames.labels(runs.config, self.methods)
        return dict(zip(names, _values(runs, self.methods).values(), strict=True))


def _values(runs: Runs, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By run: its values of some settings, as they are written."""
    config = runs.config
    return {
        run: tuple(map(frames.written, own)) for run, *own in config[["run", *keys]].itertuples(index=False, name=None)
    }


def _needed(runs: Runs, keys: Sequence[str]) -> list[str]:
    """The settings without those that follow from the ones before them."""
    kept: list[str] = []
    for key in keys:
        if _groups(runs, [*kept, key]) > _groups(runs, kept):
            kept.append(key)
    return kept


def _groups(runs: Runs, keys: Sequence[str]) -> int:
    return len(set(_values(runs, keys).values()))
