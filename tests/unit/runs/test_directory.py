"""The run directory: atomic writes, cutting back, the lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedexp.errors import DamagedError, DiskError, FedexpError
from fedexp.runs.checksums import CHECKED
from fedexp.runs.directory import RunDir
from fedexp.system.files import write_atomically, write_json

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


DEEP = 100_000


@pytest.mark.parametrize("text", ["", "a: [", "[]", "3", "a: &x [1]\nb: *x", "[" * DEEP, "- " * DEEP, "{a: " * DEEP])
def test_settings_that_no_run_has_written_are_named(rundir, text):
    (rundir.path / "config.yaml").write_text(text)
    with pytest.raises(DamagedError, match=r"config.yaml is damaged"):
        rundir.config()


NOT_FILES = {
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to(path.parent.parent / "elsewhere"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", NOT_FILES)
@pytest.mark.parametrize("name", ["config.yaml", "result.json", "metrics.jsonl", "clients.csv", "error.txt", ".lock"])
def test_what_is_not_a_file_is_named(rundir, name, kind):
    NOT_FILES[kind](rundir.path / name)
    look = {
        "config.yaml": rundir.config, "result.json": rundir.result, "metrics.jsonl": rundir.records,
        "clients.csv": lambda: list(rundir.rows("clients.csv")), "error.txt": rundir.error, ".lock": rundir.holder,
    }[name]  # fmt: skip
    with pytest.raises(DamagedError, match=rf"{name} is (a|not a) .*, where a file belongs"):
        look()


@pytest.mark.parametrize("data", [b"[]", b"{", b"\xff", b"[" * DEEP, b"1" * 5000, b'"' + b"\\ud800" + b'"'])
def test_records_that_cannot_be_read_are_named(rundir, data):
    (rundir.path / "metrics.jsonl").write_bytes(data + b"\n")
    with pytest.raises(DamagedError, match=r"metrics.jsonl is damaged"):
        rundir.records()


@pytest.mark.parametrize("data", [b"round\n\xff\n", b"round\n" + b"1" * 200_000, b"a,b\n1\n", b"a\n1,2\n"])
def test_rows_that_cannot_be_read_are_named(rundir, data):
    (rundir.path / "clients.csv").write_bytes(data)
    with pytest.raises(DamagedError, match=r"clients.csv is damaged"):
        list(rundir.rows("clients.csv"))


# ---------------------------------------------------------------- results
def concluded(path) -> RunDir:
    rundir = filled(path, 3)
    for name in ("ledger.csv", "weights.csv"):
        rundir.append_rows(name, ["round"], [{"round": 1}])
    rundir.write_text("config.yaml", "a: 1\n")
    rundir.write("plan.json", {})
    rundir.write_bytes("model.safetensors", b"weights")
    rundir.conclude({"status": "finished", "accuracy": 0.25, "title": "ä"})
    return rundir


CHANGES = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"1"),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-2] + b"?" + path.read_bytes()[-1:]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", CHECKED)
def test_a_result_vouches_for_the_files_of_its_run(tmp_path, name, change):
    rundir = concluded(tmp_path / "run")
    assert RunDir(rundir.path).result()["accuracy"] == 0.25
    CHANGES[change](rundir.path / name)
    with pytest.raises(DamagedError, match=rf"{name} is .*force=true"):
        RunDir(rundir.path).result()


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "3", '{"status": "finished"}', '{"checksums": []}', '{"checksums": {}}', "[" * DEEP],
)
def test_a_result_that_no_run_has_written_is_named(tmp_path, text):
    rundir = concluded(tmp_path / "run")
    (rundir.path / "result.json").write_text(text)
    with pytest.raises(DamagedError, match=r"result.json is .*force=true"):
        rundir.result()


def test_a_result_before_the_last_one_is_not_that_of_a_finished_run(tmp_path):
    rundir = concluded(tmp_path / "run")
    rundir.conclude({"status": "trained", "accuracy": 0.25})
    assert RunDir(rundir.path).result() is None
    rundir.write_text("config.yaml", "a: 2\n")  # written anew when the run is taken up again
    assert RunDir(rundir.path).result() is None
    rundir.conclude({"status": "finished", "accuracy": 0.25})
    assert RunDir(rundir.path).result()["accuracy"] == 0.25


def test_no_wrong_digit_of_a_result_is_believed(tmp_path):
    rundir = concluded(tmp_path / "run")
    path = rundir.path / "result.json"
    right = path.read_text()
    path.write_text(right.replace("0.25", "0.35"))
    with pytest.raises(DamagedError, match=r"result.json is damaged"):
        rundir.result()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", CHECKED)
def test_there_is_no_result_if_a_file_was_changed_while_the_run_wrote_it(tmp_path, name, change):
    rundir = concluded(tmp_path / "run")
    (rundir.path / "result.json").unlink()
    CHANGES[change](rundir.path / name)
    with pytest.raises(DamagedError, match=rf"{name} was removed or changed by someone else"):
        rundir.conclude({"status": "finished"})
    assert not (rundir.path / "result.json").exists()


@pytest.mark.parametrize("change", ["missing", "empty", "longer"])
@pytest.mark.parametrize("name", GROWING)
def test_a_growing_file_that_was_touched_is_noticed_by_the_next_round(tmp_path, name, change):
    rundir = filled(tmp_path / "run", 2)
    CHANGES[change](rundir.path / name)
    with pytest.raises(DamagedError, match=rf"{name} was removed or changed by someone else"):
        fill(rundir, 1)
    if change != "longer":  # by half a line, as after a signal
        with pytest.raises(DamagedError, match=name):
            rundir.sync()


# ---------------------------------------------------------------- nobody else's files
def test_what_is_there_instead_of_a_file_is_neither_followed_nor_removed(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    for number, name in enumerate((".lock", "result.json", "clients.csv", "model.safetensors", ".plan.json.7.tmp")):
        for kind, make in (("link", lambda p: p.symlink_to(mine / "thesis.txt")), ("folder", Path.mkdir)):
            path = tmp_path / f"{kind}{number}" / name
            path.parent.mkdir()
            make(path)
            with pytest.raises(DiskError, match=rf"{name} is a .*Move it elsewhere"), RunDir(path.parent):
                pytest.fail("entered")
            assert [p.name for p in path.parent.iterdir()] == [name]
    assert (mine / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("make", [lambda p: p.symlink_to(p.parent.parent), Path.touch], ids=["link", "file"])
def test_a_checkpoint_that_is_not_a_folder_is_refused(rundir, make):
    make(rundir.path / "checkpoint")
    with pytest.raises(DiskError, match=r"checkpoint is a .*Move it elsewhere"), rundir:
        pytest.fail("entered")


def test_a_link_that_appears_while_the_run_goes_on_is_not_followed(tmp_path, rundir):
    target = tmp_path / "thesis.txt"
    target.write_text("years of work")
    (rundir.path / "result.json").symlink_to(target)
    (rundir.path / f".plan.json.{os.getpid()}.tmp").symlink_to(target)
    (rundir.path / "clients.csv").symlink_to(target)
    with pytest.raises(DiskError, match=r"result.json is a symbolic link"):
        rundir.write("result.json", {})
    with pytest.raises(DiskError, match=r"plan.json could not be written"):
        rundir.write("plan.json", {})
    with pytest.raises(DiskError, match=r"clients.csv is a symbolic link"):
        fill(rundir, 1)
    assert target.read_text() == "years of work"


FOREIGN = ("notes.txt", "my.csv", "my.json", "my.yaml", "best.safetensors", ".my.tmp", "clients.csv.bak", "Result.json")


def test_force_and_resume_remove_names_of_ours_only(tmp_path):
    rundir = concluded(tmp_path / "run")
    for name in FOREIGN:
        (rundir.path / name).write_text("mine")
    with rundir:
        rundir.cut({})
        rundir.clear()
    assert {p.name for p in rundir.path.iterdir()} == {*FOREIGN, ".lock"}


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path):
    (tmp_path / ".plan.json.123.tmp").write_text("{")
    with RunDir(tmp_path):
        assert [p.name for p in tmp_path.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    refused = pytest.raises(DiskError, match=r"file/run/.lock could not be written \(Not a directory\)")
    with refused, RunDir(tmp_path / "file" / "run"):
        pytest.fail("entered a folder below a file")


def test_the_error_is_told_even_if_it_cannot_be_kept(rundir, monkeypatch):
    def disk_is_full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedexp.system.files.write_atomically", disk_is_full)
    with pytest.raises(LookupError, match="planned"), rundir.failures():
        raise LookupError("planned")


# ---------------------------------------------------------------- the lock
HOLD = """
import pathlib, sys
from fedexp.runs.directory import RunDir
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


def test_a_file_that_was_begun_with_other_columns_keeps_them(rundir):
    fill(rundir, 1)
    marks, head = rundir.marks, (rundir.path / "clients.csv").read_text()
    again = RunDir(rundir.path)
    again.cut(marks)
    again.append_rows("clients.csv", ["client", "new", *COLUMNS[:1]], [{"round": 2, "client": 5, "new": 0.5}])
    assert (rundir.path / "clients.csv").read_text() == head + "2,5,\n"
    assert [row["round"] for row in again.rows("clients.csv")] == ["1", "1", "2"]


def test_a_row_with_a_column_that_the_file_does_not_have_is_refused(tmp_path):
    with RunDir(tmp_path / "run") as rundir:
        with pytest.raises(ValueError, match=r"clients.csv has no column 'loss'"):
            rundir.append_rows("clients.csv", COLUMNS, [{"round": 1, "loss": 2.0}])
        assert not (rundir.path / "clients.csv").exists()
