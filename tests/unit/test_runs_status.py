"""What is done, and what is missing."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from fedexp import sweep
from fedexp.config import composed, overrides_of, run_id, run_path
from fedexp.errors import ClientError, FedexpError
from fedexp.manifest import Manifest
from fedexp.rundir import RunDir
from fedexp.runs.__main__ import main
from fedexp.runs.status import show_status, survey


@pytest.fixture
def begun(configured):
    """A run directory as it is when a run has begun."""

    def begin(*more: str) -> RunDir:
        config = configured(*more)
        rundir = RunDir(run_path(config))
        rundir.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
        rundir.write("plan.json", {})
        return rundir

    return begin


@pytest.fixture
def manifest(configured):
    """A sweep over five seeds."""
    seeds = [f"seed={seed}" for seed in range(5)]
    announced = Manifest.of([(["algo=fedavg", seed], configured(seed)) for seed in seeds])
    announced.write()
    return announced


def states(folder: Path) -> dict[str, tuple[str, str]]:
    return {run.label: (run.state, run.rounds) for run in survey(folder)}


def test_every_state_of_a_job(manifest, begun):
    begun("seed=0").write("result.json", {})
    rundir = begun("seed=1")
    (rundir.path / "checkpoint").mkdir()
    rundir.write("checkpoint/latest.json", {"round": 2})
    with pytest.raises(ZeroDivisionError), (failed := begun("seed=2")), failed.failures():
        _ = 1 / 0
    sweep.record_job(manifest.reports, 3, overrides=[], status="failed", error="DataError: no such file")
    assert states(manifest.folder) == {
        "seed=0": ("done", "3/3"),
        "seed=1": ("partial", "2/3"),
        "seed=2": ("failed", "0/3"),
        "seed=3": ("failed", "–"),
        "seed=4": ("missing", "–"),
    }
    notes = {run.label: run.note for run in survey(manifest.folder)}
    assert notes["seed=2"] == "ZeroDivisionError: division by zero"
    assert notes["seed=3"] == "DataError: no such file"


def test_a_run_that_is_being_written(manifest, begun):
    rundir = begun("seed=1")
    rundir.append_rows("clients.csv", ["round", "client"], [{"round": t, "client": 0} for t in (1, 2)])
    assert states(manifest.folder)["seed=1"] == ("partial", "0/3")
    with rundir:
        assert states(manifest.folder)["seed=1"] == ("running", "2/3")
        assert rundir.holder().startswith("process ")
    assert states(manifest.folder)["seed=1"] == ("partial", "0/3")
    with rundir:  # a look does not keep the run from being taken up
        pass


def test_a_new_attempt_forgets_why_the_last_one_failed(begun):
    rundir = begun()
    with pytest.raises(ValueError, match="x"), rundir.failures():
        raise ValueError("x\n  y")
    assert rundir.error() == "ValueError: x y"
    assert "Traceback" in (rundir.path / "error.txt").read_text()
    with rundir.failures():
        assert rundir.error() is None
    assert rundir.error() is None


def test_the_traceback_of_a_client_elsewhere_is_the_one_on_file(begun):
    rundir = begun()
    with pytest.raises(ClientError, match=r"^round 1, client 2: bad \(traceback: .*error\.txt\)$"), rundir.failures():
        raise ClientError("round 1, client 2: bad", "in loss, on another machine")
    assert rundir.error() == "ClientError: round 1, client 2: bad"
    assert (rundir.path / "error.txt").read_text().endswith("in loss, on another machine")


def test_a_stop_is_no_failure(begun):
    rundir = begun()
    with pytest.raises(KeyboardInterrupt), rundir.failures():
        raise KeyboardInterrupt
    assert rundir.error() is None


def test_runs_outside_of_sweeps_are_found_too(manifest, begun):
    begun("seed=0").write("result.json", {})
    begun("seed=77", "algo=map")
    found = {run.path.name: run for run in survey(manifest.folder.parent)}
    assert len(found) == 6
    (other,) = (run for run in found.values() if "seed 77" in run.label)
    assert other.state == "partial"
    _, _, _, *overrides = shlex.split(other.command)
    assert run_path(composed(overrides)) == other.path


def test_exit_codes_and_commands(manifest, begun):
    console = Console(file=io.StringIO(), width=200)
    for seed in range(4):
        begun(f"seed={seed}").write("result.json", {})
    assert show_status(manifest.folder, console) == 1
    text = console.file.getvalue()
    assert "5 runs: 4 done, 1 missing" in text
    assert text.count("python -m fedexp") == 1
    assert "python -m fedexp algo=fedavg seed=4" in text
    begun("seed=4").write("result.json", {})
    assert show_status(manifest.folder, console) == 0


def test_a_moved_folder_is_as_good(manifest, begun, tmp_path):
    begun("seed=0").write("result.json", {})
    moved = manifest.folder.rename(tmp_path / "moved")
    assert states(moved)["seed=0"] == ("done", "3/3")


def test_bad_paths_are_explained(tmp_path, capsys):
    with pytest.raises(FedexpError, match="is not a folder"):
        survey(tmp_path / "nowhere")
    with pytest.raises(FedexpError, match="no run and no sweep in"):
        survey(tmp_path)
    (tmp_path / "sweep-0.json").write_text("[]")
    assert main(["status", str(tmp_path)]) == 2
    assert "is not the manifest of a sweep" in capsys.readouterr().err


def test_usage(capsys):
    assert main(["--help"]) == 0
    assert "status FOLDER" in capsys.readouterr().out
    for wrong in ([], ["status"], ["diff", "a"], ["x"]):
        assert main(wrong) == 2
        assert "status FOLDER" in capsys.readouterr().err


def test_a_manifest_says_what_was_planned(manifest):
    assert Manifest.read(manifest.file(".json")) == manifest
    again = Manifest(manifest.folder, manifest.jobs[::-1])
    assert again.identity == manifest.identity
    sweep.record_job(manifest.reports, 0, overrides=[], status="failed", error="x")
    manifest.write()
    assert sweep.collect(manifest.reports) == []
    assert json.loads(manifest.file(".json").read_text())["jobs"][0]["overrides"] == ["algo=fedavg", "seed=0"]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["algo=scamap", "model.hidden=[8,4]", "name='with space'", "out=/tmp/a-b.c", "local.clip=20", "seed=3"],
        ["sweep=seeds", "algo=fedrs", "algo.rs.alpha=0.25", "data=mnist", "data.root='1'"],
        ["~algo.hpm", "evaluate.all_clients=true", "optim.lr=1e-5"],
    ],
)
def test_overrides_can_be_told_from_a_configuration(overrides):
    config = composed(overrides)
    again = composed(overrides_of(config))
    assert run_id(again) == run_id(config)
    assert {k: v for k, v in again.items() if k != "choices"} == {k: v for k, v in config.items() if k != "choices"}


def test_a_damaged_file_of_one_run_hides_no_other(begun):
    good, bad = begun("seed=1"), begun("seed=2")
    good.write("result.json", {"status": "finished"})
    (bad.path / "result.json").write_text('{"status"')
    states = {run.path: run for run in survey(good.path.parent)}
    assert [states[r.path].state for r in (good, bad)] == ["done", "failed"]
    assert "result.json cannot be read" in states[bad.path].note
