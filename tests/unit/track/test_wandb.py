"""The W&B mirror, read back from the files that W&B itself writes."""

from __future__ import annotations

import json
import logging
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedexp.errors import ConfigError, DiskError
from fedexp.runs.directory import RunDir
from fedexp.track import Tracker
from fedexp.track.from_disk import card_of
from fedexp.track.wandb import WandbTracker
from tests.unit.report.made import CLIENTS, write_run
from tests.unit.track.cards import RESULT, TITLE, card, record

PLAIN = {"mode": "offline", "figures": (), "clients": False}  # without what needs a run directory


def payloads(file: Path) -> Iterator[bytes]:
    """Reads W&B's log: a 7 byte head, then LevelDB's blocks of 32 KiB with (crc, length, kind) chunks."""
    data = file.read_bytes()
    assert data[:4] in (b"", b":W&B")
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if at > len(data):  # still being written
            return
        if kind in (1, 4):  # full, last
            yield whole
            whole = b""


def _dict(items: Any) -> dict[str, Any]:
    """Puts ``(key, [rest of the path], json)`` items together; names with a slash are one key."""
    whole: dict[str, Any] = {}
    for item in items:
        *way, last = item.nested_key or [item.key]
        place = whole
        for step in way:
            place = place.setdefault(step, {})
        place[last] = json.loads(item.value_json)
    return whole


class Offline:
    """The only offline run in a run directory."""

    def __init__(self, path: Path) -> None:
        (self.folder,) = (path / "wandb").glob("offline-run-*")
        (self.file,) = self.folder.glob("*.wandb")
        self.exit: int | None = None
        end = time.monotonic() + 20
        while self.exit is None:  # W&B's own process closes the file a moment after finish() returned
            assert time.monotonic() < end, "the run was never closed"
            self._read()

    def _read(self) -> None:
        from wandb.proto import wandb_internal_pb2

        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.artifacts: list[Any] = []
        for payload in payloads(self.file):
            self._take(wandb_internal_pb2.Record.FromString(payload))

    def _take(self, entry: Any) -> None:
        kind = entry.WhichOneof("record_type")
        if kind == "run":
            self.run = entry.run
            self.config = {item.key: json.loads(item.value_json) for item in entry.run.config.update}
        elif kind == "history":
            self.rows.append(_dict(entry.history.item))
        elif kind == "summary":
            self.summary |= _dict(entry.summary.update)
        elif kind == "metric":
            self.metrics[entry.metric.name or entry.metric.glob_name] = entry.metric
        elif kind == "request" and entry.request.WhichOneof("request_type") == "log_artifact":
            self.artifacts.append(entry.request.log_artifact.artifact)
        elif kind == "artifact":
            self.artifacts.append(entry.artifact)
        elif kind == "exit":
            self.exit = entry.exit.exit_code

    @property
    def rounds(self) -> list[int]:
        return [row["round"] for row in self.rows]


def test_an_offline_run_holds_everything(tmp_path: Path) -> None:
    tracker: Tracker = WandbTracker(project="paper", **PLAIN, tags=["a", "b"])
    tracker.start(card(tmp_path), [])
    for round_ in (1, 2, 3, 4):
        tracker.log(record(round_))
    tracker.finish(RESULT)

    seen = Offline(tmp_path)
    assert (seen.run.run_id, seen.run.project, seen.run.run_group) == ("3f2a91c0", "paper", "table2")
    assert (seen.run.display_name, seen.run.job_type) == (TITLE, "map")
    assert list(seen.run.tags) == [
        "paper:map", "experiment:map/fmnist_mlpnet", "data:fmnist", "partition:incomplete", "a", "b",
    ]  # fmt: skip
    assert seen.run.git.commit == "0123456789abcdef0123456789abcdef01234567"
    assert seen.config["local"] == {"lr": 0.1}
    assert seen.config["plan"] == {"phases": ["rs", "hpm"]}
    assert seen.rounds == [1, 2, 3, 4]
    row = seen.rows[2]
    assert row["aggregation/accuracy"] == pytest.approx(0.3)
    assert row["terms/ce"] == 0.3
    assert row["bytes/total"] == 333
    assert row["seconds/elapsed"] == 6.0
    assert row["aggregation/class/pullover"] == 0.3
    assert seen.exit == 0
    assert seen.summary["result/aggregation/best"] == 0.45
    assert seen.summary["personalization/std"] == 0.05  # of the last round's clients, not the result's
    assert seen.summary["status"] == "finished"


def test_lists_become_histograms_with_fixed_bins(tmp_path: Path) -> None:
    tracker = WandbTracker(**PLAIN)
    tracker.start(card(tmp_path), [])
    tracker.log(record(1))
    tracker.finish(RESULT)
    clients = Offline(tmp_path).rows[0]["personalization/clients"]
    assert clients["_type"] == "histogram"
    assert clients["bins"] == pytest.approx(np.linspace(0, 1, 21).tolist())
    assert [clients["values"][i] for i in (1, 18, 19)] == [1, 1, 1]
    assert sum(Offline(tmp_path).rows[0]["aggregation/per_class"]["values"]) == 2  # the gap is not a zero


def test_histograms_can_be_left_out(tmp_path: Path) -> None:
    tracker = WandbTracker(**PLAIN, histograms=False)
    tracker.start(card(tmp_path), [])
    tracker.log(record(1))
    tracker.finish(RESULT)
    (row,) = Offline(tmp_path).rows
    assert not [key for key in row if key.endswith(("clients", "per_class"))]
    assert row["aggregation/accuracy"] == 0.1


def test_rounds_are_the_axis(tmp_path: Path) -> None:
    tracker = WandbTracker(**PLAIN)
    tracker.start(card(tmp_path), [record(1), record(2)])
    tracker.finish(RESULT)
    seen = Offline(tmp_path)
    assert seen.metrics["*"].step_metric == "round"
    best = seen.metrics["aggregation/accuracy"]
    assert (best.step_metric, best.summary.max, best.summary.last) == ("round", True, True)
    assert seen.metrics["aggregation/loss"].summary.min
    assert "personalization/loss" not in seen.metrics  # nothing is defined for a metric that never comes


def test_pictures_come_with_the_last_round_and_the_model_if_it_is_wanted(tmp_path: Path) -> None:
    path = write_run(tmp_path, "map", 1).path
    told, result = card_of(path)
    tracker = WandbTracker(mode="offline", figures=["partition", "fairness"], model=True)
    tracker.start(told, RunDir(path).records())
    tracker.finish(result)
    seen = Offline(path)
    assert ["figures/partition" in row for row in seen.rows] == [False, False, False, True]
    for name in ("partition", "fairness"):
        assert (seen.folder / "files" / seen.rows[-1][f"figures/{name}"]["path"]).read_bytes().startswith(b"\x89PNG")
    table = json.loads((seen.folder / "files" / seen.summary["clients"]["path"]).read_text())
    assert len(table["data"]) == CLIENTS
    assert table["columns"][:2] == ["round", "client"]
    assert {"run_table", "model"} == {artifact.type for artifact in seen.artifacts}


def test_a_stopped_run_has_no_pictures(tmp_path: Path) -> None:
    path = write_run(tmp_path, "map", 1, done=False).path
    told, result = card_of(path)
    tracker = WandbTracker(mode="offline", model=True)
    tracker.start(told, RunDir(path).records())
    tracker.finish(result)
    seen = Offline(path)
    assert seen.rounds == [1, 2, 3, 4]
    assert (seen.exit, seen.summary["status"], seen.artifacts) == (1, "stopped", [])


def test_a_resumed_offline_run_replaces_its_earlier_fragment(tmp_path: Path) -> None:
    first = WandbTracker(**PLAIN)
    first.start(card(tmp_path), [])
    for round_ in (1, 2, 3):
        first.log(record(round_))
    first.finish(None)
    assert Offline(tmp_path).exit == 1
    assert Offline(tmp_path).summary["status"] == "stopped"
    other = tmp_path / "wandb" / "offline-run-20200101_000000-deadbeef"
    other.mkdir()

    second = WandbTracker(**PLAIN)
    second.start(card(tmp_path), [record(1), record(2)])
    second.log(record(3))
    second.log(record(4))
    second.finish(RESULT)

    assert other.is_dir()  # somebody else's
    other.rmdir()
    assert Offline(tmp_path).rounds == [1, 2, 3, 4]
    assert Offline(tmp_path).exit == 0


@pytest.mark.parametrize("name", ["wandb", "wandb/offline-run-20200101_000000-run"])
def test_a_link_in_place_of_an_earlier_fragment_is_not_followed(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine" / "offline-run-20200101_000000-run"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("years of work")
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(mine.parent if name == "wandb" else mine)
    with pytest.raises(DiskError, match="is a symbolic link"):
        WandbTracker(**PLAIN).start(replace(card(tmp_path / "out"), run="run"), [])
    assert (mine / "thesis.txt").exists()


def test_auto_without_a_key_is_offline_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker, folder = WandbTracker(figures=(), clients=False), tmp_path / "my runs"
    with caplog.at_level(logging.WARNING, logger="fedexp"):
        tracker.start(card(folder), [])
    tracker.finish(None)
    (line,) = [entry.message for entry in caplog.records if entry.name.startswith("fedexp")]
    assert f"python -m fedexp.track sync wandb '{folder}'" in line
    assert Offline(folder).run.run_id == "3f2a91c0"


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tracker = WandbTracker(**PLAIN)
    tracker.start(card(tmp_path), [])
    tracker.log(record(1))
    tracker.finish(RESULT)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)


def test_a_key_in_netrc_counts_for_its_own_host_only(tmp_path: Path) -> None:
    import wandb

    from fedexp.track.wandb_login import has_key

    book = tmp_path / "netrc"
    book.write_text("machine example.org login user password " + "x" * 40)
    assert not has_key(wandb)
    book.write_text("machine api.wandb.ai login user password " + "x" * 40)
    assert has_key(wandb)


def test_the_package_can_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r'pip install "fedexp\[wandb\]"'):
        WandbTracker().start(card(tmp_path), [])


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="auto, online, offline"):
        WandbTracker(mode="onlin")  # type: ignore[arg-type]


def test_wandb_mode_wins_over_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: None) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    tracker = WandbTracker(figures=(), clients=False)
    tracker.start(card(tmp_path), [record(1)])
    tracker.finish(RESULT)
    assert not list(tmp_path.glob("wandb/*run*"))


def test_finish_without_start_is_harmless() -> None:
    WandbTracker().finish(None)


def test_heavy_packages_stay_out_of_the_imports() -> None:
    code = (
        "import sys, fedexp.track, fedexp.track.__main__\n"
        "from fedexp.track import wandb, tensorboard, trackio, lightning\n"
        "heavy = {'torch', 'lightning', 'wandb', 'trackio', 'tensorboard', 'pandas', 'altair'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
