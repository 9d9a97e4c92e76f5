"""The run directory: atomic writes, cutting back, the lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedexp.errors import DamagedError, DiskError, FedexpError
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


GROWING = ("clients.csv", "metrics.jsonl")


def filled(path, rounds: int) -> RunDir:
    path.mkdir()
    rundir = RunDir(path)
    fill(rundir, rounds)
    return rundir


@pytest.mark.parametrize("rounds", [0, 1, 9])
def test_a_cut_run_goes_on_to_the_same_bytes(tmp_path, rounds):
    """Whatever came after the mark, half-written lines and other files too."""
    whole, stopped = filled(tmp_path / "whole", 12), filled(tmp_path / "stopped", rounds)
    marks = stopped.marks
    fill(stopped, 1)
    stopped.append_rows("ledger.csv", COLUMNS, [{"round": rounds + 1}])
    for name in GROWING:
        with (stopped.path / name).open("ab") as file:
            file.write(b'{"round": 1')
    again = RunDir(stopped.path)
    again.cut(marks)
    assert not (stopped.path / "ledger.csv").exists()
    for r in range(rounds + 1, 13):
        again.append_rows("clients.csv", COLUMNS, [{"round": r, "client": c, "note": f"n{r}"} for c in (3, 11)])
        again.append_record({"round": r, "accuracy": r / 10})
    for name in GROWING:
        assert (again.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert again.marks == whole.marks


@pytest.mark.parametrize("name", GROWING)
def test_no_damage_before_a_mark_goes_unnoticed(tmp_path, name):
    rundir = filled(tmp_path / "run", 3)
    marks, path = rundir.marks, rundir.path / name
    data = path.read_bytes()
    damaged = [data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :] for i in range(0, len(data), 5)]
    for found in (*damaged, data[:-1], b"", bytes(len(data))):
        path.write_bytes(found)
        with pytest.raises(DamagedError, match=rf"{name} is damaged"):
            rundir.cut(marks)
        assert path.read_bytes() == found
    path.unlink()
    with pytest.raises(DamagedError, match=rf"{name} is missing"):
        rundir.cut(marks)


def test_what_was_appended_is_on_the_disk_after_a_sync(tmp_path, monkeypatch):
    rundir = filled(tmp_path / "run", 1)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    rundir.sync()
    assert synced == [rundir.path / name for name in GROWING]


@pytest.mark.parametrize(
    ("name", "text"), [("result.json", '{"status": '), ("config.yaml", ""), ("config.yaml", "a: [")]
)
def test_a_file_that_cannot_be_read_is_named(rundir, name, text):
    (rundir.path / name).write_text(text)
    with pytest.raises(DamagedError, match=rf"{name} .*cannot be read(.|\n)*force=true"):
        rundir.result() if name == "result.json" else rundir.config()


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path):
    (tmp_path / ".plan.json.123.tmp").write_text("{")
    with RunDir(tmp_path):
        assert [p.name for p in tmp_path.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    refused = pytest.raises(DiskError, match=r"file/run could not be written \(Not a directory\)")
    with refused, RunDir(tmp_path / "file" / "run"):
        pytest.fail("entered a folder below a file")


def test_the_error_is_told_even_if_it_cannot_be_kept(rundir, monkeypatch):
    def disk_is_full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedexp.rundir.write_atomically", disk_is_full)
    with pytest.raises(LookupError, match="planned"), rundir.failures():
        raise LookupError("planned")


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
