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
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedexp.errors import ConfigError, DiskError
from fedexp.partition.heatmap import DARK, MISSING, heatmap, ownership
from fedexp.track import NoTracker, RunCard, Tracker
from fedexp.track.wandb import WandbTracker, lists, scalars

PARTITION = [[5, 0, 3], [0, 7, 0]]  # two clients, three classes


def card(path: Path) -> RunCard:
    return RunCard(
        run="3f2a91c0",
        name="table2",
        config={
            "seed": 3,
            "choices": {"algo": "map", "data": "digits", "partition": "incomplete"},
            "local": {"lr": 0.1},
        },
        plan={"phases": ["rs", "hpm"]},
        partition=PARTITION,
        path=path,
        rounds=4,
    )


def record(round_: int) -> dict[str, Any]:
    return {
        "round": round_,
        "aggregation": {"accuracy": round_ / 10, "loss": 1 / round_, "per_class": [0.5, None, round_ / 10]},
        "personalization": {"accuracy": 0.9, "std": 0.05, "worst_decile": None, "clients": [0.05, 0.93, 0.97]},
        "terms": {"ce": 0.3},
        "bytes": {"up": 100 * round_, "down": 11 * round_},
        "seconds": {"elapsed": 2.0 * round_, "train": 1.5 * round_},
    }


RESULT = {
    "status": "finished",
    "run": "3f2a91c0",
    "rounds": 4,
    "aggregation": {"last": 0.4, "best": 0.45, "window": 5},
    "personalization": {"last": 0.9, "std": 0.01},
}


@pytest.fixture(autouse=True)
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "home"))


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
        elif kind == "exit":
            self.exit = entry.exit.exit_code

    @property
    def rounds(self) -> list[int]:
        return [row["round"] for row in self.rows]


def test_an_offline_run_holds_everything(tmp_path: Path) -> None:
    tracker: Tracker = WandbTracker(project="paper", mode="offline", tags=["a", "b"])
    tracker.start(card(tmp_path), [])
    for round_ in (1, 2, 3, 4):
        tracker.log(record(round_))
    tracker.finish(RESULT)

    seen = Offline(tmp_path)
    assert (seen.run.run_id, seen.run.project, seen.run.run_group) == ("3f2a91c0", "paper", "table2")
    assert (seen.run.display_name, seen.run.job_type) == ("map/digits/incomplete/s3", "map")
    assert list(seen.run.tags) == ["a", "b"]
    assert seen.config["local"] == {"lr": 0.1}
    assert seen.config["plan"] == {"phases": ["rs", "hpm"]}
    assert seen.rounds == [1, 2, 3, 4]
    row = seen.rows[2]
    assert row["aggregation/accuracy"] == pytest.approx(0.3)
    assert row["terms/ce"] == 0.3
    assert row["bytes/total"] == 333
    assert row["seconds/elapsed"] == 6.0
    assert "personalization/worst_decile" not in row  # null is absent, not zero
    assert seen.exit == 0
    assert seen.summary["result/aggregation/best"] == 0.45
    assert seen.summary["personalization/std"] == 0.05  # of the last round's clients, not the result's
    assert seen.summary["status"] == "finished"
    assert seen.summary["partition/fewest_classes"] == 1


def test_lists_become_histograms_with_fixed_bins(tmp_path: Path) -> None:
    tracker = WandbTracker(mode="offline")
    tracker.start(card(tmp_path), [])
    tracker.log(record(1))
    tracker.finish(RESULT)
    clients = Offline(tmp_path).rows[0]["personalization/clients"]
    assert clients["_type"] == "histogram"
    assert clients["bins"] == pytest.approx(np.linspace(0, 1, 21).tolist())
    assert [clients["values"][i] for i in (1, 18, 19)] == [1, 1, 1]
    assert sum(Offline(tmp_path).rows[0]["aggregation/per_class"]["values"]) == 2  # the gap is not a zero


def test_histograms_can_be_left_out(tmp_path: Path) -> None:
    tracker = WandbTracker(mode="offline", histograms=False)
    tracker.start(card(tmp_path), [])
    tracker.log(record(1))
    tracker.finish(RESULT)
    (row,) = Offline(tmp_path).rows
    assert not [key for key in row if key.endswith(("clients", "per_class"))]
    assert row["aggregation/accuracy"] == 0.1


def test_the_heat_map_is_logged_once_and_rounds_are_the_axis(tmp_path: Path) -> None:
    tracker = WandbTracker(mode="offline")
    tracker.start(card(tmp_path), [])
    tracker.log(record(1))
    tracker.log(record(2))
    tracker.finish(RESULT)
    seen = Offline(tmp_path)
    assert ["partition/heatmap" in row for row in seen.rows] == [True, False]
    assert (seen.folder / "files" / seen.rows[0]["partition/heatmap"]["path"]).is_file()
    assert seen.metrics["*"].step_metric == "round"
    best = seen.metrics["aggregation/accuracy"]
    assert (best.step_metric, best.summary.max, best.summary.last) == ("round", True, True)
    assert seen.metrics["aggregation/loss"].summary.min
    assert "personalization/loss" not in seen.metrics  # nothing is defined for a metric that never comes


def test_a_resumed_offline_run_replaces_its_earlier_fragment(tmp_path: Path) -> None:
    first = WandbTracker(mode="offline")
    first.start(card(tmp_path), [])
    for round_ in (1, 2, 3):
        first.log(record(round_))
    first.finish(None)
    assert Offline(tmp_path).exit == 1
    assert Offline(tmp_path).summary["status"] == "stopped"
    other = tmp_path / "wandb" / "offline-run-20200101_000000-deadbeef"
    other.mkdir()

    second = WandbTracker(mode="offline")
    second.start(card(tmp_path), [record(1), record(2)])
    second.log(record(3))
    second.log(record(4))
    second.finish(RESULT)

    assert other.is_dir()  # somebody else's
    other.rmdir()
    assert Offline(tmp_path).rounds == [1, 2, 3, 4]
    assert Offline(tmp_path).exit == 0


def test_a_round_is_never_logged_twice(tmp_path: Path) -> None:
    tracker = WandbTracker(mode="offline")
    tracker.start(card(tmp_path), [record(1), record(2)])
    tracker.log(record(2))
    tracker.log(record(3))
    tracker.finish(RESULT)
    assert Offline(tmp_path).rounds == [1, 2, 3]


@pytest.mark.parametrize("name", ["wandb", "wandb/offline-run-20200101_000000-run"])
def test_a_link_in_place_of_an_earlier_fragment_is_not_followed(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine" / "offline-run-20200101_000000-run"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("years of work")
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(mine.parent if name == "wandb" else mine)
    with pytest.raises(DiskError, match="is a symbolic link"):
        WandbTracker(mode="offline").start(replace(card(tmp_path / "out"), run="run"), [])
    assert (mine / "thesis.txt").exists()


def test_auto_without_a_key_is_offline_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = WandbTracker()
    with caplog.at_level(logging.WARNING, logger="fedexp"):
        tracker.start(card(tmp_path), [])
    tracker.finish(None)
    (line,) = [entry.message for entry in caplog.records if entry.name.startswith("fedexp")]
    assert f"wandb sync {tmp_path}/wandb" in line
    assert Offline(tmp_path).run.run_id == "3f2a91c0"


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tracker = WandbTracker(mode="offline")
    tracker.start(card(tmp_path), [])
    tracker.log(record(1))
    tracker.finish(RESULT)
    assert capfd.readouterr() == ("", "")


class FakeWandb(SimpleNamespace):
    """A W&B that is reachable, or not, and may already know some rounds."""

    class CommError(Exception):
        pass

    def __init__(self, *, rounds: int = 0, reachable: bool = True) -> None:
        super().__init__(calls=[], rows=[], closed=[], reachable=reachable)
        self.errors = SimpleNamespace(CommError=self.CommError)
        self.summary = {"round": rounds} if rounds else {}
        self.Settings = type("Settings", (), {"model_fields": {"silent": None}, "__init__": lambda self, **kw: None})
        self.Histogram = self.Image = lambda *args, **kwargs: "media"

    def init(self, **kwargs: Any) -> SimpleNamespace:
        self.calls.append(kwargs)
        if kwargs["mode"] == "online" and not self.reachable:
            raise self.CommError("no route\nmore")
        return SimpleNamespace(
            summary=self.summary,
            define_metric=lambda *args, **kwargs: None,
            log=self.rows.append,
            finish=self._close,
        )

    def _close(self, exit_code: int) -> None:
        self.closed.append(exit_code)


def play(fake: FakeWandb, tracker: WandbTracker, path: Path) -> list[int]:
    tracker.start(card(path), [record(1), record(2)])
    tracker.log(record(3))
    tracker.log(record(4))
    tracker.finish(RESULT)
    return [row["round"] for row in fake.rows]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)


@pytest.mark.parametrize(("known", "logged"), [(0, [1, 2, 3, 4]), (1, [2, 3, 4]), (3, [4])])
def test_online_only_what_is_missing_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: None, known: int, logged: list[int]
) -> None:
    fake = FakeWandb(rounds=known)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    assert play(fake, WandbTracker(), tmp_path) == logged
    (call,) = fake.calls
    assert (call["mode"], call["id"], call["resume"], call["reinit"]) == ("online", "3f2a91c0", "allow", "create_new")
    assert call["dir"] == str(tmp_path)
    assert fake.closed == [0]
    assert ("partition/heatmap" in fake.rows[0]) == (known == 0)


def test_auto_falls_back_to_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: None, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeWandb(reachable=False)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    assert play(fake, WandbTracker(), tmp_path) == [1, 2, 3, 4]
    assert [call["mode"] for call in fake.calls] == ["online", "offline"]
    assert "no route)" in caplog.text


def test_online_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="wandb login"):
        WandbTracker(mode="online").start(card(tmp_path), [])
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(reachable=False))
    with pytest.raises(ConfigError, match=r"tracker\.mode=offline"):
        WandbTracker(mode="online").start(card(tmp_path), [])


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
    tracker = WandbTracker()
    tracker.start(card(tmp_path), [record(1)])
    tracker.finish(RESULT)
    assert not list(tmp_path.glob("wandb/*run*"))


def test_finish_without_start_is_harmless() -> None:
    WandbTracker().finish(None)
    nothing: Tracker = NoTracker()
    nothing.start(card(Path()), [])
    nothing.log(record(1))
    nothing.finish(None)


def test_flattening() -> None:
    nested = {"round": 1, "a": {"x": 0.5, "gone": None, "text": "t", "all": [1, None, float("nan")], "empty": [None]}}
    assert dict(scalars(nested)) == {"round": 1, "a/x": 0.5}
    assert dict(lists(nested)) == {"a/all": [1.0]}


def test_the_heat_map_has_a_row_per_class_and_a_column_per_client() -> None:
    picture = heatmap(PARTITION)
    cell = picture.shape[0] // 3
    assert picture.shape == (3 * cell, 2 * cell, 3)
    assert tuple(picture[cell, 0]) == MISSING  # class 1 of client 0
    assert tuple(picture[cell, cell]) == DARK  # class 1 of client 1, the largest count
    assert tuple(picture[0, 0]) not in {MISSING, DARK}
    assert heatmap([[0, 1]] * 5000).shape == (2, 5000, 3)


def test_ownership_counts() -> None:
    assert ownership(PARTITION) == {
        "clients": 2,
        "classes": 3,
        "samples": 15,
        "classes_per_client": 1.5,
        "fewest_classes": 1,
        "most_classes": 2,
        "fewest_owners": 1,
        "smallest_client": 7,
        "largest_client": 8,
    }


def test_heavy_packages_stay_out_of_the_imports() -> None:
    code = (
        "import sys, fedexp.track, fedexp.track.wandb\n"
        "heavy = {'torch', 'lightning', 'wandb'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["none", "wandb"])
def test_the_yaml_builds(name: str) -> None:
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    folder = Path(__file__).parents[3] / "conf" / "tracker"
    tracker = instantiate(OmegaConf.load(folder / f"{name}.yaml"))
    assert isinstance(tracker, NoTracker | WandbTracker)
