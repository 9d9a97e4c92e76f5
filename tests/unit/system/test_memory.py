"""What the system says of memory."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from fedexp.errors import ConfigError
from fedexp.system import memory
from fedexp.system.memory import afford, available_memory


def test_a_control_group_limits_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "group")
    own = tmp_path / "group" / "user" / "job"
    for folder in (tmp_path / "proc" / "self", own):
        folder.mkdir(parents=True)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=4000 * 1024))
    assert available_memory() == 4000 * 1024
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/user/job\n")
    (own / "memory.current").write_text("900000\n")
    (own / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    for limit, available in (("max", 4000 * 1024), ("1000000", 200000), ("800000", 0), ("99999999999", 4000 * 1024)):
        (own / "memory.max").write_text(limit + "\n")
        assert available_memory() == available
    for name, text in (("max", "1000000"), ("current", "950000"), ("stat", "anon 1\n")):
        (own.parent / f"memory.{name}").write_text(text)
    assert available_memory() == 50000  # of the group around it


def test_what_does_not_fit_is_named(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    afford(1000, "data.size=8")
    with pytest.raises(ConfigError, match=r"data\.size=9 takes 1.00 kB; 1.00 kB of memory are left"):
        afford(1001, "data.size=9")
