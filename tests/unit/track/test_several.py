"""A tracker that fails is left out, and nothing else changes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import fedexp
from fedexp.config import composed
from fedexp.track import Trackers
from tests.unit.track.cards import RESULT, card, record


class Spy:
    def __init__(self, fails: str = "", error: BaseException | None = None) -> None:
        self.calls: list[str] = []
        self.fails, self.error = fails, error or RuntimeError("no route\nto host")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise self.error

    def start(self, card: Any, history: Any) -> None:
        self._called("start")

    def log(self, record: Any) -> None:
        self._called("log")

    def finish(self, result: Any) -> None:
        self._called("finish")


def test_the_command_survives_the_shell(tmp_path: Path):
    said: list[str] = []
    Trackers({"bad": Spy("start")}, said.append).start(card(tmp_path / "my runs"), [])
    assert shlex.split(said[0])[-3:] == ["sync", "bad", str(tmp_path / "my runs")]


@pytest.mark.parametrize(("fails", "heard"), [("start", 1), ("log", 2), ("finish", 4)])
def test_one_that_fails_is_left_out_and_told(tmp_path: Path, fails: str, heard: int):
    bad, good, said = Spy(fails), Spy(), []
    trackers = Trackers({"bad": bad, "good": good}, said.append)
    trackers.start(card(tmp_path), [])
    trackers.log(record(1))
    trackers.log(record(2))
    trackers.finish(RESULT)
    assert good.calls == ["start", "log", "log", "finish"]
    assert len(bad.calls) == heard
    (line,) = said
    assert line.startswith("tracker bad failed (no route). The run is not affected")
    assert line.endswith(f"python -m fedexp.track sync bad {tmp_path}")


def test_a_user_who_stops_the_run_does(tmp_path: Path):
    trackers = Trackers({"one": Spy("log", KeyboardInterrupt())}, lambda text: None)
    trackers.start(card(tmp_path), [])
    with pytest.raises(KeyboardInterrupt):
        trackers.log(record(1))


BROKEN = """
class Broken:
    def start(self, card, history): pass
    def log(self, record): raise OSError("the service is down")
    def finish(self, result): raise AssertionError("it was left out")
"""


def test_a_run_ends_as_it_would_without_its_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from io import StringIO

    from rich.console import Console

    monkeypatch.chdir(tmp_path)
    Path("broken_tracker.py").write_text(BROKEN)
    small = ["data=synthetic", "cohort.clients=4", "rounds=2", "local.epochs=1", "evaluate.all_clients=false"]
    config = composed([*small, "out=mirrored"])
    config["tracker"] = {"broken": {"_target_": "broken_tracker.Broken"}}
    seen = StringIO()
    result = fedexp.run(config, console=Console(file=seen, width=200))
    plain = fedexp.run([*small, "out=plain"])
    assert result.status == "finished"
    assert seen.getvalue().count("tracker broken failed (the service is down)") == 1
    assert result.path.name == plain.path.name
    assert result.summary["digests"] == plain.summary["digests"]
