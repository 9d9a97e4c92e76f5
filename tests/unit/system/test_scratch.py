"""Temporary folders: gone with the block, or with the next one if the process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from fedexp.system import scratch

HOLD = """
import pathlib, sys
from fedexp.system import scratch
with scratch.folder(within=pathlib.Path(sys.argv[1])) as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_there_for_its_block(tmp_path):
    with scratch.folder(within=tmp_path) as folder:
        (folder / "file").write_text("x")
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "MIN_AGE_SECONDS", -1.0)
    others = [tmp_path / name for name in ("fedexp-scratch-mine", "fedexp-scratch-notes.txt", "fedexp-abcdefgh")]
    for path in others:
        path.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")
    (link := tmp_path / "fedexp-scratch-abcdefgh").symlink_to(target)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        left = Path(other.stdout.readline().strip())
        with scratch.folder(within=tmp_path):
            assert left.exists()  # in use
        os.kill(other.pid, signal.SIGKILL)
    assert left.exists()
    with scratch.folder(within=tmp_path) as folder:
        assert {p.name for p in tmp_path.iterdir()} == {p.name for p in (*others, target, link, folder)}
    assert (target / "thesis.txt").exists()


def test_a_folder_that_has_only_just_been_made_is_left_alone(tmp_path):
    """Its process may be about to lock it."""
    fresh = tmp_path / "fedexp-scratch-abcdefgh"
    fresh.mkdir()
    with scratch.folder(within=tmp_path):
        pass
    assert fresh.exists()
