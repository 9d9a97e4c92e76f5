"""Configurations: compose them, check them, name the run they determine. Free of torch."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp import schema
from fedexp.errors import ConfigError

Config = dict[str, Any]

# What does not change a run's numbers, and therefore not its identity either.
IRRELEVANT = (
    "out", "name", "plan", "force", "keep", "store", "tracker", "data.root", "data.download", "data.cache",
    "data.writers", "every.checkpoint", "choices",
)  # fmt: skip

# Hydra's launchers that come with an extra of ours.
LAUNCHERS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "slurm"}


def conf_dir() -> Path:
    """The configuration files: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parent
    return here / "conf" if (here / "conf").is_dir() else here.parent / "conf"


def composed(overrides: Sequence[str]) -> Config:
    """Composes and checks a configuration from command-line style overrides.

    Raises:
        ConfigError: With the nearest valid key or choice, or with every wrong type.
    """
    with _composing():
        node = compose("config", list(overrides), return_hydra_config=True)
        return plain(node, node.hydra.runtime.choices)


def composed_hydra(overrides: Sequence[str]) -> DictConfig:
    """Hydra's own settings for a sweep: launcher, and the axes of a preset.

    Raises:
        ConfigError: If Hydra could not begin the sweep.
    """
    with _composing() as loader:
        node: DictConfig = loader.load_configuration("config", list(overrides), RunMode.MULTIRUN).hydra
        return node


_hydra = threading.RLock()  # Hydra has one state for the whole process


@contextmanager
def _composing() -> Iterator[ConfigLoader]:
    try:
        with _hydra, _cleared(), initialize_config_dir(str(conf_dir()), version_base="1.3"):
            yield GlobalHydra.instance().config_loader()
    except (HydraException, OmegaConfBaseException, ValueError) as cause:  # ValueError: algo=3, says Hydra
        raise ConfigError(explain(cause)) from cause


@contextmanager
def _cleared() -> Iterator[None]:
    """Inside a job too, we compose on our own."""
    GlobalHydra.instance().clear()
    yield


def plain(node: DictConfig, choices: Mapping[str, str]) -> Config:
    """A composed configuration as plain values, checked, with the names of the chosen files."""
    container = OmegaConf.to_container(
        OmegaConf.masked_copy(node, [str(k) for k in node if k != "hydra"]), resolve=True
    )
    config: Config = {str(k): v for k, v in container.items()} if isinstance(container, dict) else {}
    if found := schema.problems(config):
        raise ConfigError("\n".join(found))
    config["choices"] = {k: v for k, v in choices.items() if v and not k.startswith("hydra")}
    return config


def relevant(config: Config) -> Config:
    """What can change the numbers of a run."""
    kept: Config = json.loads(json.dumps(config))
    for path in IRRELEVANT:
        *parents, last = path.split(".")
        node = kept
        for parent in parents:
            node = node[parent]
        node.pop(last, None)
    kept["executor"] = {"threads": kept["executor"]["threads"]}  # where the work runs changes nothing
    return kept


def run_id(config: Config) -> str:
    """A short hash of everything that can change the numbers of a run."""
    return hashlib.sha256(json.dumps(relevant(config), sort_keys=True).encode()).hexdigest()[:10]


def overrides_of(config: Config) -> list[str]:
    """Overrides that compose to a configuration: the choices that are not the default, then single settings.

    Raises:
        ConfigError: If its choices cannot be composed any more.
    """
    usual = _composed_once()["choices"]
    groups = [f"{k}={v}" for k, v in config["choices"].items() if usual.get(k) != v and k != "sweep"]
    base, wanted = ({k: v for k, v in c.items() if k != "choices"} for c in (_composed_once(*groups), config))
    return [*groups, *_changes(base, wanted, "")]


@cache
def _composed_once(*overrides: str) -> Config:
    """A configuration that many runs are compared with; not to be changed."""
    return composed(overrides)


def _changes(base: Config, wanted: Config, prefix: str) -> Iterator[str]:
    for key, value in wanted.items():
        where = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _changes(base.get(key, {}), value, f"{where}.")
        elif key not in base:
            yield f"+{where}={_literal(value)}"
        elif base[key] != value:
            yield f"{where}={_literal(value)}"
    yield from (f"~{prefix}{key}" for key in base if key not in wanted)


def _literal(value: Any) -> str:
    """A value in Hydra's grammar."""
    plain_word = isinstance(value, str) and re.fullmatch(
        r"(?!(true|false|null|nan|inf)$)[a-z/_][\w./-]*", value, re.IGNORECASE
    )
    return str(value) if plain_word else json.dumps(value)


def run_path(config: Config) -> Path:
    """The run's directory: out/name/id."""
    return Path(config["out"], config["name"], run_id(config))


def title(config: Config) -> str:
    """A run in a few words."""
    choices = config["choices"]
    return " · ".join([*(choices[g] for g in ("algo", "data", "partition", "model")), f"seed {config['seed']}"])


# ---------------------------------------------------------------- explaining Hydra's errors
def explain(error: Exception) -> str:
    """Hydra's message, with the nearest valid key or choice."""
    text = _innermost(error)
    if match := re.search(r"Could not find '([\w/]+)/([^'/]+)'", text):
        group, choice = match.groups()
        if group == "hydra/launcher" and choice in LAUNCHERS:
            return f"{group}={choice} needs a plugin: pip install 'fedexp[{LAUNCHERS[choice]}]'"
        return f"{group}={choice}: there is no such choice. {schema.nearest(choice, choices_of(group))}"
    if "Config group override must be" in text:
        return f"One of the groups is set to what is not the name of a file, as in algo=map. {text}"
    if match := re.search(r"Could not override '([^']+)'", text):
        return _explain_key(match.group(1))
    if match := re.search(r"Key '([^']+)' is not in struct\s+full_key: (\S+)", text):
        return _explain_key(match.group(2))
    return text


def _innermost(error: BaseException) -> str:
    lines = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        lines.append(str(error))
    return "\n".join(dict.fromkeys(line.strip() for line in lines if line.strip()))


def choices_of(group: str) -> list[str]:
    """The files of a configuration group."""
    return sorted(p.stem for p in (conf_dir() / group).glob("*.yaml"))


def _explain_key(path: str) -> str:
    """Walks the default configuration down to the key that is not there."""
    known = _keys(conf_dir() / "config.yaml")
    if path in known or "." not in path:
        return f"{path} is not a setting. {schema.nearest(path, sorted(known))}"
    group, _, key = path.partition(".")
    if (conf_dir() / group).is_dir():
        inside = {k for name in choices_of(group) for k in _keys(conf_dir() / group / f"{name}.yaml")}
        owners = [n for n in choices_of(group) if key in _keys(conf_dir() / group / f"{n}.yaml")]
        if owners:
            return f"{path} is a setting of {group}={' or '.join(owners)}, not of the {group} that is chosen."
        return f"{path} is not a setting. {schema.nearest(path, [f'{group}.{k}' for k in sorted(inside)])}"
    return f"{path} is not a setting. {schema.nearest(path, sorted(known))}"


def _keys(path: Path) -> set[str]:
    node = OmegaConf.to_container(OmegaConf.load(path))
    own = node.get(path.parent.name, node) if isinstance(node, dict) else node  # a file may also speak for its group
    return set(_walk(own, ""))


def _walk(node: Any, prefix: str) -> list[str]:
    if not isinstance(node, dict):
        return []
    found = []
    for key, value in node.items():
        if str(key).startswith("_") or key in ("defaults", "hydra"):
            continue
        found += [f"{prefix}{key}", *_walk(value, f"{prefix}{key}.")]
    return found
