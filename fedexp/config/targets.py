"""Which code a configuration may name in a ``_target_``, found without importing it.

Four places are open: this package, in it the part that belongs to the group (and for ``optim`` also ``torch.optim``);
the user's own folders, which are the current one and those that configurations were read from by ``--config-dir``;
installed packages that declare configuration files (``fedexp.config.packages``); and packages that the environment
variable ``FEDEXP_ALLOW`` names, as in ``FEDEXP_ALLOW=mypackage,other``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedexp.config.packages import Package, packages
from fedexp.errors import ConfigError

ENV = "FEDEXP_ALLOW"
OURS = "fedexp"


@dataclass(frozen=True)
class Kind:
    """What the targets of a group have in common.

    Attributes:
        package: Where ours are.
        method: A method that each has; or, where targets are functions, the type that they return.
        given: Arguments that the builder passes, so that a configuration cannot.
        library: A package of others, whose classes may be named too.
        theirs: A method that each of those has.
    """

    package: str
    method: str
    given: tuple[str, ...] = ()
    library: str | None = None
    theirs: str | None = None


KINDS = {
    "algo": Kind("fedexp.algos", "plan"),
    "data": Kind("fedexp.data", "load"),
    "partition": Kind("fedexp.partition", "splits"),
    "model": Kind("fedexp.models", "SplitModel", given=("shape", "n_classes")),
    "optim": Kind("fedexp.client.optim", "settings", given=("params",), library="torch.optim", theirs="step"),
    "schedule": Kind("fedexp.client.schedules", "factor"),
    "evaluate": Kind("fedexp.evaluate", "conclude"),
    "loop": Kind("fedexp.client", "fit", given=("number",)),
    "executor": Kind("fedexp.execute", "map", given=("blueprint", "say")),
    "tracker": Kind("fedexp.track", "log"),
    "probe": Kind("fedexp.probes", "due"),
}

KEYED = ("algo", "probe", "tracker")  # groups with any number of targets, each under a name
SEVERAL = ("probe", "tracker")  # groups of which several files can be chosen by a list

# What a target is given to work with, by the setting that names it: one, or a list of them.
_LOGGER = Kind("fedexp.track", "log_metrics", library="lightning.pytorch.loggers", theirs="log_metrics")
NESTED = {
    "logger": _LOGGER,
    "loggers": _LOGGER,
    "callbacks": Kind("fedexp.client", "setup", library="lightning.pytorch.callbacks", theirs="setup"),
}
LISTS = ("loggers", "callbacks")

LIBRARIES = tuple(kind.library for kind in (*KINDS.values(), *NESTED.values()) if kind.library)

_folders: list[Path] = []


def allow(folder: Path) -> None:
    """From now on targets may be in this folder too."""
    if (folder := folder.resolve()) not in _folders:
        _folders.append(folder)


def folders() -> Iterator[Path]:
    """The user's own folders."""
    yield Path.cwd()
    yield from _folders


def kind_of(group: str) -> Kind:
    """What the targets of a group, or of a setting such as ``callbacks``, have in common."""
    return {**KINDS, **NESTED}[group]


def refusal(target: Any, group: str) -> str | None:
    """Why a configuration may not name this target, and what to do; None if it may."""
    if not isinstance(target, str) or not _dotted(target):
        return "must be module.name, the full name of a class or function"
    module, kind = target.rpartition(".")[0], kind_of(group)
    if _inside(module, OURS):
        package = kind.package
        return None if _inside(module, package) else f"belongs to fedexp, but is not in {package}, where {group} is"
    if module == kind.library or _allowed(module) or _package(module) or _own(module):
        return None
    return (
        "is neither in fedexp nor in the current folder (nor beside the configuration files of --config-dir, nor in an "
        f"installed package that brings such files). If {module} shall be run, allow it by name: "
        f"{ENV}={module.partition('.')[0]}"
    )


def load(target: str) -> Callable[..., Any]:
    """Imports a target that may be named.

    Raises:
        ConfigError: If it cannot be imported, or if its name stands for something else than was found.
    """
    name, _, attribute = target.rpartition(".")
    own = None if _inside(name, OURS) or _of_library(name) or _allowed(name) or _package(name) else _own(name)
    if own is not None:
        _make_importable(name, *own)
    try:
        found = getattr(importlib.import_module(name), attribute)
    except Exception as cause:  # whatever a user's module raises
        raise ConfigError(f"_target_: {target} cannot be imported ({type(cause).__name__}: {cause}).") from cause
    if not callable(found):
        raise ConfigError(f"_target_: {target} is neither a class nor a function.")
    return found  # type: ignore[no-any-return]


def _make_importable(module: str, folder: Path, file: Path) -> None:
    """Lets Python import from a folder of the user's, unless it would import something else by that name."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that nothing there stands in for what is installed
        importlib.invalidate_caches()
    spec = importlib.util.find_spec(module.partition(".")[0])  # which imports nothing
    places = [spec.origin] if spec and spec.origin else list(spec.submodule_search_locations or ()) if spec else []
    if not any(Path(place).resolve().is_relative_to(folder.resolve()) for place in places):
        raise ConfigError(f"_target_: {module} is {file}, but Python knows another {places} by that name. Rename it.")


def source(module: str) -> Path | None:
    """The file with a module's source text; None if there is none. Only what is allowed by name may be imported."""
    if _inside(module, OURS):
        return _ours(module)
    if _of_library(module):
        return _installed(module)
    if package := _package(module):
        return _file(package.parent, module)
    if own := _own(module):
        return own[1]
    if not _allowed(module):
        return None
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # of the packages around it, which are imported
        return None
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


@cache
def _ours(module: str) -> Path | None:
    return _file(Path(__file__).parents[2], module)


@cache
def _installed(module: str) -> Path | None:
    """The file of an installed package's module, found without importing the package."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    places = (spec.submodule_search_locations or ()) if spec else ()
    return next((file for place in places if (file := _file(Path(place).parent, module))), None)


def _package(module: str) -> Package | None:
    """The installed package with configuration files that a module is part of."""
    return next((package for package in packages() if _inside(module, package.name)), None)


def _own(module: str) -> tuple[Path, Path] | None:
    """A module of the user's: the folder to import it from, and its file."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    return next(((folder, file) for folder in folders() if (file := _file(folder, module))), None)


def _file(folder: Path, module: str) -> Path | None:
    path = folder.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def _dotted(target: str) -> bool:
    parts = target.split(".")
    return len(parts) > 1 and all(p.isidentifier() and not p.startswith("_") for p in parts)


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _of_library(module: str) -> bool:
    return any(_inside(module, library) for library in LIBRARIES)


def _allowed(module: str) -> bool:
    return any(_inside(module, name.strip()) for name in os.environ.get(ENV, "").split(",") if name.strip())
