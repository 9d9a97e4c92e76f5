"""What .github/CONTRIBUTING.md says to be public is there, and is enough for the examples of README and guide."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.integration.test_readme import EXAMPLE

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
ROWS = re.findall(r"^\| (`fedexp[\w.]*`.*?) \| (.*) \|$", TEXT.partition("## What is public")[2], re.MULTILINE)
PUBLIC = {module: re.findall(r"`(\w+)`", names) for row, names in ROWS for module in re.findall(r"`([\w.]+)`", row)}


@pytest.mark.parametrize("module", PUBLIC)
def test_what_is_public_is_there(module):
    found = import_module(module)
    assert [name for name in PUBLIC[module] if not hasattr(found, name)] == []


def test_the_package_exports_what_is_public():
    assert sorted(import_module("fedexp").__all__) == sorted(PUBLIC["fedexp"])


def test_the_readmes_example_needs_nothing_else():
    code = "".join(text for name, text in EXAMPLE.items() if name.endswith(".py"))
    needed = set(re.findall(r"^from (fedexp\S*) import", code, re.MULTILINE))
    assert len(needed) > 5
    assert needed <= PUBLIC.keys()


def test_files_and_folders_that_contributors_are_sent_to_are_there():
    named = re.findall(r"`((?:fedexp|conf|tests|\.github)/[\w./-]*)`", TEXT)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_files_and_folders_that_the_architecture_names_are_there():
    text = (ROOT / ".github" / "ARCHITECTURE.md").read_text()
    named = [name for name in re.findall(r"`((?:fedexp|conf|tests)/[\w./<>-]*)`", text) if "<" not in name]
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
    folders = {name.rpartition("/")[0] for name in re.findall(r"`((?:fedexp|conf)/[\w./]*)<", text)}
    assert [name for name in folders if name and not (ROOT / name).is_dir()] == []
