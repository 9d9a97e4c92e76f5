"""From what is asked for to runs: the overrides, the configuration and the directory of each. Free of torch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

from fedexp.config.compose import Config, composing, literal
from fedexp.config.identity import IRRELEVANT, LOOP, MEASURED, run_id, run_path
from fedexp.errors import ConfigError
from fedexp.reproduce import published
from fedexp.reproduce.entry import Entry, Method, Scene
from fedexp.reproduce.request import Request

Compose = Callable[[Sequence[str]], Config]

WHERE = ("executor", "loop", "tracker", "probe")  # groups on which no printed digit of a run depends, but for precision
PRECISION = "loop.precision"
LAST_BITS = (  # of those groups, what last bits depend on
    "executor.threads", "loop.accelerator", "loop.compile", "loop=batched", "loop.group",
)  # fmt: skip
OF_MISSING_CLASSES = ("evaluate.missing", "evaluate.missing_clients")  # which no paper has a number of
NOT_PRINTED = "evaluate.all_clients=false"  # work after the last round that no number of a paper needs
STAND_IN = "stand-in"
RESULT_RULE = "result"  # of a measure that is taken after the last round


@dataclass(frozen=True)
class ReproJob:
    """A run that gives numbers for cells of an entry. Entries that share a run have jobs with the same path."""

    entry: Entry
    scene: Scene
    method: Method
    seed: int
    tuning: tuple[str, ...]  # overrides of one of the settings that the paper tries; empty: the method's own values
    overrides: tuple[str, ...]  # all of them, as ``python -m fedexp`` takes them
    command: str  # without what is of this machine
    less: tuple[str, ...]  # in what it is less than the paper's, besides its scene
    paper_rounds: int
    config: Config = field(compare=False, repr=False)

    @cached_property
    def reduced(self) -> str:
        """In what it is less than the paper's; empty if in nothing. A scene of one table may stand in for another's."""
        stand_in = self.scene.stand_in or self.scene.name in self.entry.stand_ins
        return ", ".join([*([STAND_IN] if stand_in else []), *self.less])

    @cached_property
    def run(self) -> str:
        """The id of the run."""
        return run_id(self.config)

    @cached_property
    def path(self) -> Path:
        """The run's directory."""
        return run_path(self.config)


def jobs_of(asked: Request) -> list[ReproJob]:
    """All runs that are asked for: the first seed of everything before the second, cheap scenes before dear ones.

    Raises:
        ConfigError: If one cannot be composed, because of an override that was added to it; or if more rounds are asked
            for than the paper has.
    """
    scenes = sorted(asked.scenes, key=lambda scene: scene.hours or 0.0)
    with composing() as compose:
        rounds = cache(lambda papers: int(compose(papers)["rounds"]))
        return [
            _job(asked, scene, method, seed, tuning, compose, rounds)
            for seed in asked.seeds
            for scene in scenes
            for method in asked.methods
            for tuning in asked.entry.tunings(method, asked.tune)
        ]


def distinct(jobs: Sequence[ReproJob]) -> list[ReproJob]:
    """One job for each run."""
    return list({job.path: job for job in reversed(jobs)}.values())[::-1]


def _job(
    asked: Request,
    scene: Scene,
    method: Method,
    seed: int,
    tuning: tuple[str, ...],
    compose: Compose,
    rounds: Callable[[tuple[str, ...]], int],
) -> ReproJob:
    papers = (f"experiment={scene.experiment}", *method.overrides_in(scene.name), *tuning, f"seed={seed}")
    paper_rounds = None if asked.rounds is None else rounds(length_of(scene, method))
    shorter = _shorter(asked, scene, paper_rounds)
    other = [o for o in asked.overrides if changes_numbers(o, asked.entry)]
    bits = [o for o in asked.overrides if {o, _key(o)} & set(LAST_BITS)]
    own = asked.entry.probes
    others = published.probes_of(scene.paper, scene.name, method.row) if own else ()
    probes = [f"probe=[{','.join(dict.fromkeys((*own, *others)))}]"] if own else []
    overrides = [*papers, *shorter, NOT_PRINTED, *probes, *asked.overrides, f"out={literal(str(asked.out))}"]
    config = compose(overrides)
    return ReproJob(
        entry=asked.entry,
        scene=scene,
        method=method,
        seed=seed,
        tuning=tuning,
        overrides=tuple(overrides),
        command=shlex.join(["python", "-m", "fedexp", *papers, *shorter, *probes, *other, *bits]),
        less=(*([f"{asked.rounds} of {paper_rounds} rounds"] if shorter else []), *other),
        paper_rounds=paper_rounds or config["rounds"],
        config=config,
    )


def length_of(scene: Scene, method: Method) -> tuple[str, ...]:
    """The overrides that decide how many rounds a method has in a scene of the paper."""
    return f"experiment={scene.experiment}", *(o for o in method.overrides_in(scene.name) if _key(o) == "rounds")


def _shorter(asked: Request, scene: Scene, paper_rounds: int | None) -> list[str]:
    """The override for fewer rounds than the paper's, if that is asked for."""
    if asked.rounds is None or paper_rounds is None or asked.rounds == paper_rounds:
        return []
    if asked.rounds > paper_rounds:
        raise ConfigError(f"rounds={asked.rounds}: {scene.name} has {paper_rounds} rounds in the paper. Ask for fewer.")
    return [f"rounds={asked.rounds}"]


def special(asked: Request) -> bool:
    """Whether the runs that are asked for are not the entry's own: shorter ones, or with settings of the user's."""
    return asked.rounds is not None or any(changes_numbers(override, asked.entry) for override in asked.overrides)


def checked(asked: Request) -> Request:
    """The same request, with ``rounds`` left out where they are the paper's anyway.

    Raises:
        ConfigError: If its overrides cannot be composed, as a misspelt key.
    """
    if not asked.scenes or asked.entry.kind not in ("train", "probe") or not (asked.overrides or asked.rounds):
        return asked
    with composing() as compose:
        first = f"experiment={asked.scenes[0].experiment}"
        compose([first, *(asked.methods[0].overrides or ()), *asked.overrides])
        lengths = {length_of(scene, method) for scene in asked.scenes for method in asked.methods}
        whole = all(asked.rounds == compose(length)["rounds"] for length in lengths)
    return replace(asked, rounds=None) if whole else asked


def changes_numbers(override: str, entry: Entry) -> bool:
    """Whether a number of the entry can depend on an override."""
    key = _key(override)
    if key == PRECISION:
        return not override.endswith(f"={LOOP['precision']}")
    if key.partition(".")[0] in WHERE:
        return False
    if key in (f"evaluate.{name}" for name in MEASURED):
        return any(measure.rule == RESULT_RULE for measure in entry.measures) and key not in OF_MISSING_CLASSES
    return key not in IRRELEVANT


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
