"""Installed packages that bring configuration files, and the code that these name, found without importing them.

A package declares its folder of configuration files by an entry point of the group ``fedexp.conf``, as in

    [project.entry-points."fedexp.conf"]
    rings = "rings.conf"

for the folder ``conf`` in the package ``rings``. From then on its files are choices like ours, and a configuration may
name what is in ``rings``.
"""

from __future__ import annotations

import importlib.util
import re
import site
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedexp.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fedexp.conf"


@dataclass(frozen=True)
class Package:
    """A package with configuration files.

    Attributes:
        name: What it is imported as.
        parent: The folder that it is imported from.
        conf: The folder with its configuration files.
    """

    name: str
    parent: Path
    conf: Path


def packages() -> tuple[Package, ...]:
    """All that are installed, in the order of their names.

    Raises:
        ConfigError: If one declares a folder that it does not have.
    """
    return _installed(tuple(sys.path))


@cache
def _installed(_: tuple[str, ...]) -> tuple[Package, ...]:
    from importlib.metadata import entry_points  # 12 ms, which a call for --version need not wait for

    return tuple(dict.fromkeys(_package(point) for point in sorted(entry_points(group=GROUP), key=lambda p: p.value)))


def _package(point: EntryPoint) -> Package:
    name, *inner = point.value.split(".")
    known = re.fullmatch(r"\w+(\.\w+)*", point.value) and name not in {"fedexp", *sys.stdlib_module_names}
    spec = importlib.util.find_spec(name) if known else None  # which imports nothing
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (conf := Path(place, *inner)).is_dir() and _may_declare(point, Path(place).parent):
            return Package(name, Path(place).parent, conf)
    owner = point.dist.name if point.dist else point.name
    raise ConfigError(
        f"The installed package {owner} declares the entry point {point.name} = {point.value} in {GROUP}, but has no "
        f"such folder of configuration files. Mend it, or uninstall it: pip uninstall {owner}"
    )


def _may_declare(point: EntryPoint, parent: Path) -> bool:
    """Whether an entry point is installed, or lies beside the package that it declares.

    Metadata in the current folder, which Python finds too, must not speak for packages that are elsewhere.
    """
    if point.dist is None:
        return False
    metadata = Path(str(point.dist.locate_file(""))).resolve()
    installed = (*site.getsitepackages(), site.getusersitepackages())
    return metadata in {parent.resolve(), *(Path(folder).resolve() for folder in installed)}
