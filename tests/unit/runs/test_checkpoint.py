"""Checkpoints: what comes back, what is refused, and what a crash, a full disk or damage leaves."""

from __future__ import annotations

import errno
import json
import logging
import pickle
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedexp.config.settings import Every
from fedexp.core.component import Component
from fedexp.core.state import Out, ServerState, Slot, digest, number, zeros_shared
from fedexp.display import SilentDisplay
from fedexp.errors import CheckpointError, DiskError
from fedexp.runs import checkpoint as module
from fedexp.runs import pointer, tensor_files
from fedexp.runs.checkpoint import Checkpoint, RunProgress, save_model
from fedexp.runs.client_store import ClientStore
from fedexp.runs.directory import RunDir
from fedexp.runs.tensor_files import TensorFiles
from fedexp.server.sampler import largest_first
from fedexp.system import files
from fedexp.testing import card, play, trial

REMEDY = "force=true"


def number_tree(value: float) -> dict[str, torch.Tensor]:
    return {"value": torch.tensor(value)}


def server(round_: int) -> ServerState:
    return ServerState(
        round_,
        {"features.w": torch.arange(6.0).view(2, 3).T, "n": torch.tensor(round_), "flag": torch.tensor([True, False])},
        {"a.c": {"w": torch.ones(2, dtype=torch.float64)}, "b.t": number_tree(0.1)},
        {
            "m.post": {12: {"w": torch.zeros(3), "v": torch.ones(())}, 0: number_tree(1)},
            "m/odd.name": {4: number_tree(2)},
        },
    )


def example(checkpoint: Checkpoint, round_: int = 7) -> RunProgress:
    store = checkpoint.new_store()
    store.put(3, {"a.ck": {"w": torch.full((2, 3), 3.0 + round_)}, "a.seen": number_tree(2)})
    store.put(12, {"a.ck": {"w": torch.full((2, 3), 12.0)}, "a.seen": {"value": torch.tensor(5)}})
    return RunProgress(server(round_), store, {"features.w": torch.zeros(3, 2)}, {"train": 1.5})


def content(saved: RunProgress) -> tuple[object, ...]:
    mail = {f"{n}/{c}": t for n, box in saved.state.mailboxes.items() for c, t in box.items()}
    trees = {"model": saved.state.model, "best": saved.best, **saved.state.slots, **mail}
    return saved.state.round, digest(trees), saved.store.digest(), list(saved.store), dict(saved.seconds)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoint"


@pytest.fixture(params=[None, 0, 40], ids=["memory", "disk", "some"])
def hold(request):
    """How much of the clients' slots is in memory."""
    return request.param


def saved_to(folder, *, plan: str = "plan", hold: int | None = None) -> RunProgress:
    checkpoint = Checkpoint(folder, plan, hold=hold)
    checkpoint.save(saved := example(checkpoint))
    return saved


def saved_twice(folder, *, hold: int | None = None) -> list[tuple[object, ...]]:
    """Checkpoints after rounds 7 and 8, between which client 3 took part; what each holds."""
    checkpoint = Checkpoint(folder, "plan", hold=hold)
    checkpoint.save(saved := example(checkpoint))
    first = content(saved)
    saved.state = server(8)
    saved.store.put(3, {"a.seen": number_tree(8)})
    checkpoint.save(saved)
    return [first, content(saved)]


# ---------------------------------------------------------------- round trip
def test_everything_comes_back(folder, hold):
    saved = saved_to(folder, hold=hold)
    loaded = Checkpoint(folder, "plan", hold=hold).load()
    assert content(loaded) == content(saved)
    assert list(loaded.state.mailboxes["m.post"]) == [12, 0]  # sums depend on the order in their last bits
    assert list(loaded.state.model) == list(saved.state.model) == ["features.w", "n", "flag"]
    assert loaded.state.mailboxes["m/odd.name"][4]["value"] == 2
    assert loaded.store.get(12)["a.seen"]["value"].dtype == torch.int64
    assert loaded.store.get(99) == {}


def test_the_store_may_change_between_two_processes(folder):
    """What was written from memory is read from disk, and the other way round."""
    for write, read in ((None, 0), (0, None)):
        saved = saved_to(folder, hold=write)
        again = Checkpoint(folder, "plan", hold=read)
        assert content(again.load()) == content(saved)
        again.clear()


def test_no_checkpoint_is_none(folder):
    assert Checkpoint(folder, "plan").load() is None
    folder.mkdir()
    (folder / "server-000001.safetensors").write_bytes(b"an orphan of a crash")
    assert Checkpoint(folder, "plan").load() is None


def test_fedavg_has_nothing_but_a_model(folder):
    checkpoint = Checkpoint(folder, "plan")
    saved = RunProgress(ServerState(1, {"w": torch.ones(2)}, {}, {}), checkpoint.new_store())
    checkpoint.save(saved)
    loaded = Checkpoint(folder, "plan").load()
    assert content(loaded) == content(saved)
    assert loaded.best == {}
    assert names(folder) == ["latest.json", "server-000001.safetensors"]


def test_only_clients_that_changed_are_written_again(folder, monkeypatch, hold):
    written: list[str] = []
    write = TensorFiles.write
    monkeypatch.setattr(
        TensorFiles, "write", lambda self, name, trees: (written.append(name), write(self, name, trees))[1]
    )
    checkpoint = Checkpoint(folder, "plan", hold=hold)
    saved = example(checkpoint, 1)
    checkpoint.save(saved)
    assert len(written) == 3  # two clients and the server
    written.clear()
    saved.state.round = 2
    saved.store.put(12, {"a.ck": {"w": torch.zeros(1)}})
    checkpoint.save(saved)
    assert written == ["client-000012-000002.safetensors", "server-000002.safetensors"]
    assert content(Checkpoint(folder, "plan").load()) == content(saved)


def test_the_last_two_checkpoints_are_kept_and_nothing_else(folder, hold):
    checkpoint = Checkpoint(folder, "plan", hold=hold)
    saved = example(checkpoint, 1)
    checkpoint.save(saved)
    for round_ in (2, 3, 4):
        saved.state = server(round_)
        saved.store.put(12, {"a.ck": {"w": torch.full((2, 3), float(round_))}})
        checkpoint.save(saved)
        (folder / f".latest.json.{round_}.tmp").touch()
    assert names(folder) == [
        ".latest.json.4.tmp", "client-000003-000001.safetensors", "client-000012-000003.safetensors",
        "client-000012-000004.safetensors", "latest.json", "previous.json", "server-000003.safetensors",
        "server-000004.safetensors",
    ]  # fmt: skip
    Checkpoint(folder, "plan", hold=hold).load()
    assert ".latest.json.4.tmp" not in names(folder)
    assert len(names(folder)) == 7


def test_what_was_put_after_a_checkpoint_does_not_touch_it(folder, hold):
    """A kill long after the checkpoint: newer slots are on disk already, and are not taken for the older ones."""
    checkpoint = Checkpoint(folder, "plan", hold=hold)
    checkpoint.save(saved := example(checkpoint))
    kept = content(saved)
    for value in range(5):
        for client in (3, 12, 20):
            saved.store.put(client, {"a.seen": number_tree(value)})
        saved.store.commit()
    loaded = Checkpoint(folder, "plan", hold=hold).load()
    assert content(loaded) == kept
    assert len(names(folder)) == 4  # the orphans are swept away


def test_after_loading_only_new_changes_are_written(folder, hold):
    saved_to(folder)
    again = Checkpoint(folder, "plan", hold=hold)
    loaded = again.load()
    loaded.state.round = 8
    loaded.store.put(3, {"a.seen": number_tree(1)})
    again.save(loaded)
    assert {p.name for p in folder.glob("client-*")} == {
        "client-000003-000001.safetensors", "client-000003-000002.safetensors", "client-000012-000001.safetensors",
    }  # fmt: skip
    assert content(Checkpoint(folder, "plan").load()) == content(loaded)


def test_clear(folder):
    saved_twice(folder)
    checkpoint = Checkpoint(folder, "plan")
    checkpoint.clear()
    assert not folder.exists()
    checkpoint.clear()
    assert checkpoint.load() is None


def test_nothing_is_written_after_clear_that_was_not_asked_for(folder):
    checkpoint = Checkpoint(folder, "plan")
    checkpoint.save(example(checkpoint))
    checkpoint.clear()
    fresh = RunProgress(ServerState(7, {"w": torch.ones(1)}, {}, {}), checkpoint.new_store())
    checkpoint.save(fresh)
    assert content(Checkpoint(folder, "plan").load()) == content(fresh)


def test_everything_is_on_the_disk_itself_before_the_pointer_is(folder, monkeypatch, hold):
    synced: set[str] = set()
    monkeypatch.setattr(tensor_files.os, "fsync", lambda fd: synced.add(Path(f"/proc/self/fd/{fd}").resolve().name))
    pointed: list[set[str]] = []
    write = module.write_atomically
    monkeypatch.setattr(module, "write_atomically", lambda *a: (pointed.append(set(synced)), write(*a)))
    saved_to(folder, hold=hold)
    assert pointed == [{
        "client-000003-000001.safetensors", "client-000012-000001.safetensors", "server-000007.safetensors",
        "checkpoint",
    }]  # fmt: skip


# ---------------------------------------------------------------- refused
def refused(folder, plan: str = "plan") -> str:
    with pytest.raises(CheckpointError) as error:
        Checkpoint(folder, plan).load()
    assert REMEDY in str(error.value)
    return str(error.value)


DAMAGES = ("truncated", "flipped", "missing", "emptied", "swapped")


def damage_to(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "swapped":
        path.write_bytes(next(p for p in path.parent.glob("client-000012*")).read_bytes())
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes({"truncated": data[:-3], "flipped": data, "emptied": b""}[damage])


@pytest.mark.parametrize("pattern", ["server-*", "client-000003-*"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_of_the_only_checkpoint_is_named(folder, pattern, damage):
    saved_to(folder)
    (path,) = folder.glob(pattern)
    damage_to(path, damage)
    message = refused(folder)
    assert str(path) in message
    assert ("missing" if damage == "missing" else "damaged") in message


@pytest.mark.parametrize("name", ["latest.json", "server-000008.safetensors", "client-000003-000002.safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checkpoint_before_a_damaged_one_is_used_and_that_is_said(folder, caplog, name, damage, hold):
    before, _ = saved_twice(folder, hold=hold)
    damage_to(folder / name, damage)
    checkpoint = Checkpoint(folder, "plan", hold=hold)
    with caplog.at_level(logging.WARNING):
        loaded = checkpoint.load()
    assert content(loaded) == before
    (said,) = caplog.messages
    assert str(folder / name) in said
    assert "after round 7" in said
    loaded.state = server(9)  # and the damaged one does not become the one before
    loaded.store.put(12, {"a.seen": number_tree(9)})
    checkpoint.save(loaded)
    caplog.clear()
    assert content(Checkpoint(folder, "plan").load()) == content(loaded)
    assert not caplog.messages
    damage_to(folder / "latest.json", "missing")
    assert content(Checkpoint(folder, "plan").load()) == before


@pytest.mark.parametrize("name", ["previous.json", "server-000007.safetensors", "client-000003-000001.safetensors"])
def test_two_damaged_checkpoints_are_refused_and_both_files_named(folder, name):
    saved_twice(folder)
    for path in (folder / "latest.json", folder / name):
        damage_to(path, "flipped")
    message = refused(folder)
    assert str(folder / "latest.json") in message
    assert str(folder / name) in message


def test_damage_to_the_checkpoint_before_does_not_matter_and_is_said(folder, caplog):
    _, after = saved_twice(folder)
    damage_to(folder / "server-000007.safetensors", "missing")
    assert content(Checkpoint(folder, "plan").load()) == after
    assert not caplog.messages
    damage_to(folder / "previous.json", "flipped")
    assert content(Checkpoint(folder, "plan").load()) == after
    (said,) = caplog.messages
    assert str(folder / "previous.json") in said
    assert "not needed, unless" in said


def test_no_flipped_bit_of_the_pointer_is_believed(folder, caplog):
    before, after = saved_twice(folder)
    path = folder / "latest.json"
    data = path.read_bytes()
    for place in range(0, len(data) - 1, 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 7]) + data[place + 1 :])
        assert content(Checkpoint(folder, "plan").load()) in (before, after)
        path.write_bytes(data)
        assert content(Checkpoint(folder, "plan").load()) == after, "the other checkpoint was not left alone"
    assert len(caplog.messages) > len(data) / 7 * 0.9


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", "\x00\x01", '{"version": 3, "plan": "plan"}',
        '{"version": 3, "plan": "plan", "round": 1, "server": 5, "clients": {}, "seconds": {}, "commits": 1}',
        '{"version": 3, "plan": "plan", "round": 1, "server": ["a", "b"], "clients": [], "seconds": {}, "commits": 1}',
        '{"version": 3, "plan": "plan", "round": 1, "server": ["a", "b"], "clients": {}, "seconds": {}, "commits": 1}',
    ],
)  # fmt: skip
def test_an_unreadable_pointer_is_named(folder, text):
    saved_to(folder)
    (folder / "latest.json").write_text(text)
    assert str(folder / "latest.json") in refused(folder)


@pytest.mark.parametrize("name", ["../server-000007.safetensors", "/etc/passwd", "", ".", "server-7.safetensors", 7])
def test_a_pointer_names_files_of_its_own_folder_only(folder, name):
    """Even where its checksum fits."""
    saved_to(folder)
    (server,) = folder.glob("server-*")
    shutil.copy(server, folder.parent / server.name)
    latest = folder / "latest.json"
    meta = json.loads(latest.read_text())
    del meta["sha256"]
    meta["server"][0] = name
    latest.write_text(json.dumps({**meta, "sha256": pointer.checksum(meta)}))
    assert "is not the name of a checkpoint's file" in refused(folder)


def test_a_pointer_speaks_of_growing_files_only(folder):
    saved_to(folder)
    latest = folder / "latest.json"
    meta = json.loads(latest.read_text())
    del meta["sha256"]
    meta["written"]["../../thesis.txt"] = [0, 0]
    latest.write_text(json.dumps({**meta, "sha256": pointer.checksum(meta)}))
    assert "thesis.txt' is not a growing file" in refused(folder)


FOREIGN = ("notes.txt", "client-3.safetensors", "server-best.safetensors", "latest.json.bak", ".my.tmp")


def test_what_others_put_into_the_folder_stays(folder):
    saved_twice(folder)
    for name in FOREIGN:
        (folder / name).write_text("mine")
    checkpoint = Checkpoint(folder, "plan")
    loaded = checkpoint.load()
    loaded.state = server(9)
    checkpoint.save(loaded)
    checkpoint.clear()
    assert names(folder) == sorted(FOREIGN)


@pytest.mark.parametrize("act", ["load", "save", "clear"])
def test_a_folder_that_is_a_link_is_not_followed(folder, act):
    target = folder.parent / "mine"
    saved_to(target)
    before = names(target)
    folder.symlink_to(target)
    checkpoint = Checkpoint(folder, "plan")
    with pytest.raises(DiskError, match=r"checkpoint is a symbolic link.* Move it elsewhere"):
        checkpoint.save(example(checkpoint)) if act == "save" else getattr(checkpoint, act)()
    assert names(target) == before


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_file_that_is_something_else_is_refused(folder, kind):
    saved_to(folder)
    path = next(folder.glob("client-*"))
    kept = path.rename(folder.parent / "kept")
    path.mkdir() if kind == "folder" else path.symlink_to(kept)
    with pytest.raises(DiskError, match=rf"{path.name} is a .*{kind}.*Move it elsewhere"):
        Checkpoint(folder, "plan").load()
    assert kept.exists()


def test_tensors_without_a_pointer_are_not_passed_over_in_silence(folder, caplog):
    saved_to(folder)
    (folder / "latest.json").unlink()
    assert Checkpoint(folder, "plan").load() is None
    assert "has no pointer to a checkpoint" in caplog.text


def test_another_plan_is_refused_with_both(folder):
    saved_to(folder, plan="first")
    message = refused(folder, plan="second")
    assert "first" in message
    assert "second" in message


def test_another_version_is_refused(folder):
    """Also where the one before it would be readable: nothing is damaged here."""
    saved_twice(folder)
    pointer = folder / "latest.json"
    older = {k: v for k, v in json.loads(pointer.read_text()).items() if k not in ("sha256", "commits")}
    pointer.write_text(json.dumps({**older, "version": 2}))
    assert "version 2" in refused(folder)


def test_slots_that_are_damaged_while_the_run_goes_on_are_named(folder):
    checkpoint = Checkpoint(folder, "plan", hold=0)
    checkpoint.save(saved := example(checkpoint))
    path = folder / "client-000003-000001.safetensors"
    damage_to(path, "flipped")
    for look in (lambda: saved.store.get(3), saved.store.digest):
        with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is damaged.*same command continues"):
            look()


def repointed(folder, path: Path, data: bytes) -> None:
    """Puts other bytes in place of a file, and a pointer whose checksums fit."""
    path.write_bytes(data)
    latest = folder / "latest.json"
    meta = json.loads(latest.read_text())
    del meta["sha256"]
    meta["server"][1] = pointer.hashlib.sha256(data).hexdigest()
    latest.write_text(json.dumps({**meta, "sha256": pointer.checksum(meta)}))


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a checkpoint was unpickled",)


def test_loading_never_unpickles(folder, monkeypatch, hold):
    def forbidden(*_args, **_options):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    saved = saved_to(folder, hold=hold)
    assert content(Checkpoint(folder, "plan", hold=hold).load()) == content(saved)


def test_a_pickle_in_place_of_tensors_is_refused_and_not_run(folder):
    """Even where the pointer's checksum fits."""
    saved_to(folder)
    (path,) = folder.glob("server-*")
    repointed(folder, path, pickle.dumps(Bomb()))
    assert str(path) in refused(folder)


# ---------------------------------------------------------------- crashes and full disks
class Crash(BaseException):
    """The process dies here."""


def fails_at(monkeypatch, call: int, error: BaseException) -> None:
    """Lets the given write fail, after half of its bytes."""
    calls = iter(range(10**6))
    original = files.write_atomically

    def watched(path, data, **options):
        if next(calls) == call:
            path.with_name(f".{path.name}.1.tmp").write_bytes(data[: len(data) // 2])
            raise error
        return original(path, data, **options)

    for place in (module, tensor_files):
        monkeypatch.setattr(place, "write_atomically", watched)


@pytest.mark.parametrize("error", [Crash(), OSError(errno.ENOSPC, "No space left on device")], ids=["crash", "full"])
@pytest.mark.parametrize("call", range(5))  # two clients, the server, the pointer to the one before, the pointer
def test_a_failure_at_any_write_leaves_the_last_checkpoint(folder, call, error, caplog):
    checkpoint = Checkpoint(folder, "plan")
    checkpoint.save(saved := example(checkpoint))
    kept = content(saved)
    saved.state = server(8)
    for client in (3, 12):
        saved.store.put(client, {"a.ck": {"w": torch.full((1,), -8.0)}})
    with pytest.MonkeyPatch.context() as patch:
        fails_at(patch, call, error)
        with pytest.raises((Crash, DiskError)) as caught:
            checkpoint.save(saved)
    if isinstance(error, OSError):
        assert re.search(r"checkpoint/\S+ could not be written \(No space left .*the same command", str(caught.value))
    killed = shutil.copytree(folder, folder.with_name("killed"))
    assert content(Checkpoint(killed, "plan").load()) == kept
    assert not caplog.messages
    checkpoint.save(saved)  # and the same process may try again: nothing is taken for written that is not
    assert content(Checkpoint(folder, "plan").load()) == content(saved)


def test_a_full_disk_between_checkpoints_loses_nothing(folder):
    """A store on disk writes when a client's slots leave its memory."""
    checkpoint = Checkpoint(folder, "plan", hold=0)
    checkpoint.save(saved := example(checkpoint))
    kept = content(saved)
    with pytest.MonkeyPatch.context() as patch:
        fails_at(patch, 1, OSError(errno.ENOSPC, "No space left on device"))
        saved.store.put(3, {"a.seen": number_tree(8)})
        with pytest.raises(DiskError, match="client-000012"):
            saved.store.put(12, {"a.seen": number_tree(8)})
        saved.store.rollback()
    assert content(saved) == kept
    assert content(Checkpoint(folder, "plan", hold=0).load()) == kept


def test_a_round_that_is_on_disk_is_not_written_again(folder, monkeypatch):
    """A run that stops on an error saves the round it began with, which may be on disk already."""
    checkpoint = Checkpoint(folder, "plan")
    checkpoint.save(saved := example(checkpoint))
    fails_at(monkeypatch, 0, Crash())
    checkpoint.save(saved)
    assert names(folder) == sorted(["latest.json", "server-000007.safetensors", *(
        f"client-{c:06d}-000001.safetensors" for c in (3, 12))])  # fmt: skip


# ---------------------------------------------------------------- what a run keeps when it stops
@dataclass(frozen=True, kw_only=True)
class Counts(Component):
    """Remembers participations, and has a server slot that may be empty."""

    part: str = "none"

    def private_part(self):
        return self.part

    def slots(self):
        return (
            Slot("seen", "client", number(0)), Slot("c", "server", zeros_shared, down=True),
            Slot("none", "client", lambda init: {}),
        )  # fmt: skip

    def finish(self, local):
        return Out(slots={"seen": {"value": local.mine["seen"]["value"] + 1}})


class Watching(SilentDisplay):
    """Knows which round is under way."""

    round = 0

    def cohort(self, round_, clients, samples):
        self.round = round_


def is_last(point: str, args, engine) -> bool:
    """Whether others of the same kind have gone well: clients of the round, files of the checkpoint."""
    if point == "write":
        return args[1].startswith("server")
    return point != "_round" or args[0].client == largest_first(engine.sampler(1), engine.algorithm.facts.counts)[-1]


IN_ROUND = ("_round", "put", "append_rows", "test_server", "append_record", "record")
SAVING = ("save", "write")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    engine = trial({"counts": Counts()}, tmp_path_factory.mktemp("plain"), rounds=3)
    engine.run(card(engine))
    return engine


@pytest.mark.parametrize(
    ("point", "error"), [*((p, KeyboardInterrupt) for p in (*IN_ROUND, *SAVING)), ("save", OSError)]
)
@pytest.mark.parametrize("hold", [None, 8], ids=["memory", "disk"])
def test_a_run_that_stops_anywhere_in_a_round_goes_on_to_the_same_end(tmp_path, uninterrupted, point, error, hold):
    """Whatever fails in round 2, and wherever: what is kept is a complete round, with its rows and its record."""
    components = {"counts": Counts()}
    engine = trial(components, tmp_path / "stopped", rounds=3, hold=hold)
    engine.display = Watching()
    engine.every = Every(1, 1 if point in SAVING else 5)  # 5: round 1 is written when round 2 has failed
    owner = {
        "_round": engine.executor._worker, "put": ClientStore, "append_rows": engine.rundir,
        "test_server": engine.executor._worker, "append_record": engine.rundir, "record": engine.display,
        "save": engine.checkpoint, "write": TensorFiles,
    }[point]  # fmt: skip
    original = getattr(owner, point)
    failed: list[int] = []

    def fails_once(*args, **options):
        if engine.display.round == 2 and not failed and is_last(point, args, engine):
            failed.append(engine.progress.state.round)
            if point in ("append_rows", "append_record"):  # half of it is written
                name = "clients.csv" if point == "append_rows" else "metrics.jsonl"
                with (engine.rundir.path / name).open("a") as file:
                    file.write('{"round": 2, "aggr' if point == "append_record" else "2,0,")
            raise error("planned")
        return original(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, point, fails_once)
        with pytest.raises(error, match="planned"):
            engine.run(card(engine))
    assert failed
    again = trial(components, tmp_path / "stopped", rounds=3, hold=hold)
    done = 2 if point in SAVING else 1  # a checkpoint that fails does not undo its round, and is tried again
    assert again.progress.state.round == done
    assert [r["round"] for r in again.records] == [1, 2][:done]
    again.run(card(again))
    plain = uninterrupted
    assert again.digests() == plain.digests()
    for file in ("clients.csv", "ledger.csv"):
        assert (again.rundir.path / file).read_bytes() == (plain.rundir.path / file).read_bytes()
    numbers = [[{k: v for k, v in r.items() if k != "seconds"} for r in e.rundir.records()] for e in (again, plain)]
    assert numbers[0] == numbers[1]
    assert (again.ledger.up, again.ledger.down) == (plain.ledger.up, plain.ledger.down)


def test_no_checkpoint_is_made_of_damaged_slots(tmp_path, uninterrupted):
    """It would push out the one that is whole; from that the same command ends as if nothing had been."""
    engine = trial({"counts": Counts()}, tmp_path, rounds=3, hold=0)
    engine.rounds = 1
    engine.run(card(engine))
    engine.rounds, engine.every = 3, Every(1, 5)  # no checkpoint of round 2
    engine.play(2)
    folder = tmp_path / "checkpoint"
    newest = {p.name: p for p in folder.glob("client-*-000002.*")}
    client = next(c for c in engine.sampler(2) if f"client-{c:06d}-000002.safetensors" in newest)
    damage_to(newest[f"client-{client:06d}-000002.safetensors"], "flipped")
    with pytest.raises(CheckpointError, match=f"client-{client:06d}-000002.*same command"):
        engine.run(card(engine))
    assert json.loads((folder / "latest.json").read_text())["round"] == 1
    again = trial({"counts": Counts()}, tmp_path, rounds=3, hold=0)
    again.run(card(again))
    assert again.digests() == uninterrupted.digests()


def test_a_server_slot_that_is_empty_survives(tmp_path):
    """Where everything is private, zeros of the shared shape are no tensors at all."""
    first = trial({"counts": Counts(part="all")}, tmp_path, rounds=3)
    first.rounds = 1
    first.run(card(first))
    assert first.progress.state.slots["counts.c"] == {}
    second = trial({"counts": Counts(part="all")}, tmp_path, rounds=3)
    second.run(card(second))
    assert second.digests() == play({"counts": Counts(part="all")}, rounds=3).digests()


# ---------------------------------------------------------------- the final model
def test_the_final_model_is_plain_safetensors(tmp_path):
    model = {"w": torch.arange(6.0).view(2, 3).T, "n": torch.tensor(3)}
    save_model(RunDir(tmp_path), model, {"run": "abc", "rounds": 5})
    loaded = load_file(tmp_path / "model.safetensors")
    assert digest({"": loaded}) == digest({"": model})


def test_the_same_model_is_the_same_file(tmp_path):
    model = {"b": torch.arange(6.0).view(2, 3).T, "a": torch.tensor(3)}
    about = {"run": "abc", "title": "ä · 5", "rounds": 5, "name": "x", "other": "y"}
    for copy in range(8):  # safetensors' own order of five words is another one almost every time
        save_model(RunDir(tmp_path / str(copy)), model, about)
    assert len({path.read_bytes() for path in tmp_path.glob("*/model.safetensors")}) == 1
    with safe_open(tmp_path / "0" / "model.safetensors", "pt") as file:
        assert file.metadata() == {k: str(v) for k, v in about.items()}
        assert torch.equal(file.get_tensor("b"), model["b"])
