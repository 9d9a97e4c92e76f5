"""The identity of a run: a hash of what can change its numbers. Free of torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedexp.config import targets
from fedexp.config.compose import Config
from fedexp.config.settings import as_before, without_influence

# Settings of ``evaluate`` that change only what else is measured, in the rounds or after the last of them.
MEASURED = ("window", "all_clients", "finetune_epochs", "missing", "missing_clients")

# What does not change a run's numbers, and therefore not its identity either.
IRRELEVANT = (
    *without_influence(), "tracker", "probe", "data.root", "data.download", "data.cache", "data.writers", "choices",
    *(f"evaluate.{key}" for key in MEASURED), "loop.callbacks", "loop.loggers",
)  # fmt: skip

# Settings that came later, with the values with which a run has the id that it had without them.
AS_BEFORE = as_before()

# Settings of loops that change numbers, with the values that runs had before there were others.
LOOP = {"accelerator": None, "precision": "32-true", "compile": False}

# Classes and functions that configurations name, by what they were called first: a renamed one keeps its runs.
RENAMED: dict[str, str] = {}

# The schedule that is not in ids, because runs had it before there were others.
CONSTANT = {"_target_": "ConstantRate"}

# Loops whose sums have another order, so that their last bits are others.
STACKING = ("BatchedLoop",)


def of_missing_classes(config: Config) -> dict[str, Any]:
    """How missing classes are measured, which changes no other number; empty in a run of an earlier version."""
    settings = config.get("evaluate") or {}
    keys = ("missing", "missing_clients") if settings.get("missing") else ("missing",)
    return {key: settings[key] for key in keys if key in settings}


def relevant(config: Config) -> Config:
    """What can change the numbers of a run."""
    kept: Config = json.loads(json.dumps(config))
    for path in IRRELEVANT:
        node, last = _holder(kept, path)
        node.pop(last, None)
    for path, value in AS_BEFORE.items():
        node, last = _holder(kept, path)
        if node.get(last) == value:
            node.pop(last)
    for group, part in PARTLY.items():
        kept[group] = part(kept[group])
    groups = ("data", "partition", "model", "optim", "schedule", "evaluate")
    nodes = (kept[group] for group in groups if group in kept)
    for node in (*nodes, *kept["algo"].values()):
        node["_target_"] = _identity(node["_target_"])
    if kept.get("schedule") == CONSTANT:
        del kept["schedule"]
    return kept


def _executor_in_ids(executor: Config) -> Config:
    """What can change numbers: where the work runs does not."""
    return {"threads": executor["threads"]}


def _loop_in_ids(loop: Config) -> Config:
    """What can change numbers: loops give the same weights bit for bit, but for those that stack clients."""
    name = _identity(loop["_target_"])
    if name in STACKING:
        return {**loop, "_target_": name}
    return {key: value for key, value in loop.items() if key in LOOP and value != LOOP[key]}


# Groups of which only a part can change numbers, and that part.
PARTLY = {"executor": _executor_in_ids, "loop": _loop_in_ids}


def _holder(config: Config, path: str) -> tuple[Config, str]:
    """The group that a setting is in, and what it is called there."""
    *parents, last = path.split(".")
    for parent in parents:
        config = config[parent]
    return config, last


def _identity(target: str) -> str:
    """What a class or function is called in a run's id, wherever it lives: its bare name, the first it ever had.

    What is not ours carries the name of its package too.
    """
    module, _, name = target.rpartition(".")
    package = module.partition(".")[0]
    return RENAMED.get(name, name) if package == targets.OURS else f"{package}:{name}"


def run_id(config: Config) -> str:
    """A short hash of everything that can change the numbers of a run."""
    return _hash(relevant(config))


def ids_with_fewer_rounds(config: Config) -> Iterator[tuple[int, str]]:
    """The ids of runs that end before this one and are the same otherwise, the longest first."""
    content = relevant(config)
    return ((rounds, _hash({**content, "rounds": rounds})) for rounds in range(config["rounds"] - 1, 0, -1))


def _hash(content: Config) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def run_path(config: Config) -> Path:
    """The run's directory: out/name/id."""
    return Path(config["out"], config["name"], run_id(config))
