"""Configurations: compose them, check them, write them as overrides again. Free of torch."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.config import schema, targets
from fedexp.config.explain import explain
from fedexp.config.hydra_loader import Loader
from fedexp.config.hydra_loader import loader as loader_of
from fedexp.config.sources import Sources
from fedexp.errors import ConfigError

Config = dict[str, Any]

# What composing raises. ValueError: algo=3, says Hydra.
ERRORS = (HydraException, OmegaConfBaseException, ValueError, RecursionError, OSError)


def composed(overrides: Sequence[str], sources: Sources | None = None) -> Config:
    """Composes and checks a configuration from command-line style overrides.

    Raises:
        ConfigError: With the nearest valid key or choice, or with every wrong type and value.
    """
    with composing(sources) as made:
        return made(overrides)


@contextmanager
def composing(sources: Sources | None = None) -> Iterator[Callable[[Sequence[str]], Config]]:
    """Composes several configurations from the same files, which are read once.

    Raises:
        ConfigError: As ``composed`` does.
    """
    sources = sources or Sources()
    with _explained(sources):
        loader = loader_of(sources)
        yield lambda overrides: _composed(loader, sources, overrides)


def _composed(loader: Loader, sources: Sources, overrides: Sequence[str]) -> Config:
    return plain(*loader.job(sources.name, overrides))


def composed_hydra(overrides: Sequence[str], sources: Sources | None = None) -> DictConfig:
    """Hydra's own settings for a sweep: launcher, and the axes of a preset.

    Raises:
        ConfigError: If Hydra could not begin the sweep.
    """
    sources = sources or Sources()
    with _explained(sources):
        node: DictConfig = loader_of(sources).load_configuration(sources.name, list(overrides), RunMode.MULTIRUN).hydra
        return node


_hydra = threading.RLock()  # Hydra has one state for the whole process


@contextmanager
def _explained(sources: Sources) -> Iterator[None]:
    try:
        with _hydra:
            yield
    except ERRORS as cause:
        raise ConfigError(explain(cause, sources)) from cause


def plain(node: DictConfig, choices: Mapping[str, str]) -> Config:
    """A composed configuration as plain values, checked, with the names of the chosen files.

    Raises:
        ConfigError: With every problem found.
    """
    if "choices" in node:
        raise ConfigError("choices is not a setting: it lists the files that were chosen. Choose them as in algo=map.")
    chosen = {k: v for k, v in choices.items() if v and not k.startswith("hydra")}
    return checked({**{str(k): _resolved(node[k]) for k in node if k != "hydra"}, "choices": chosen})


def checked(config: Mapping[str, Any]) -> Config:
    """A whole configuration, if every value in it makes sense.

    Raises:
        ConfigError: With every problem found.
    """
    settings = {k: v for k, v in config.items() if k != "choices"}
    if found := schema.problems(settings):
        raise ConfigError("\n".join(found))
    return {**settings, "choices": dict(config.get("choices", {}))}


def _resolved(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def overrides_of(config: Config) -> list[str]:
    """Overrides that compose to a configuration: the choices that are not the default, then single settings.

    Raises:
        ConfigError: If its choices cannot be composed any more.
    """
    usual = _composed_once()["choices"]
    chosen = {k: v for k, v in config["choices"].items() if k not in ("sweep", *targets.SEVERAL)}
    groups = [f"{k}={v}" for k, v in chosen.items() if usual.get(k) != v]
    groups += [f"{k}=[{','.join(config[k])}]" for k in targets.SEVERAL if config.get(k)]
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
            yield f"+{where}={literal(value)}"
        elif base[key] != value:
            yield f"{where}={literal(value)}"
    yield from (f"~{prefix}{key}" for key in base if key not in wanted)


def without(overrides: Iterable[str], *keys: str) -> list[str]:
    """The overrides but those of some settings, also where a ``+`` adds or forces them."""
    return [override for override in overrides if override.lstrip("+").partition("=")[0] not in keys]


def continuing(overrides: Iterable[str]) -> list[str]:
    """The overrides without ``force``, which would throw away what is on file."""
    return without(overrides, "force")


def literal(value: Any) -> str:
    """A value in Hydra's grammar."""
    plain_word = isinstance(value, str) and re.fullmatch(
        r"(?!(true|false|null|nan|inf)$)[a-z/_][\w./-]*", value, re.IGNORECASE | re.ASCII
    )
    return str(value) if plain_word else _quoted(value)


def _quoted(value: Any) -> str:
    """A value in Hydra's grammar, all texts in quotes. Its escapes are not those of JSON.

    It has no quoted keys: one with a quote or like a number would not be read back. Ours are names.
    """
    if isinstance(value, str):
        return str(QuotedString(value, Quote.double).with_quotes())
    if isinstance(value, Mapping):
        pairs = ((re.sub(r"[\\()\[\]{}:=,\s]", r"\\\g<0>", str(key)), _quoted(own)) for key, own in value.items())
        return f"{{{', '.join(f'{key}: {own}' for key, own in pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_quoted, value))}]"
    return json.dumps(value)


def federation(config: Config) -> tuple[int, float]:
    """Clients, and the share of them in a round; with ``centralized`` one client, which is in every round."""
    cohort = config["cohort"]
    return (1, 1.0) if config.get("centralized") else (cohort["clients"], cohort["fraction"])


def title(config: Config) -> str:
    """A run in a few words."""
    choices = config["choices"]
    names = (choices.get(g, f"own {g}") for g in ("algo", "data", "partition", "model"))
    return " · ".join([*names, f"seed {config['seed']}"])
