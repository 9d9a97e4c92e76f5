"""Lint, format and types: what is not worth a reviewer's time is found by ``pytest`` alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_the_code_passes(command):
    tool, *arguments = command.split()
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed: pip install -e '.[dev]'")
    done = subprocess.run([sys.executable, "-m", tool, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
