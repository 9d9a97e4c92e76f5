"""The run directory: atomic writes, cutting back, the lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fedexp.errors import FedexpError
from fedexp.rundir import RunDir, write_atomically, write_json

COLUMNS = ("round", "client", "note")


# ---------------------------------------------------------------- whole files
def test_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "new" / "folder" / "file.json"
    write_json(path, {"a": 1})
    write_json(path, {"b": [2]})
    assert json.loads(path.read_text()) == {"b": [2]}
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def disk_is_full(*_):
        raise OSError(28, "No space left on device")

    target = os if failing == "fsync" else type(path)
    monkeypatch.setattr(target, failing, disk_is_full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new, and longer")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_file_is_complete_and_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    path = tmp_path / "file"
    synced: list[tuple[bool, bytes]] = []
    fsync = os.fsync

    def watched(descriptor):
        fsync(descriptor)
        synced.append((path.exists(), next(tmp_path.iterdir()).read_bytes()))

    monkeypatch.setattr(os, "fsync", watched)
    write_atomically(path, b"content")
    assert synced == [(False, b"content"), (True, b"content")]  # then its name


# ---------------------------------------------------------------- growing files
def fill(rundir: RunDir, rounds: int) -> None:
    for r in range(1, rounds + 1):
        rows = [{"round": r, "client": c, "note": f"n{r}"} for c in (3, 11)]
        rundir.append_rows("clients.csv", COLUMNS, rows)
        rundir.append_record({"round": r, "accuracy": r / 10})


def test_appended_rows_and_records_come_back(rundir):
    assert list(rundir.rows("clients.csv")) == []
    assert rundir.records() == []
    assert rundir.result() is None
    fill(rundir, 12)
    rows = list(rundir.rows("clients.csv"))
    assert [(int(r["round"]), int(r["client"]), r["note"]) for r in rows][-3:] == [
        (11, 11, "n11"), (12, 3, "n12"), (12, 11, "n12"),
    ]  # fmt: skip
    assert len(rows) == 24
    assert rundir.records() == [{"round": r, "accuracy": r / 10} for r in range(1, 13)]


@pytest.mark.parametrize("rounds", [0, 1, 2, 9, 10, 12, 99])
def test_cut_leaves_what_a_shorter_run_would_have_written(tmp_path, rounds):
    for name, written in (("long", 12), ("short", min(rounds, 12))):
        (tmp_path / name).mkdir()
        fill(RunDir(tmp_path / name), written)
    RunDir(tmp_path / "long").cut(rounds)
    if rounds:
        for file in ("clients.csv", "metrics.jsonl"):
            assert (tmp_path / "long" / file).read_bytes() == (tmp_path / "short" / file).read_bytes()
    else:
        assert list(RunDir(tmp_path / "long").rows("clients.csv")) == []
        assert RunDir(tmp_path / "long").records() == []


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_cut_run_goes_on_to_the_same_bytes(tmp_path, rounds):
    one, two = RunDir(tmp_path / "one"), RunDir(tmp_path / "two")
    for rundir in (one, two):
        rundir.path.mkdir()
    fill(one, 5)
    fill(two, rounds + 1)
    two.cut(rounds)
    for r in range(rounds + 1, 6):
        two.append_rows("clients.csv", COLUMNS, [{"round": r, "client": c, "note": f"n{r}"} for c in (3, 11)])
        two.append_record({"round": r, "accuracy": r / 10})
    for file in ("clients.csv", "metrics.jsonl"):
        assert (two.path / file).read_bytes() == (one.path / file).read_bytes()


def test_cut_drops_half_written_lines_at_every_byte(tmp_path):
    """A process may die after any number of bytes; the complete rounds before it must survive and the file go on."""
    whole = RunDir(tmp_path / "whole")
    whole.path.mkdir()
    fill(whole, 12)
    csv, metrics = ((whole.path / f).read_bytes() for f in ("clients.csv", "metrics.jsonl"))
    broken = RunDir(tmp_path / "broken")
    broken.path.mkdir()
    first = csv.index(b"12,3,")  # where the last round begins; its first byte alone looks like another round
    for end in range(first, len(csv)):
        (broken.path / "clients.csv").write_bytes(csv[:end])
        broken.cut(11)
        assert (broken.path / "clients.csv").read_bytes() == csv[:first]
    first = metrics.index(b'{"round": 12')
    for end in range(first, len(metrics)):
        (broken.path / "metrics.jsonl").write_bytes(metrics[:end])
        broken.cut(11)
        assert (broken.path / "metrics.jsonl").read_bytes() == metrics[:first]


def test_a_half_written_header_is_written_again(rundir):
    fill(rundir, 1)
    whole = (rundir.path / "clients.csv").read_bytes()
    header = whole.index(b"\n") + 1
    for end in range(header):
        (rundir.path / "clients.csv").write_bytes(whole[:end])
        rundir.cut(0)
        rundir.append_rows("clients.csv", COLUMNS, [{"round": 1, "client": c, "note": "n1"} for c in (3, 11)])
        assert (rundir.path / "clients.csv").read_bytes() == whole


def test_clear_removes_the_record_and_nothing_else(rundir):
    fill(rundir, 2)
    rundir.write("result.json", {"status": "finished"})
    rundir.write_text("config.yaml", "a: 1\n")
    (rundir.path / "model.safetensors").write_bytes(b"x")
    (rundir.path / "notes.txt").write_text("mine")
    rundir.clear()
    assert [p.name for p in rundir.path.iterdir()] == ["notes.txt"]


# ---------------------------------------------------------------- the lock
HOLD = """
import pathlib, sys
from fedexp.rundir import RunDir
with RunDir(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_and_told_who_holds_the_directory(tmp_path):
    path = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FedexpError, match=rf"process {other.pid}\b") as refused, RunDir(path):
            pytest.fail("entered a directory that another process holds")
        assert str(path) in str(refused.value)
        assert "choose another" in str(refused.value)
        other.kill()
    with RunDir(path):  # a dead process holds nothing
        assert f"process {os.getpid()}" in (path / ".lock").read_text()
    with RunDir(path):
        pass


def test_the_lock_holds_inside_a_process_too(tmp_path):
    with RunDir(tmp_path), pytest.raises(FedexpError, match=f"process {os.getpid()}"), RunDir(tmp_path):
        pytest.fail("entered twice")


def test_a_row_with_a_column_that_the_file_does_not_have_is_refused(tmp_path):
    with RunDir(tmp_path / "run") as rundir:
        with pytest.raises(ValueError, match=r"clients.csv has no column 'loss'"):
            rundir.append_rows("clients.csv", COLUMNS, [{"round": 1, "loss": 2.0}])
        assert not (rundir.path / "clients.csv").exists()
