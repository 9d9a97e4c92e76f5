"""What a command asks for: an entry, narrowed to some of its settings and methods, and how its runs are to be done.

Free of torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.reproduce import published
from fedexp.reproduce.entry import Entry, Method, Scene
from fedexp.reproduce.measure import REFERENCE, ROUNDS_TO_REFERENCE
from fedexp.reproduce.results import Result

TUNE = ("none", "paper")
FIXED = {  # settings of a run that the entry decides, and what to write instead
    "experiment": "settings=… chooses among the entry's experiments",
    "algo": "methods=… chooses among the entry's methods",
    "seed": "seeds=0,1,2 says which",
    "sweep": "methods, settings, seeds and tune=paper say what is swept over",
}


@dataclass(frozen=True)
class Request:
    """Which runs of an entry are asked for."""

    entry: Entry
    scenes: tuple[Scene, ...]
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]  # to run
    any_seed: bool = False  # show others too that there are results of
    rounds: int | None = None  # None: the paper's
    tune: str = "none"  # paper: each setting that the paper tries; none: the method's own values
    out: Path = Path("multirun")
    overrides: tuple[str, ...] = ()  # further ones, of every run
    launcher: tuple[str, ...] = ()  # Hydra's own: hydra/launcher=joblib

    @property
    def shown(self) -> Entry:
        """The entry with what is asked for only; a mean over scenes stays if all of its scenes do."""
        if self.entry.kind == "count":
            return self.entry
        scenes, rows = [scene.name for scene in self.scenes], self._rows
        means = tuple((name, of) for name, of in self.entry.aggregates if self._has_all(of))
        settings = {*scenes, *(name for name, _ in means)}
        return replace(
            self.entry,
            scenes=tuple(name for name in scenes if name in self.entry.scenes),
            stand_ins=tuple(name for name in scenes if name in self.entry.stand_ins),
            methods=tuple(m for m in self.entry.methods if m.name in rows),
            aggregates=means,
            numbers=tuple(n for n in self.entry.numbers if n.setting in settings and n.method in rows),
        )

    @property
    def _rows(self) -> set[str]:
        """The rows to show. If every method that can be run is asked for, rows that cannot be run are shown too."""
        whole = set(self.entry.runnable) <= set(self.methods)
        return set(self.entry.rows) if whole else {method.row for method in self.methods}

    def _has_all(self, pattern: str) -> bool:
        there = {scene.name for scene in self.scenes}
        return all(name in there for name in self.entry.scenes if fnmatchcase(name, pattern))

    def includes(self, result: Result) -> bool:
        """Whether a result of the entry is among what is asked for."""
        return self.entry.kind == "count" or (
            any(result.setting == scene.name for scene in self.scenes)
            and result.method in self._names_of_results
            and (self.any_seed or result.seed in self.seeds)
        )

    @property
    def with_readings(self) -> Request:
        """The same, and with each method its other readings, which are shown below the table."""
        named = {method.name for method in self.methods}
        others = (other for other in self.entry.readings if other.reading_of in named)
        return replace(self, methods=(*self.methods, *(other for other in others if other.name not in named)))

    @cached_property
    def tunings(self) -> dict[str, tuple[str, ...]]:
        """The hyper-parameter settings to run each method with, as results name them."""
        return {method.name: self.entry.tuning_names(method, self.tune) for method in self.methods}

    @cached_property
    def _names_of_results(self) -> set[str]:
        """What is shown: the methods that are asked for, their other readings, and the method of a reading."""
        return {name for method in self.with_readings.methods for name in (method.name, method.row)}

    @property
    def command(self) -> str:
        """The command that asks for the same."""
        names = {
            "settings": [scene.name for scene in self.scenes],
            "methods": [method.name for method in self.methods],
            "seeds": [str(seed) for seed in self.seeds],
        }
        usual = {
            "settings": list(self.entry.scenes),
            "methods": [method.name for method in self.entry.runnable],
            "seeds": [str(seed) for seed in range(self.entry.seeds)],
        }
        given = [f"{key}={','.join(value)}" for key, value in names.items() if value != usual[key]]
        given += [f"tune={self.tune}"] if self.tune != Request.tune else []
        return shlex.join(["python", "-m", "fedexp.reproduce", self.entry.id, *given, *self.options])

    @property
    def options(self) -> list[str]:
        """The part of the command that is the same for each of its runs."""
        rounds = [] if self.rounds is None else [f"rounds={self.rounds}"]
        out = [] if self.out == Request.out else [f"out={self.out}"]
        lasting = [o for o in self.overrides if o.lstrip("+").partition("=")[0] != "force"]
        return [*rounds, *out, *lasting, *self.launcher]


def request(
    entry: Entry,
    *,
    settings: str = "",
    methods: str = "",
    seeds: str = "",
    rounds: str = "",
    tune: str = Request.tune,
    stand_ins: bool = False,
    out: str = "",
    overrides: Sequence[str] = (),
) -> Request:
    """A request in the words of the command line.

    Raises:
        ConfigError: If it names what the entry does not have; with the nearest that it has.
    """
    if tune not in TUNE:
        raise ConfigError(f"tune={tune}: this is not known. {nearest(tune, TUNE)}")
    if stand_ins and not entry.stand_ins:
        raise ConfigError(f"standins=true: {entry.id} has no stand-in scenes. Leave it out.")
    for key in (o.lstrip("+~").partition("=")[0] for o in overrides):
        if key in FIXED:
            raise ConfigError(f"{key}: this is set by the table that is asked for; {FIXED[key]}.")
    known = {name: published.scene(entry.paper, name) for name in (*entry.scenes, *entry.stand_ins)}
    usual = entry.stand_ins if stand_ins else entry.scenes
    return Request(
        entry,
        scenes=tuple(known[name] for name in _chosen("settings", settings, known, usual, entry)),
        methods=tuple(_methods(methods, entry)),
        seeds=_seeds(seeds) if seeds else tuple(range(entry.seeds)),
        any_seed=not seeds,
        rounds=_whole("rounds", rounds, least=1) if rounds else None,
        tune=tune,
        out=Path(out) if out else Request.out,
        overrides=tuple(o for o in overrides if not _is_hydras(o)),
        launcher=tuple(o for o in overrides if _is_hydras(o)),
    )


def every_scene(entry: Entry) -> str:
    """The settings of an entry with its stand-ins, as the command line names them."""
    return ",".join((*entry.scenes, *entry.stand_ins))


def _methods(text: str, entry: Entry) -> list[Method]:
    usual = [method.name for method in entry.runnable]
    known = {method.name: method for method in (*entry.runnable, *entry.readings)}
    for name in _names(text):
        if name in entry.rows and name not in known:
            raise ConfigError(f"methods={name}: {entry.id} prints it, but it is not a method that can be run.")
    chosen = {*_chosen("methods", text, list(known), usual, entry)}
    if any(measure.rule == ROUNDS_TO_REFERENCE for measure in entry.measures):
        chosen.add(REFERENCE)  # whose runs the others are measured by
    return [method for name, method in known.items() if name in chosen]


def _chosen(key: str, text: str, known: Iterable[str], usual: Sequence[str], entry: Entry) -> list[str]:
    """The names that are given, or all that match a pattern such as ``fmnist/*``; the usual ones if none is."""
    if not text:
        return list(usual)
    names = list(known)
    chosen: dict[str, None] = {}
    for given in _names(text):
        wanted = given if key != "settings" else _scene_name(entry, given)
        found = [wanted] if wanted in names else [name for name in names if fnmatchcase(name, given)]
        if not found:
            raise ConfigError(f"{key}={given}: {entry.id} has no {key[:-1]} of this name. {nearest(given, names)}")
        chosen |= dict.fromkeys(found)
    if not chosen:
        raise ConfigError(f"{key}={text}: this names nothing. Say which, or leave it out.")
    return [name for name in names if name in chosen]


def _scene_name(entry: Entry, given: str) -> str:
    """A scene by its own name or by that of its experiment."""
    scenes = (published.scene(entry.paper, name) for name in (*entry.scenes, *entry.stand_ins))
    return next((scene.name for scene in scenes if given == scene.experiment), given)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_whole("seeds", seed, least=0) for seed in text.split(",")))


def _whole(key: str, text: str, *, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{key}={text}: this must be a whole number, {least} or more.")
    return number


def _is_hydras(override: str) -> bool:
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))
