"""Which packages are installed, and which of them are too old, known to be bad, or do not fit together."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedexp.errors import FedexpError

PROJECT = Path(__file__).parents[2] / "pyproject.toml"  # in a checkout
DIRTY = "-dirty"  # after a commit: files were changed since
DEVELOPMENT = "dev"  # the extra that runs do not need
REASONS = (  # why versions are ruled out, where it is not only their age
    (Requirement("torch==2.13.0"), "its CPU wheel does not work with torchvision"),
    (Requirement("omegaconf>=2.4"), "Hydra 1.3 does not work with OmegaConf 2.4"),
    (Requirement("lightning>=2.6.2,<2.6.4"), "2.6.2 and 2.6.3 were malicious uploads"),
    (Requirement("pytorch-lightning>=2.6.2,<2.6.4"), "2.6.2 and 2.6.3 were malicious uploads"),
    (Requirement("ray<2.59"), "before 2.59, a local Ray asks for no token"),
)


def needed() -> dict[str, list[Requirement]]:
    """What fedexp needs: under "" what every run does, under the name of an extra what that adds.

    Raises:
        FedexpError: If that is written nowhere.
    """
    if PROJECT.is_file():
        project = tomllib.loads(PROJECT.read_text())["project"]
        groups: Mapping[str, list[str]] = {"": project["dependencies"], **project["optional-dependencies"]}
        return {k: [Requirement(line) for line in lines] for k, lines in groups.items() if k != DEVELOPMENT}
    try:
        extras = metadata.metadata("fedexp").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        raise FedexpError("fedexp is neither installed nor in a checkout. pip install it.") from None
    always = list(applicable("fedexp"))
    added = {e: [r for r in applicable("fedexp", e) if r not in always] for e in extras if e != DEVELOPMENT}
    return {"": always, **added}


def installed(name: str) -> str | None:
    """The installed version of a package; None if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def applicable(name: str, extra: str = "") -> Iterator[Requirement]:
    """What an installed package needs on this machine."""
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def commit(folder: Path) -> str:
    """The commit that is checked out in the repository around a folder; empty if there is none."""
    asked = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", f"--dirty={DIRTY}"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()


def problems() -> list[str]:
    """Everything that is wrong with what is installed, as sentences that say what to do."""
    groups = needed()
    found = {r.name: _absent(r) for r in groups[""] if installed(r.name) is None}
    for requirement in (r for requirements in groups.values() for r in requirements):
        if words := _misfit(requirement, "fedexp"):
            found.setdefault(requirement.name, words)
    for owner in _all_needed(groups):
        for requirement in applicable(owner):
            if words := _misfit(requirement, f"{owner} {installed(owner)}"):
                found.setdefault(requirement.name, words)
    return list(found.values())


def _all_needed(groups: Mapping[str, list[Requirement]]) -> list[str]:
    """The installed packages that fedexp needs, and those that they need in turn."""
    names = [r.name for requirements in groups.values() for r in requirements]
    seen: dict[str, str] = {}
    while names:
        name = names.pop()
        if canonicalize_name(name) not in seen and installed(name) is not None:
            seen[canonicalize_name(name)] = name
            names += [r.name for r in applicable(name)]
    return list(seen.values())


def _absent(requirement: Requirement) -> str:
    return f"{requirement.name} is not installed. {_remedy(requirement)}"


def _misfit(requirement: Requirement, owner: str) -> str | None:
    """Why the installed version of a package is not one that its user needs; None if it is, or is not installed."""
    version = installed(requirement.name)
    if version is None or requirement.specifier.contains(version, prereleases=True):
        return None
    reasons = (why for bad, why in REASONS if bad.name == requirement.name and bad.specifier.contains(version))
    because = f" ({why})" if (why := next(reasons, "")) else ""
    wanted = f"{requirement.name}{requirement.specifier}"
    return f"{requirement.name} {version} is installed, but {owner} needs {wanted}{because}. {_remedy(requirement)}"


def _remedy(requirement: Requirement) -> str:
    return f"pip install '{requirement.name}{requirement.specifier}'"
