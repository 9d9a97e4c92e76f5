"""How a run can be told from others: its title, its tags, and the command that gives the same numbers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedexp.config.compose import Config, overrides_of
from fedexp.config.identity import IRRELEVANT, PARTLY
from fedexp.errors import FedexpError
from fedexp.runs.sweep_manifest import Manifest
from fedexp.track.base import RunCard

TAG_LENGTH = 64  # W&B's limit


def title(card: RunCard) -> str:
    """The method, the settings in which the run differs from others of its sweep, and the seed: ``fedrs alpha=0.5 s1``.

    A run that is in no sweep is described by the settings that are not the default.
    """
    pairs = (override.lstrip("+").partition("=") for override in swept(card))
    settings = {key: value for key, equals, value in pairs if equals and key not in ("algo", "seed")}
    last = [key.rpartition(".")[2] for key in settings]
    names = (key if last.count(name) > 1 else name for key, name in zip(settings, last, strict=True))
    words = [
        value if key in _choices(card.config) else f"{name}={value}"
        for name, (key, value) in zip(names, settings.items(), strict=True)
    ]
    return " ".join([method(card), *words, *([f"s{card.config['seed']}"] if "seed" in card.config else [])])


def method(card: RunCard) -> str:
    """The name of the method."""
    return str(_choices(card.config).get("algo", "own"))


def tags(card: RunCard) -> list[str]:
    """What runs are chosen by: paper, experiment, data set and partition."""
    choices = _choices(card.config)
    experiment = choices.get("experiment", "")
    named = {
        "paper": experiment.partition("/")[0],
        "experiment": experiment,
        "data": choices.get("data"),
        "partition": choices.get("partition"),
    }
    return [f"{kind}:{name}"[:TAG_LENGTH] for kind, name in named.items() if name]


def command(card: RunCard) -> str:
    """The command that gives the same numbers; empty if the run has choices that are not ours."""
    try:
        return shlex.join(["python", "-m", "fedexp", *_relevant(card.config)])
    except FedexpError:
        return ""


def swept(card: RunCard) -> list[str]:
    """The overrides that tell the run from the others of its sweeps, or else from the default."""
    found = dict.fromkeys(override for manifest in _manifests(card.path.parent) for override in _own(manifest, card))
    if found:
        return list(found)
    with suppress(FedexpError):
        return _relevant(card.config)
    return []


def _own(manifest: Manifest, card: RunCard) -> list[str]:
    jobs = [job for job in manifest.jobs if job.run == card.run]
    if not jobs or len(manifest.jobs) < 2:
        return []
    shared = set.intersection(*(set(job.overrides) for job in manifest.jobs))
    own = [override for override in jobs[0].overrides if override not in shared]
    return [override for override in own if not _without_effect(override, card.config)]


def _manifests(folder: Path) -> Iterator[Manifest]:
    for path in sorted(folder.glob("sweep-*.json")):
        with suppress(FedexpError):  # a damaged one, which `python -m fedexp.runs status` tells
            yield _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)  # all runs of a sweep ask for it
def _read(path: Path, _: int) -> Manifest:
    return Manifest.read(path)


def _relevant(config: Config) -> list[str]:
    return [override for override in overrides_of(config) if not _without_effect(override, config)]


def _without_effect(override: str, config: Config) -> bool:
    """Whether no number of a run with this configuration depends on an override."""
    key = override.lstrip("+~").partition("=")[0]
    if any(key == name or key.startswith(f"{name}.") for name in IRRELEVANT):
        return True
    group, _, name = key.partition(".")
    return group in PARTLY and (group not in config or (name or "_target_") not in PARTLY[group](config[group]))


def _choices(config: Config) -> dict[str, Any]:
    return config.get("choices") or {}
