"""Trackers that write files on this machine, read back by those who show them."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedexp.errors import ConfigError, DiskError
from fedexp.runs.directory import RunDir
from fedexp.track.__main__ import main
from fedexp.track.from_disk import card_of
from fedexp.track.lightning import LightningTracker
from fedexp.track.tensorboard import TensorBoardTracker
from fedexp.track.trackio import TrackioTracker
from tests.unit.report import made
from tests.unit.report.made import aggregation, write_run
from tests.unit.track.cards import RESULT, ROUNDS, card, record, records

CSV = {"_target_": "lightning.pytorch.loggers.CSVLogger"}


def mirror(tracker: Any, path: Path, history: int, until: int, result: dict[str, Any] | None) -> None:
    tracker.start(card(path), records(history))
    for round_ in range(history + 1, until + 1):
        tracker.log(record(round_))
    tracker.finish(result)


# ---------------------------------------------------------------- TensorBoard
def events(path: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (path / "tensorboard").iterdir()
    return EventAccumulator(str(folder)).Reload()


def test_tensorboard_has_each_round_once_however_often_a_run_is_resumed(tmp_path: Path) -> None:
    mirror(TensorBoardTracker(figures=()), tmp_path, 0, 3, None)
    mirror(TensorBoardTracker(figures=()), tmp_path, 2, ROUNDS, RESULT)
    seen = events(tmp_path)
    scalars = seen.Scalars("aggregation/accuracy")
    assert [event.step for event in scalars] == [1, 2, 3, 4]
    assert [event.value for event in scalars] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    apart = [b.wall_time - a.wall_time for a, b in pairwise(scalars)]
    assert apart == pytest.approx([2, 2, 2], abs=0.01)  # as on the run's own clock
    assert seen.Scalars("aggregation/class/pullover")[-1].value == pytest.approx(0.4)
    assert seen.Scalars("result/aggregation/best")[0].value == pytest.approx(0.45)
    assert "personalization/clients" in seen.Tags()["histograms"]
    assert {"_hparams_/experiment", "_hparams_/session_start_info"} <= set(seen.summary_metadata)


def test_tensorboard_shows_pictures_of_a_finished_run(tmp_path: Path) -> None:
    path = write_run(tmp_path, "map", 1).path
    told, result = card_of(path)
    tracker = TensorBoardTracker(figures=["partition"])
    tracker.start(told, RunDir(path).records())
    tracker.finish(result)
    (image,) = events(path).Images("figures/partition")
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert image.height > 500


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "mine")
    with pytest.raises(DiskError, match="is a symbolic link"):
        TensorBoardTracker(figures=()).start(card(tmp_path / "run"), [])
    assert (tmp_path / "mine" / "thesis.txt").exists()


# ---------------------------------------------------------------- loggers of Lightning
def test_lightning_csv(tmp_path: Path) -> None:
    mirror(LightningTracker(CSV), tmp_path, 0, 2, None)
    mirror(LightningTracker(CSV), tmp_path, 2, ROUNDS, RESULT)
    (file,) = tmp_path.glob("lightning/*/lightning_logs/version_0/metrics.csv")
    rows = list(csv.DictReader(file.open()))
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4]
    assert float(rows[2]["aggregation/accuracy"]) == pytest.approx(0.3)
    assert float(rows[3]["result/aggregation/best"]) == 0.45
    assert "command:" in file.with_name("hparams.yaml").read_text()


def test_lightning_tensorboard_with_settings_of_its_own(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    node = {
        "_target_": "lightning.pytorch.loggers.TensorBoardLogger", "save_dir": str(tmp_path / "mine"), "name": "x",
    }  # fmt: skip
    mirror(LightningTracker(node), tmp_path, 0, ROUNDS, RESULT)
    seen = EventAccumulator(str(tmp_path / "mine" / "x" / "version_0")).Reload()
    assert [event.step for event in seen.Scalars("aggregation/accuracy")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"_target_": "os.system"}, "is neither in fedexp"),
        ({"_target_": "lightning.pytorch.Trainer"}, "is neither in fedexp"),
        ({"_target_": "lightning.pytorch.loggers.NoLogger"}, "cannot be imported"),
        (
            {**CSV, "nam": "x"},
            "logger.nam is not a setting of lightning.pytorch.loggers.CSVLogger. Did you mean 'name'",
        ),
        ({}, "must be module.name"),
    ],
)
def test_a_logger_that_cannot_be_is_told_at_once(node: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LightningTracker(node)


# ---------------------------------------------------------------- Trackio
QUERY = """
import json, trackio
from trackio.sqlite_storage import SQLiteStorage
runs = {run.name: SQLiteStorage.get_logs("thesis", run.name) for run in trackio.Api().runs("thesis")}
configs = [run.config for run in trackio.Api().runs("thesis")]
print(json.dumps([runs, configs]))
"""


def trackio_says() -> Any:
    done = subprocess.run([sys.executable, "-c", QUERY], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_trackio_has_each_run_once_however_often_it_is_mirrored(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "map", 1).path
    command = [sys.executable, "-m", "fedexp.track", "sync", "trackio", str(tmp_path / "runs"), "project=thesis"]
    for _ in range(2):  # in another process, since Trackio reads its folder when it is imported
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("1 run mirrored to trackio\n")
        assert done.stdout.count("\n") == 2  # nothing of Trackio's own
    runs, (config,) = trackio_says()
    ((name, logs),) = runs.items()
    assert name.startswith(f"{path.name} map ")
    assert [row["round"] for row in logs] == [1, 2, 3, 4]
    assert [row["step"] for row in logs] == [1, 2, 3, 4]
    assert logs[3]["aggregation/accuracy"] == pytest.approx(aggregation("map", 1, 4))
    assert logs[3]["status"] == "finished"
    assert config["local.epochs"] == 5
    assert config["run"] == path.name


def test_trackio_tells_when_it_has_only_warned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import warnings

    import trackio

    class Full:
        def runs(self, project: str) -> list[Any]:
            return []

    def warn(*_: Any, **__: Any) -> None:
        warnings.warn("Could not flush all logs", stacklevel=1)

    monkeypatch.setattr(trackio, "Api", Full)
    monkeypatch.setattr(trackio, "init", lambda *_, **__: type("Run", (), {"log": warn})())
    monkeypatch.setattr(trackio, "finish", lambda: None)
    tracker = TrackioTracker("thesis")
    tracker.start(card(tmp_path), records())
    with pytest.raises(Exception, match="Could not flush"):
        tracker.finish(RESULT)


# ---------------------------------------------------------------- the command
def test_sync_says_what_it_did_and_what_it_could_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "map", 0)
    write_run(tmp_path, "fedavg", 0, done=False)
    damaged = write_run(tmp_path, "map", 1).path
    (damaged / "metrics.jsonl").write_text("{")
    with RunDir(write_run(tmp_path, "fedavg", 1, done=False).path) as running:
        assert main(["sync", "tensorboard", str(tmp_path), "figures=[]"]) == 1
    out = capsys.readouterr().out
    assert out.endswith("2 runs mirrored to tensorboard, 2 not\n")
    assert f"{damaged}" in out
    assert "not mirrored: damaged: " in out
    assert "not mirrored: running: process" in out
    assert not (running.path / "tensorboard").exists()


@pytest.mark.parametrize(("given", "project"), [([], "thesis"), (["project=other"], "other")])
def test_sync_goes_where_the_run_was_to_be_mirrored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], project: str
) -> None:
    """A failed tracker prints `sync trackio FOLDER`, which must not make another project of it."""
    usual, own = made._config, {"trackio": {"_target_": "os.system", "project": "thesis"}}
    monkeypatch.setattr(made, "_config", lambda *settings: {**usual(*settings), "tracker": own})
    write_run(tmp_path, "map", 0)
    found = []
    monkeypatch.setattr(TrackioTracker, "start", lambda self, *_: found.append(self.project))
    monkeypatch.setattr(TrackioTracker, "finish", lambda *_: None)
    assert main(["sync", "trackio", str(tmp_path), *given]) == 0
    assert found == [project]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Which tracker, and which runs?"),
        (["sync", "wandb"], "Which tracker, and which runs?"),
        (["sync", "wanb", "."], "there is no such choice. Did you mean 'wandb'?"),
        (["sync", "none", "."], "mirrors nothing"),
        (["sync", "null", "."], "mirrors nothing"),
        (["sync", "[tensorboard,lightning]", "."], "is not the name of one tracker"),
        (["sync", "[]", "."], "is not the name of one tracker"),
        (["sync", "tensorboard", ".", "histogram=true"], "tracker.tensorboard.histogram"),
        (["sync", "tensorboard", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_wrong_input_is_told(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) in (1, 2)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("tensorboard", lambda: TensorBoardTracker(figures=())),
        ("trackio", TrackioTracker),
        ("altair", lambda: TensorBoardTracker(figures=["partition"])),
    ],
)
def test_the_package_can_be_missing(monkeypatch: pytest.MonkeyPatch, module: str, make: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r'pip install "fedexp\[(tensorboard|trackio|report)\]"'):
        make()
