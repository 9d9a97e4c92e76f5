"""The cache of converted data sets: made once, whole or not at all, shared, and never in the way."""

from __future__ import annotations

import logging
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout

from fedexp.data import cache as module
from fedexp.data.cache import cached
from fedexp.data.source import DataSpec, Loaded, Samples, identified
from fedexp.errors import DataError


def small(shift: float = 0.0, owners: bool = True) -> Loaded:
    x, y = torch.arange(24.0).view(6, 1, 2, 2) + shift, torch.tensor([0, 1, 2, 0, 1, 2])
    known = (torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 3])) if owners else (None, None)
    return Loaded(DataSpec((1, 2, 2), 3), Samples(x, y), Samples(x[:2] * 2, y[:2]), None, *known)


class Counted:
    """Counts how often the data set was converted."""

    def __init__(self, loaded: Loaded | None = None) -> None:
        self.calls, self.loaded = 0, loaded or small()

    def __call__(self) -> Loaded:
        self.calls += 1
        return self.loaded


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def ask(tmp_path, source):
    def load(make, folder=tmp_path / "cache", settings=None, files=None) -> Loaded:
        where = None if folder is None else str(folder)
        return cached(make, folder=where, name="tiny", files=files or [source], settings=settings or {"size": 2})

    return load


def tensors(loaded: Loaded) -> list[torch.Tensor | None]:
    return [loaded.train.x, loaded.train.y, loaded.test.x, loaded.test.y, loaded.owners, loaded.test_owners]


def assert_same(one: Loaded, two: Loaded) -> None:
    assert one.spec == two.spec
    for a, b in zip(tensors(one), tensors(two), strict=True):
        assert (a is None) == (b is None)
        assert a is None or (torch.equal(a, b) and a.dtype == b.dtype)


@pytest.mark.parametrize("owners", [True, False])
def test_what_was_converted_once_is_read_from_then_on(ask, owners):
    make = Counted(small(owners=owners))
    for _ in range(3):
        assert_same(ask(make), small(owners=owners))
    assert make.calls == 1


def test_tensors_of_whole_numbers_keep_their_type(ask):
    tokens = Samples(torch.arange(10).view(2, 5), torch.tensor([80, 3]))
    loaded = ask(Counted(Loaded(DataSpec((5,), 81), tokens, tokens, None)))
    assert loaded.train.x.dtype == torch.int64
    assert loaded.spec.shape == (5,)


def test_null_switches_it_off(ask, tmp_path):
    make = Counted()
    ask(make, folder=None)
    ask(make, folder=None)
    assert make.calls == 2
    assert not (tmp_path / "cache").exists()


def test_home_is_understood(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    ask(Counted(), folder=Path("~/here"))
    assert list((tmp_path / "here").glob("tiny-*/train_x.npy"))


def test_another_setting_and_another_file_are_another_entry(ask, source):
    make = Counted()
    ask(make)
    ask(make, settings={"size": 3})
    assert make.calls == 2
    source.write_bytes(b"longer content")
    ask(make)
    assert make.calls == 3
    ask(make)
    ask(make, settings={"size": 2})
    assert make.calls == 3


def test_a_new_format_makes_old_entries_unknown(ask, monkeypatch):
    make = Counted()
    ask(make)
    monkeypatch.setattr(module, "FORMAT", module.FORMAT + 1)
    ask(make)
    assert make.calls == 2


def test_tensors_are_mapped_and_writing_into_them_stays_private(ask):
    make = Counted()
    ask(make)
    loaded = ask(make)
    loaded.train.x.zero_()
    assert_same(ask(make), small())
    assert loaded.train.x.data_ptr() % 64 == 0  # sums may depend on it in their last bits


def test_nothing_is_held_twice(ask, monkeypatch):
    """What comes back after converting is the mapped file, not what was converted."""
    opened = []
    monkeypatch.setattr(module.np, "load", lambda *a, _load=np.load, **k: opened.append(k) or _load(*a, **k))
    loaded = small()
    assert ask(Counted(loaded)).train.x.data_ptr() != loaded.train.x.data_ptr()
    assert all(k["mmap_mode"] == "c" for k in opened)


def flipped(content: bytes, at: int) -> bytes:
    """The same with one bit changed."""
    at %= len(content)
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE = {
    "cut": lambda raw: raw[:-3],
    "empty": lambda raw: b"",
    "not an object": lambda raw: b"[]",
    "not text": lambda raw: b"\xff\xfe",
    "first bit": lambda raw: flipped(raw, 0),
    "a bit near the end": lambda raw: flipped(raw, -4),
}


@pytest.mark.parametrize("name", ["train_x.npy", "test_y.npy", "owners.npy", "about.json"])
@pytest.mark.parametrize("damage", ["gone", *DAMAGE])
def test_a_damaged_entry_is_named_and_made_again(ask, tmp_path, caplog, name, damage):
    make = Counted()
    ask(make)
    path = next((tmp_path / "cache").glob(f"tiny-*/{name}"))
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert_same(ask(make), small())
    assert make.calls == 2
    (record,) = caplog.records
    assert f"the cache's {path.parent} is damaged" in record.message
    assert "It is made anew." in record.message
    assert_same(ask(make), small())
    assert make.calls == 2


def test_no_bit_of_an_entry_can_change_what_is_read(ask, tmp_path):
    """Where a bit has no meaning (a blank), the entry is read as before."""
    whole = ask(Counted())
    (entry,) = (tmp_path / "cache").glob("tiny-*")
    noticed = 0
    for path in entry.iterdir():
        content = path.read_bytes()
        for at in range(len(content)):
            path.write_bytes(flipped(content, at))
            found = module._opened(entry)
            if found is None:
                noticed += 1
            else:
                assert_same(found, whole)
                assert found.digest == whole.digest
        path.write_bytes(content)
    assert noticed > 1000
    assert module._opened(entry) is not None


def test_a_damaged_entry_that_cannot_be_replaced_is_not_used(ask, tmp_path, monkeypatch, caplog):
    make = Counted()
    ask(make)
    path = next((tmp_path / "cache").glob("tiny-*/train_x.npy"))
    path.write_bytes(flipped(path.read_bytes(), -4))

    def refuse(entry):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(module, "_lock", refuse)
    assert_same(ask(make), small())
    assert "is damaged" in caplog.text
    assert "Read-only file system" in caplog.text


def test_the_digest_is_the_same_with_and_without_the_cache(ask):
    assert ask(Counted()).digest == identified(small()).digest != identified(small(shift=1e-6)).digest


def test_leftovers_of_a_killed_process_are_removed(ask, tmp_path):
    make = Counted()
    ask(make)
    entry = next((tmp_path / "cache").glob("tiny-*"))
    rest = entry.with_name(f".{entry.name}.abc.tmp")
    entry.rename(rest)
    ask(make)
    assert make.calls == 2
    assert not rest.exists()


def test_a_failed_conversion_leaves_nothing_behind(ask, tmp_path):
    def fail() -> Loaded:
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        ask(fail)
    assert not list((tmp_path / "cache").glob("tiny-*"))
    assert_same(ask(Counted()), small())


def test_a_folder_that_cannot_be_made_is_no_failure(ask, source, caplog):
    make = Counted()
    with caplog.at_level(logging.WARNING):
        assert_same(ask(make, folder=source / "inside a file"), small())
    assert "cannot keep tiny in the cache" in caplog.text
    assert make.calls == 1


def test_a_full_disk_is_no_failure(ask, caplog, monkeypatch, tmp_path):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.np, "save", full)
    make = Counted()
    with caplog.at_level(logging.WARNING):
        assert_same(ask(make), small())
    assert "No space left on device" in caplog.text
    assert make.calls == 1
    assert [p for p in (tmp_path / "cache").iterdir() if p.is_dir()] == []


def _job(folder: str, source: str, log: str, start: float) -> None:
    def slow() -> Loaded:
        with Path(log).open("a") as file:
            file.write("converted\n")
        time.sleep(0.3)
        return small()

    time.sleep(max(0.0, start - time.time()))
    loaded = cached(slow, folder=folder, name="tiny", files=[Path(source)], settings={})
    assert_same(loaded, small())


def test_jobs_that_start_at_once_convert_once(tmp_path, source):
    fork = multiprocessing.get_context("fork")
    begin = time.time() + 0.2
    arguments = (str(tmp_path / "cache"), str(source), str(tmp_path / "log"), begin)
    jobs = [fork.Process(target=_job, args=arguments) for _ in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * 4
    assert (tmp_path / "log").read_text() == "converted\n"


def hold(entry: Path, ready) -> None:
    with module._lock(entry):
        ready.set()
        time.sleep(600)


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=hold, args=(tmp_path / "entry", ready), daemon=True)
    holder.start()
    assert ready.wait(60)
    with pytest.raises(Timeout):
        FileLock(tmp_path / ".entry.lock").acquire(blocking=False)
    holder.kill()
    holder.join()
    with module._lock(tmp_path / "entry"):
        pass
