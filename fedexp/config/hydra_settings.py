"""Which of Hydra's own settings a configuration may change, in a file or on the command line.

Hydra sets environment variables, writes files and makes objects as its settings say. A configuration may choose and
adjust the launcher and the sweeper; the rest is as ``conf/config.yaml`` has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any

from hydra.conf import HydraConf
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from fedexp.config.values import wanted
from fedexp.core.ranges import Count, Positive, Range

PLAN_DIR = "${oc.env:FEDEXP_SWEEP}"  # hydra.sweep.dir of a plan: the temporary folder of its reports
OPEN = ("launcher", "sweeper", "mode", "searchpath", "help", "verbose")
BY_HYDRA = ("defaults", "env", "hydra_help", "overrides", "runtime", "job.override_dirname", "job.config_name")
SILENT = {"version": 1, "root": None, "disable_existing_loggers": False}  # Hydra's logging "none"
OURS = {  # as in conf/config.yaml
    "run": {"dir": "."},
    "sweep": {"dir": "${out}/${name}", "subdir": "."},
    "output_subdir": None,
    "job": {"name": "fedexp", "chdir": False},
    "hydra_logging": SILENT,
    "job_logging": SILENT,
}
NOT_BASED = "Let the file begin with `defaults: [config, _self_]`."
WITHOUT_OURS = "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"  # hydra.run.dir if nobody sets it
KEPT = {  # of launchers: where they write, and what has no effect or cannot work
    "launcher.submitit_folder": "${hydra.sweep.dir}/.submitit/%j",
    "launcher.temp_folder": None,
    "launcher.backend": None,
    "launcher.prefer": "processes",
    "launcher.require": None,
    "launcher.pre_dispatch": "2*n_jobs",
    "launcher.max_nbytes": None,
    "launcher.mmap_mode": "r",
}
BatchSize = Annotated[
    str, Range("auto or a whole number above 0", lambda v: v == "auto" or (v.isdecimal() and int(v) > 0))
]
VALUES: dict[str, Any] = {  # of launchers and the sweeper
    "launcher.n_jobs": Annotated[int, Range("a whole number other than 0", bool)],
    "launcher.batch_size": BatchSize,
    "launcher.timeout": Positive | None,
    "launcher.timeout_min": Count,
    "launcher.cpus_per_task": Count | None,
    "launcher.mem_gb": Count | None,
    "launcher.array_parallelism": Count,
    "sweeper.max_batch_size": Count | None,
}
CLASSES = ("hydra._internal.core_plugins.", "hydra_plugins.")  # how the names of launchers and sweepers begin


def refuse_changes(config: DictConfig, name: str | None) -> None:
    """Checks Hydra's part of a composed configuration.

    Raises:
        ConfigCompositionException: If it has a setting that is not to be changed, or names code that is not Hydra's.
    """
    settings = OmegaConf.to_container(config.hydra, resolve=False)
    if not isinstance(settings, dict):
        raise ConfigCompositionException(f"hydra must be a group of settings, not {settings!r}.")
    found = dict(_leaves({str(k): v for k, v in settings.items()}))
    if found.get("run.dir") == WITHOUT_OURS:
        raise ConfigCompositionException(f"{name}.yaml lacks the settings of config.yaml. {NOT_BASED}")
    for problem in (*_changes(found), *_foreign_code(config), *_wrong_values(config, found)):
        raise ConfigCompositionException(problem)


def _changes(found: Mapping[str, Any]) -> Iterator[str]:
    usual = {**_usual(), **{key: value for key, value in KEPT.items() if key in found}}
    for key in sorted(found.keys() | usual.keys()):
        allowed = key not in KEPT and _within(key, (*OPEN, *BY_HYDRA))
        allowed = allowed or (key, found.get(key)) == ("sweep.dir", PLAN_DIR)
        if not allowed and found.get(key, ...) != usual.get(key, ...):
            always = f": it is always {usual[key]!r}" if key in usual else ""
            yield f"hydra.{key} cannot be set{always}. Leave it out."


def _foreign_code(config: DictConfig) -> Iterator[str]:
    """Hydra makes objects of everything with a ``_target_`` in a launcher or sweeper, once references are resolved."""
    for part in (name for name in ("launcher", "sweeper") if OmegaConf.is_config(config.hydra.get(name))):
        for key, value in _targets(OmegaConf.to_container(config.hydra[part], resolve=True), f"hydra.{part}"):
            if not str(value).startswith(CLASSES):
                yield f"{key}: {value!r} is not one of Hydra's own classes. Leave it out."


def _targets(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        if key == "_target_":
            yield f"{path}.{key}", value
        yield from _targets(value, f"{path}.{key}")


def _wrong_values(config: DictConfig, found: Mapping[str, Any]) -> Iterator[str]:
    for key in found.keys() & VALUES.keys():
        value = OmegaConf.select(config.hydra, key)
        if words := wanted(value, VALUES[key]):
            yield f"hydra.{key} must be {words}, not {value!r}"


def _within(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _leaves(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """All single values of nested settings by their full keys; an empty group is a value too."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


@cache
def _usual() -> dict[str, Any]:
    """Hydra's settings as they are with ours."""
    settings = OmegaConf.to_container(OmegaConf.merge(OmegaConf.structured(HydraConf), OURS))
    return dict(_leaves({str(k): v for k, v in settings.items()})) if isinstance(settings, dict) else {}
