"""A wheel carries the configuration and runs without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from fedexp import __version__

ROOT = Path(__file__).parents[2]


def test_wheel_runs_away_from_the_checkout(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.startswith(f"fedexp-{__version__}-")  # which pyproject.toml takes from the package
    names = zipfile.ZipFile(wheel).namelist()
    ours = {str(p.relative_to(ROOT)) for p in (ROOT / "conf").rglob("*.yaml")}
    assert {f"fedexp/{n}" for n in ours} <= set(names)
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = subprocess.run(
        [sys.executable, "-c", "import fedexp as f, fedexp.config.sources as s; print(f.__file__, s.conf_dir())"],
        cwd=tmp_path, env=environment, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert all(line.startswith(str(site)) for line in where.split())
    run = [sys.executable, "-m", "fedexp", "rounds=1", "evaluate.all_clients=false"]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "multirun" / "main").glob("*/result.json"))
