"""Configurations: compose them, check them, name the run they determine. Free of torch."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.config import schema, targets
from fedexp.config.hydra_loader import Loader, Sources
from fedexp.config.hydra_loader import loader as loader_of
from fedexp.config.hydra_settings import NOT_BASED
from fedexp.config.settings import as_before, without_influence
from fedexp.config.suggest import nearest
from fedexp.config.yaml_files import reading
from fedexp.errors import ConfigError

Config = dict[str, Any]

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

# Hydra's launchers that come with an extra of ours.
LAUNCHERS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "slurm"}

# Loops whose sums have another order, so that their last bits are others.
STACKING = ("BatchedLoop",)

# What Hydra and OmegaConf say, and what we say instead.
WORDS = (
    (r"Error merging override (\S+?)=(.*)\s+Cannot merge DictConfig with ListConfig",
     r"\1 must be a group of settings, not \2"),
    (r"Error merging override (\S+?)=(.*)\s+Invalid value .*, expected one of \[(.*)\]",
     r"\1 must be one of \3, not \2"),
    (r"Error merging override (\S+?)=(.*)\s+Value .* could not be converted to Integer",
     r"\1 must be a whole number, not \2"),
    (r"Error merging override (\S+?)=(.*)\s+Value .* could not be converted to Float", r"\1 must be a number, not \2"),
    (r"Interpolation key '(.*)' not found\s+full_key: (\S+)", r"\2: ${\1} names a setting that is not there."),
    (r"Unsupported interpolation type (\S+)\s+full_key: (\S+)", r"\2: ${\1:…} is not something that can be looked up."),
    (r"Environment variable '(.*)' not found\"\s+full_key: (\S+)", r"\2: the environment variable \1 is not set."),
    (r"(?:Ambiguous value for argument|Sweep parameters) '(.*)'",
     r"\1: several values are a sweep, which needs --multirun. A list is written [a,b]."),
    (r"Sweeping over Hydra's configuration is not supported : '(.*)'",
     r"\1: Hydra's own settings cannot be swept over. Give one value."),
    (r"Multiple values for ([^\s.]+)\. To override a value use 'override \S+ (.*)'",
     r"+\1=\2: there is a \1 already. Leave out the +."),
    (r"Could not append to config. An item is already at '(.*)'", r"\1 is a setting already. Leave out the +."),
)  # fmt: skip

# Settings of earlier versions, and what to write instead.
MOVED = {
    "evaluate.protocol": "Protocols are the files of a group now: evaluate=map, evaluate=fedgela …",
    **{
        f"tracker.{key}": f"There can be several trackers now, each with a name: tracker.wandb.{key}=…"
        for key in ("project", "entity", "mode", "tags", "histograms")
    },
}

# What composing raises. ValueError: algo=3, says Hydra.
ERRORS = (HydraException, OmegaConfBaseException, ValueError, RecursionError, OSError)


def conf_dir() -> Path:
    """The configuration files: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parents[1]
    return here / "conf" if (here / "conf").is_dir() else here.parent / "conf"


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
    sources = sources or Sources(conf_dir())
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
    sources = sources or Sources(conf_dir())
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
    """A composed configuration as plain values, checked, with the names of the chosen files."""
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
    kept["executor"] = {"threads": kept["executor"]["threads"]}  # where the work runs changes nothing
    kept["loop"] = _loop_in_ids(kept["loop"])
    groups = ("data", "partition", "model", "optim", "schedule", "evaluate")
    nodes = (kept[group] for group in groups if group in kept)
    for node in (*nodes, *kept["algo"].values()):
        node["_target_"] = _identity(node["_target_"])
    if kept.get("schedule") == CONSTANT:
        del kept["schedule"]
    return kept


def _loop_in_ids(loop: Config) -> Config:
    """What can change numbers: loops give the same weights bit for bit, but for those that stack clients."""
    name = _identity(loop["_target_"])
    if name in STACKING:
        return {**loop, "_target_": name}
    return {key: value for key, value in loop.items() if key in LOOP and value != LOOP[key]}


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


def literal(value: Any) -> str:
    """A value in Hydra's grammar."""
    plain_word = isinstance(value, str) and re.fullmatch(
        r"(?!(true|false|null|nan|inf)$)[a-z/_][\w./-]*", value, re.IGNORECASE
    )
    return str(value) if plain_word else json.dumps(value)


def run_path(config: Config) -> Path:
    """The run's directory: out/name/id."""
    return Path(config["out"], config["name"], run_id(config))


def federation(config: Config) -> tuple[int, float]:
    """Clients, and the share of them in a round; with ``centralized`` one client, which is in every round."""
    cohort = config["cohort"]
    return (1, 1.0) if config.get("centralized") else (cohort["clients"], cohort["fraction"])


def title(config: Config) -> str:
    """A run in a few words."""
    choices = config["choices"]
    names = (choices.get(g, f"own {g}") for g in ("algo", "data", "partition", "model"))
    return " · ".join([*names, f"seed {config['seed']}"])


# ---------------------------------------------------------------- explaining Hydra's errors
def explain(error: Exception, sources: Sources | None = None) -> str:
    """Hydra's message, with the nearest valid key or choice."""
    sources = sources or Sources(conf_dir())
    causes = list(_causes(error))
    if any(isinstance(c, RecursionError) for c in causes):
        return "The defaults lists of the configuration files go round in a circle. Let no file name itself."
    parts = (re.split(r"\n+(?:Available options|Config search path)", str(c))[0].strip() for c in causes)
    text = "\n".join(dict.fromkeys(filter(None, parts)))
    if match := re.search(r"Could not (?:find|load) '([\w/]+)/([^'/]*)'", text):
        group, choice = match.groups()
        if group == "hydra/launcher" and choice in LAUNCHERS:
            return f"{group}={choice} needs a plugin: pip install 'fedexp[{LAUNCHERS[choice]}]'"
        return _explain_choice(group, choice, sources)
    if reworded := next((m.expand(words) for hydras, words in WORDS if (m := re.search(hydras, text))), None):
        return reworded
    patterns = (r"Key '[^']+' is not in struct\s+full_key: (\S+)", r"Could not override '([^']+)'")
    if keys := [key for pattern in patterns for key in re.findall(pattern, text)]:
        return _explain_key(max(keys, key=len), sources)
    return re.sub(r"\n\s*(full_key|object_type|reference_type)\b.*", "", text)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def choices_of(group: str, sources: Sources | None = None) -> list[str]:
    """The files of a configuration group; of Hydra's own groups, also what its plugins add."""
    return sorted(loader_of(sources or Sources(conf_dir())).get_group_options(group))


def _explain_choice(folder: str, choice: str, sources: Sources) -> str:
    """A choice that is not there, as it was written: ``experiment=map/x`` is in the folder ``experiment/map``."""
    group, _, inner = (folder, "", "") if folder.startswith("hydra/") else folder.partition("/")
    inner = f"{inner}/" if inner else ""
    known = [f"{inner}{c}" for c in choices_of(folder, sources)]
    return f"{group}={inner}{choice}: there is no such choice. {nearest(f'{inner}{choice}', known)}"


def _files(group: str, sources: Sources) -> list[Path]:
    return [p for folder in sources.folders() for p in (folder / group).glob("*.yaml") if p.is_file()]


def _explain_key(path: str, sources: Sources) -> str:
    """Walks the default configuration down to the key that is not there."""
    if path in MOVED:
        return f"{path} is not a setting any more. {MOVED[path]}"
    if path.startswith("hydra."):
        return f"{path} is not a setting of Hydra's. They are shown by --cfg hydra."
    known = {k for folder in sources.folders() for k in _keys(folder / f"{sources.name}.yaml")}
    known |= _keys(conf_dir() / "config.yaml")
    group, _, key = path.partition(".")
    if files := _files(group, sources):
        owners = sorted({p.stem for p in files if key in _keys(p)})
        if owners:
            return f"{path} is a setting of {group}={' or '.join(owners)}, not of the {group} that is chosen."
        if key:
            inside = {k for p in files for k in _keys(p)}
            return f"{path} is not a setting. {nearest(path, [f'{group}.{k}' for k in sorted(inside)])}"
    groups = {p.parent.name for folder in sources.folders() for p in folder.glob("*/*.yaml")}
    if path in groups | known:
        return f"{path} is not a setting of {sources.name}.yaml. {NOT_BASED}"
    if group not in groups | known and "." in path:
        near = get_close_matches(group, sorted(groups | known), n=1, cutoff=0.5)
        known |= {f"{g}.{k}" for g in near for p in _files(g, sources) for k in _keys(p)}
    return f"{path} is not a setting. {nearest(path, sorted(known | groups))}"


def _keys(path: Path) -> set[str]:
    try:
        with reading(path):
            node = OmegaConf.to_container(OmegaConf.load(path))
    except ConfigError:
        return set()
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
