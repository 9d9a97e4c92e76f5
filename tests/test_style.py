"""Lint, format, types and spelling: what is not worth a reviewer's time is found by ``pytest`` alone."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
ADRS = sorted((ROOT / ".github" / "adr").glob("*.md"))


@pytest.mark.parametrize("command", [hook["entry"] for hook in HOOKS])
def test_the_repository_passes(command):
    tool, *arguments = shlex.split(command)
    program = shutil.which(tool, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        pytest.skip(f"{tool} is not installed: pip install -e '.[dev]'")
    done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_hooks_are_those_that_contributors_rely_on():
    assert {hook["id"] for hook in HOOKS} == {"ruff", "ruff-format", "mypy", "codespell", "yamllint"}


@pytest.mark.parametrize("path", ADRS, ids=lambda path: path.stem)
def test_every_decision_has_a_status_and_a_date(path):
    title, _, *head = path.read_text().splitlines()[:5]
    assert title.startswith("# ")
    assert re.match(r"Status: (accepted|superseded by \d{4})", head[0])
    assert re.search(r"Date: \d{4}-\d{2}-\d{2}$", "\n".join(head[:2]), re.MULTILINE)


def test_no_two_decisions_have_the_same_number():
    numbers = [path.name[:4] for path in ADRS]
    assert len(numbers) == len(set(numbers)) > 0
