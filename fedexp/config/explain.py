"""What Hydra and OmegaConf say of a bad configuration, in our words, with the nearest valid key or choice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedexp.config.hydra_loader import choices_of
from fedexp.config.hydra_settings import NOT_BASED
from fedexp.config.sources import Sources, conf_dir
from fedexp.config.suggest import nearest
from fedexp.config.yaml_files import reading
from fedexp.errors import ConfigError

# Hydra's launchers that come with an extra of ours.
LAUNCHERS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "slurm"}

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


def explain(error: Exception, sources: Sources | None = None) -> str:
    """Hydra's message, with the nearest valid key or choice."""
    sources = sources or Sources()
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


def _explain_choice(folder: str, choice: str, sources: Sources) -> str:
    """A choice that is not there, as it was written: ``experiment=map/x`` is in the folder ``experiment/map``."""
    group, _, inner = (folder, "", "") if folder.startswith("hydra/") else folder.partition("/")
    inner = f"{inner}/" if inner else ""
    beside = [f"{inner}{c}" for c in choices_of(folder, sources)] or choices_of(group, sources)
    hint = nearest(f"{inner}{choice}", [*dict.fromkeys((*beside, *_below(group, sources)))], beside)
    return f"{group}={inner}{choice}: there is no such choice. {hint}"


def _below(group: str, sources: Sources) -> list[str]:
    """All choices of a group, also those in its folders: ``map/fmnist_mlpnet``."""
    roots = [folder / group for folder in sources.folders()]
    found = (path.relative_to(root) for root in roots for path in root.rglob("*.yaml") if path.is_file())
    return sorted({path.with_suffix("").as_posix() for path in found})


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
