"""W&B online, against an imitation of its server on loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import wandb
from packaging.version import Version

from fedexp.runs.directory import RunDir
from fedexp.track import RunCard, Trackers
from fedexp.track.__main__ import main
from fedexp.track.from_disk import card_of
from fedexp.track.wandb import WandbTracker
from tests.unit.report.made import write_run
from tests.unit.track.cards import RESULT, ROUNDS, RUN, TITLE, card, record, records
from tests.unit.track.wandb_server import Kept, WandbServer

PLAIN: dict[str, Any] = {"mode": "online", "project": "thesis", "figures": (), "clients": False, "patience": 20}


def mirror(path: Path, history: int, until: int, result: dict[str, Any] | None = None, **more: Any) -> None:
    """A run that has some records on file, and makes more."""
    tracker = WandbTracker(**{**PLAIN, **more})
    tracker.start(card(path), records(history))
    for round_ in range(history + 1, until + 1):
        tracker.log(record(round_))
    tracker.finish(result)


def test_everything_arrives(server: WandbServer, tmp_path: Path) -> None:
    mirror(tmp_path, 0, ROUNDS, RESULT, tags=["mine"])
    kept = server.runs[RUN]
    assert kept.rounds == [1, 2, 3, 4]
    row = kept.rows[2]
    assert row["aggregation/accuracy"] == pytest.approx(0.3)
    assert row["aggregation/class/pullover"] == pytest.approx(0.3)
    assert row["bytes/total"] == 333
    assert row["personalization/clients"]["_type"] == "histogram"
    assert "personalization/worst_decile" not in row
    assert (kept.exit, kept.summary["status"], kept.summary["result/aggregation/best"]) == (0, "finished", 0.45)
    assert kept.summary["aggregation/accuracy"] == {"max": 0.4, "last": 0.4}
    told = kept.variables
    assert (told["project"], told["groupName"], told["jobType"]) == ("thesis", "table2", "map")
    assert told["displayName"] == TITLE
    assert told["notes"].startswith("python -m fedexp data=fmnist experiment=map/fmnist_mlpnet ")
    assert told["commit"] == "0123456789abcdef0123456789abcdef01234567"
    assert told["tags"] == ["paper:map", "experiment:map/fmnist_mlpnet", "data:fmnist", "partition:incomplete", "mine"]
    assert kept.config["local"] == {"lr": 0.1}
    assert kept.config["plan"] == {"phases": ["rs", "hpm"]}
    assert "config.yaml" in kept.files


@pytest.mark.parametrize(("arrived", "on_file"), [(2, 2), (3, 1), (1, 3)])
def test_a_resumed_run_adds_what_is_missing(server: WandbServer, tmp_path: Path, arrived: int, on_file: int) -> None:
    """W&B may have more rounds than the last checkpoint, or fewer, if it was away."""
    mirror(tmp_path, 0, arrived)
    assert (server.runs[RUN].rounds, server.runs[RUN].exit) == (list(range(1, arrived + 1)), 1)
    mirror(tmp_path, on_file, ROUNDS, RESULT)
    kept = server.runs[RUN]
    assert kept.rounds == [1, 2, 3, 4]
    assert [row["_step"] for row in kept.rows] == [0, 1, 2, 3]
    assert (kept.exit, kept.summary["status"]) == (0, "finished")


def test_the_rows_count_and_not_an_old_summary(server: WandbServer, tmp_path: Path) -> None:
    """A client that was killed may have sent rows that its summary does not know of yet."""
    mirror(tmp_path, 0, 3)
    server.runs[RUN].streams["wandb-summary.json"] = {0: '{"round": 1}'}
    mirror(tmp_path, 3, ROUNDS, RESULT)
    assert server.runs[RUN].rounds == [1, 2, 3, 4]


@pytest.mark.parametrize(("path", "status"), [("/file_stream", 500), ("/graphql", 500)])
def test_errors_that_pass_lose_nothing(server: WandbServer, tmp_path: Path, path: str, status: int) -> None:
    left = [2]

    def trouble(asked: str) -> int | None:
        if asked.endswith(path) and left[0]:
            left[0] -= 1
            return status
        return None

    server.trouble = trouble
    mirror(tmp_path, 0, ROUNDS, RESULT)
    assert left == [0]
    assert server.runs[RUN].rounds == [1, 2, 3, 4]
    assert server.runs[RUN].exit == 0


@pytest.mark.parametrize("where", ["/file_stream", "/graphql"])
def test_a_refusal_is_told_and_the_run_goes_on(server: WandbServer, tmp_path: Path, where: str) -> None:
    """W&B tries a 409 only once."""
    server.trouble = lambda path: 409 if path.endswith(where) else None
    said = play(WandbTracker(**PLAIN), tmp_path)
    server.trouble = lambda path: None
    wandb.teardown()  # which still holds the id of a run that could not begin
    assert "tracker wandb failed" in said
    assert "409" in said
    mirror(tmp_path, ROUNDS, ROUNDS, RESULT)
    assert server.runs[RUN].rounds == [1, 2, 3, 4]


def play(tracker: WandbTracker, path: Path, during: Any = lambda round_: None) -> str:
    """A run with one tracker; returns what the user is told."""
    said: list[str] = []
    trackers = Trackers({"wandb": tracker}, said.append)
    trackers.start(card(path), [])
    for round_ in range(1, ROUNDS + 1):
        during(round_)
        trackers.log(record(round_))
    trackers.finish(RESULT)
    return "\n".join(said)


def test_a_server_that_goes_away_stops_nothing_and_loses_nothing(server: WandbServer, tmp_path: Path) -> None:
    def during(round_: int) -> None:
        if round_ == 3:
            wait_for(server.runs[RUN], 2)
            server.close()

    started = time.monotonic()
    said = play(WandbTracker(**PLAIN | {"patience": 3}), tmp_path, during)
    assert time.monotonic() - started < 60
    assert "tracker wandb failed" in said
    assert f"python -m fedexp.track sync wandb {tmp_path}" in said
    server.open()
    assert server.runs[RUN].rounds == [1, 2]
    mirror(tmp_path, ROUNDS, ROUNDS, RESULT)
    assert server.runs[RUN].rounds == [1, 2, 3, 4]
    assert server.runs[RUN].summary["status"] == "finished"


def wait_for(kept: Kept, rows: int) -> None:
    end = time.monotonic() + 40
    while len(kept.rows) < rows:
        assert time.monotonic() < end, "the rows never came"
        time.sleep(0.1)


@pytest.mark.parametrize("mode", ["auto", "online"])
def test_a_server_that_is_not_there_stops_nothing(server: WandbServer, tmp_path: Path, mode: str) -> None:
    server.close()
    said = play(WandbTracker(**PLAIN | {"mode": mode, "patience": 2}), tmp_path)
    assert f"python -m fedexp.track sync wandb {tmp_path}" in said


# ---------------------------------------------------------------- from disk
def sweep(folder: Path) -> list[RunCard]:
    runs = [write_run(folder, "map", 0), write_run(folder, "map", 1), write_run(folder, "fedavg", 0, done=False)]
    return [card_of(run.path)[0] for run in runs]


def test_sync_again_and_again_has_each_row_once(
    server: WandbServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cards = sweep(tmp_path / "runs")
    command = ["sync", "wandb", str(tmp_path / "runs"), "project=thesis", "figures=[]", "clients=false", "patience=20"]
    assert main(command) == 0
    first = {run: kept.rows for run, kept in server.runs.items()}
    assert {run: kept.rounds for run, kept in server.runs.items()} == {each.run: [1, 2, 3, 4] for each in cards}
    assert [server.runs[each.run].summary["status"] for each in cards] == ["finished", "finished", "stopped"]
    assert main(command) == 0
    assert {run: kept.rows for run, kept in server.runs.items()} == first
    assert capsys.readouterr().out.count("3 runs mirrored to wandb") == 2
    assert len(list(cards[0].path.glob("wandb/run-*"))) == 1  # what W&B keeps does not pile up


def test_a_run_that_w_and_b_refuses_does_not_keep_the_others(
    server: WandbServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = sweep(tmp_path / "runs")
    server.refused = {first.run}
    assert main(["sync", "wandb", str(tmp_path / "runs"), "figures=[]", "clients=false", "patience=5"]) == 1
    assert server.runs.keys() == {each.run for each in others}
    out = capsys.readouterr().out
    assert "not mirrored: " in out
    assert "2 runs mirrored to wandb, 1 not" in out


def test_an_offline_fragment_that_was_uploaded_is_completed(server: WandbServer, tmp_path: Path) -> None:
    """``wandb sync``, which is W&B's own command, would append a second fragment to the first."""
    mirror(tmp_path, 0, 2, mode="offline")
    upload(tmp_path)
    assert server.runs[RUN].rounds == [1, 2]
    mirror(tmp_path, ROUNDS, ROUNDS, RESULT)
    assert server.runs[RUN].rounds == [1, 2, 3, 4]
    assert server.runs[RUN].exit == 0


def upload(path: Path) -> None:
    (fragment,) = path.glob("wandb/offline-run-*")
    command = [sys.executable, "-m", "wandb", "sync", str(fragment)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(Version(wandb.__version__) < Version("0.31"), reason="it asks what the imitation does not know")
def test_pictures_tables_and_the_model_arrive(server: WandbServer, tmp_path: Path) -> None:
    path = write_run(tmp_path, "map", 1).path
    told, result = card_of(path)
    tracker = WandbTracker(mode="online", project="thesis", model=True)
    tracker.start(told, RunDir(path).records())
    tracker.finish(result)
    kept = server.runs[told.run]
    assert kept.rows[-1]["figures/partition"]["_type"] == "image-file"
    assert kept.files[kept.rows[-1]["figures/partition"]["path"]].startswith(b"\x89PNG")
    assert kept.summary["clients"]["_type"] == "table-file"
    assert {each["input"]["artifactTypeName"] for each in server.artifacts} == {"run_table", "model"}
    assert kept.rounds == [1, 2, 3, 4]
