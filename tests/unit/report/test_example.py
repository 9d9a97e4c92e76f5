"""The sweep that is committed in multirun/example: its tables in all formats, its report, and that it is still ours."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.config.sources import conf_dir
from fedexp.report.__main__ import main as report
from fedexp.report.load import load
from fedexp.runs.__main__ import main as runs

EXAMPLE = conf_dir().parent / "multirun" / "example"
GOLDEN = Path(__file__).parent / "golden"
METRICS = "metric=aggregation.last,personalization.mean,missing.absent"

pytestmark = pytest.mark.skipif(not EXAMPLE.is_dir(), reason="multirun/example is not part of a source distribution")


@pytest.mark.parametrize("name", ["table.md", "table.tex", "table.csv"])
def test_its_table_is_as_it_was(name, tmp_path, request):
    assert runs(["table", str(EXAMPLE), METRICS, "compare=fedavg", f"to={tmp_path / name}"]) == 0
    found = (tmp_path / name).read_text()
    if request.config.getoption("--regold"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(found)
    assert rounded(found) == rounded((GOLDEN / name).read_text())


def rounded(text: str) -> str:
    """The text with six digits of each long number: the rest depends on the order of sums."""
    return re.sub(r"\d+\.\d{7,}", lambda number: f"{float(number[0]):.6g}", text)


def test_all_its_runs_are_whole():
    found = load(EXAMPLE)
    assert found.status["status"].tolist() == ["done"] * 9
    assert set(found.rounds.groupby("run").size()) == {10}
    assert set(found.probes["probe"]) == {"class_means"}


def test_its_report_has_every_part(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "example")
    assert report([str(tmp_path / "example")]) == 0
    text = (tmp_path / "example" / "report.html").read_text()
    for heading in ("Accuracy of both goals", "Missing classes", "Both goals", "Angles between class means", "Cost"):
        assert heading in text
    assert "python -m fedexp -m algo=fedavg,fedrs,map partition.max_classes=2" in text  # the command that made it
    assert len(text) < 2_000_000


def test_its_runs_have_the_ids_that_their_settings_have_today():
    """Else it was made by another version: make it again with the command in multirun/README.md."""
    (manifest,) = EXAMPLE.glob("sweep-*.json")
    jobs = json.loads(manifest.read_text())["jobs"]
    assert len(jobs) == 9
    for job in jobs:
        assert run_path(composed(job["overrides"])).name == job["run"]
