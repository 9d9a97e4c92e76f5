"""Dashboards: what they are made of, and how they get to the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedexp.dashboard.__main__ import main
from fedexp.track import series
from tests.unit.report.made import write_run
from tests.unit.track.cards import record
from tests.unit.track.wandb_server import ENTITY, WandbServer

NO_RESULTS = ["results=nowhere", "out=nowhere"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dry(*arguments: str) -> dict[str, Any]:
    assert main(["project=thesis", "dry=true", *NO_RESULTS, *arguments]) == 0
    whole: dict[str, Any] = json.loads(Path("dashboard.json").read_text())
    return whole


def panels(told: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found = told["workspace"]["spec"]["section"]["panelBankConfig"]["sections"]
    return {section["name"]: section["panels"] for section in found}


def test_dry_needs_no_key_and_no_network_and_is_the_same_every_time() -> None:
    first = dry("reproduce=map/table1")
    assert first == dry("reproduce=map/table1")
    assert first["workspace"]["name"] == "fedexp"
    assert list(panels(first)) == [
        "Both goals", "Fairness", "Classes", "Missing classes", "Settings", "Cost", "Pictures",
    ]  # fmt: skip


def test_both_goals_are_drawn_over_rounds_bytes_and_seconds_and_against_each_other() -> None:
    *lines, plane = panels(dry())["Both goals"]
    drawn = {(panel["config"]["xAxis"], *panel["config"]["metrics"]) for panel in lines}
    goals = ("aggregation/accuracy", "personalization/accuracy")
    assert drawn == {(x, y) for x in ("round", "bytes/total", "seconds/elapsed") for y in goals}
    assert plane["viewType"] == "Scatter Plot"
    assert plane["config"]["xAxis"] == "summary:result/aggregation/mean"
    assert plane["config"]["yAxis"] == "summary:result/personalization/mean"


def test_what_is_drawn_is_what_trackers_log() -> None:
    """Each series of the dashboard is one of a real record."""
    real = record(1) | {"missing": dict.fromkeys(
        ("owned", "owned_restricted", "absent", "rare", "forgotten", "predicted_owned"), 0.5)}  # fmt: skip
    real["personalization"]["worst_decile"] = 0.1
    real["personalization"]["per_class"] = [0.1]
    logged = {*series.row(real), *dict(series.distributions(real))}
    for panel in (panel for some in panels(dry()).values() for panel in some):
        for key in panel["config"].get("metrics", ()):
            assert key in logged
        if pattern := panel["config"].get("metricRegex"):
            assert any(re.fullmatch(pattern, key) for key in logged)


def test_settings_are_axes_and_groups() -> None:
    told = dry("settings=algo,algo.rs.alpha", "by=algo,partition.max_classes")
    (parallel, *_) = panels(told)["Settings"]
    assert [column["accessor"] for column in parallel["config"]["columns"]] == [
        "config:choices.value.algo", "config:algo.value.rs.alpha",
        "summary:result/aggregation/mean", "summary:result/personalization/mean",
    ]  # fmt: skip
    (runs,) = told["workspace"]["spec"]["section"]["runSets"]
    assert [key["name"] for key in runs["grouping"]] == ["choices.value.algo", "partition.value.max_classes"]


def test_settings_in_which_runs_differ_are_axes(tmp_path: Path) -> None:
    for alpha in (0.1, 0.5):
        write_run(tmp_path / "runs", "fedrs", 0, alpha=alpha)
    write_run(tmp_path / "runs", "fedrs", 1, alpha=0.5)
    (parallel, *_) = panels(dry("runs=runs"))["Settings"]
    assert [column["displayName"] for column in parallel["config"]["columns"]] == [
        "algo.rs.alpha", "aggregation", "personalization",
    ]  # fmt: skip


def test_a_report_has_the_table_and_the_runs_of_each_setting() -> None:
    (told,) = dry("reproduce=map/table1")["reports"]
    assert told["name"].startswith("map/table1: ")
    kinds = [block["type"] for block in told["spec"]["blocks"]]
    assert kinds.count("panel-grid") == kinds.count("heading") > 5
    (markdown,) = [block for block in told["spec"]["blocks"] if block["type"] == "markdown-block"]
    assert "| FedAvg | – | 86.2 ± 0.92 | missing |" in markdown["content"]
    grids = [block["metadata"] for block in told["spec"]["blocks"] if block["type"] == "panel-grid"]
    chosen = [json.dumps(grid["runSets"][0]["filters"]) for grid in grids]
    assert any("map/fmnist_mlpnet" in text for text in chosen)


def test_saving_twice_changes_the_same_workspace_and_reports(
    server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["project=thesis", "reproduce=map/table1,fedrs/table2", *NO_RESULTS]
    assert main(command) == 0
    first = dict(server.views)
    assert sorted(view["type"] for view in first.values()) == ["project-view", "runs", "runs"]
    assert {view["entityName"] for view in first.values()} == {ENTITY}
    assert main(command) == 0
    assert {number: view["spec"] for number, view in server.views.items()} == {
        number: view["spec"] for number, view in first.items()
    }
    told = json.loads(next(view for view in first.values() if view["type"] == "project-view")["spec"])
    assert told == dry()["workspace"]["spec"]
    assert main([*command, "name=another"]) == 0
    assert len(server.views) == 4
    assert capsys.readouterr().out.count("workspace  http") == 3


def test_a_project_that_is_not_there_is_told(server: WandbServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["project=thesus", *NO_RESULTS]) == 2
    assert "someone has no such project" in capsys.readouterr().err
    assert main(["project=my thesis", *NO_RESULTS]) == 2
    assert "multirun/NAME 'project=my thesis'" in capsys.readouterr().err.replace("\n", " ")
    assert server.views == {}


def test_a_server_that_refuses_is_told(server: WandbServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.trouble = lambda path: 409
    assert main(["project=thesis", *NO_RESULTS]) == 1
    assert "W&B did not take it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Which W&B project?"),
        (["project=x", "dry=maybe"], "dry=maybe: this must be true or false"),
        (["project=x", "colour=red"], "colour is not known here"),
        (["project=x"], "needs a W&B API key"),
        (["project=x", "dry=true", "reproduce=map/tabel1"], "'map/table1'"),
        (["project=x", "dry=true", "runs=nowhere"], "nowhere is not a folder"),
    ],
)
def test_wrong_input_is_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) in (1, 2)
    assert words in capsys.readouterr().err


def test_the_package_can_be_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("wandb_workspaces", "wandb_workspaces.workspaces", "wandb_workspaces.reports.v2"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["project=x", "dry=true", *NO_RESULTS]) == 2
    assert 'pip install "fedexp[dashboard]"' in capsys.readouterr().err


def test_heavy_packages_stay_out_of_the_imports() -> None:
    code = (
        "import sys, fedexp.dashboard.__main__, fedexp.dashboard.make, fedexp.dashboard.save\n"
        "heavy = {'torch', 'wandb', 'wandb_workspaces', 'pandas', 'altair'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
