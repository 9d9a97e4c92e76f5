"""What is installed: known bad versions are ruled out, tested versions are written down, runs need no extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = {canonicalize_name(r.name): r for r in map(Requirement, PROJECT["dependencies"])}
EXTRAS = [r for extra in PROJECT["optional-dependencies"].values() for r in map(Requirement, extra)]
LOCK = (ROOT / ".github" / "tested-versions.txt").read_text().splitlines()


def test_the_version_is_declared_in_the_package_alone():
    files = [ROOT / "pyproject.toml", *(ROOT / "fedexp").rglob("*.py")]
    declaring = [f for f in files if re.search(r"(?m)^(__version__|version) *=", f.read_text())]
    assert declaring == [ROOT / "fedexp" / "__init__.py"]
    assert "version" in PROJECT["dynamic"]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("lightning", ("2.6.2", "2.6.3")),  # malicious uploads
        ("pytorch-lightning", ("2.6.2", "2.6.3")),
        ("torch", ("2.13.0",)),
        ("ray", ("2.58.0",)),  # before 2.59, a local Ray asks for no token by default
    ],
)
def test_versions_that_must_not_be_installed(name, bad):
    (requirement,) = {r for r in (*NEEDED.values(), *EXTRAS) if r.name == name}
    assert not list(requirement.specifier.filter(bad))


def test_tested_versions_are_names_and_versions_only():
    assert len(LOCK) > 50  # of all that is installed, not only of what is asked for
    assert [line for line in LOCK if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_every_dependency_has_a_tested_version_in_its_range():
    tested = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LOCK)}
    direct = [r for r in (*NEEDED.values(), *EXTRAS) if r.name != PROJECT["name"]]
    assert [r.name for r in direct if canonicalize_name(r.name) not in tested] == []
    wrong = [r for r in direct if not r.specifier.contains(tested[canonicalize_name(r.name)])]
    assert wrong == []


def test_no_module_needs_an_extra_to_be_imported():
    """``pip install -e . && python -m fedexp`` works because of this."""
    homes = packages_distributions()
    allowed = {"fedexp", *sys.stdlib_module_names}
    needless = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / "fedexp").rglob("*.py")
        for module in _imported_at_once(ast.parse(path.read_text()))
        if module not in allowed and not {canonicalize_name(n) for n in homes.get(module, [])} & NEEDED.keys()
    }
    assert needless == set()


def _imported_at_once(node: ast.AST) -> Iterator[str]:
    """The top-level packages that are imported when a module is, and not in a function or for a type checker only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield str(child.module).partition(".")[0]
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (name for rest in child.orelse for name in _imported_at_once(rest))
        elif not isinstance(child, ast.FunctionDef):
            yield from _imported_at_once(child)
