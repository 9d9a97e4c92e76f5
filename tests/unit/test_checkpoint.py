"""Checkpoints: what comes back, what is refused, and what a crash in the middle leaves."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file

from fedexp import checkpoint as module
from fedexp.checkpoint import Checkpoint, Saved, save_model
from fedexp.component import Component
from fedexp.display import SilentDisplay
from fedexp.errors import CheckpointError
from fedexp.state import Out, ServerState, Slot, digest, number, zeros_shared
from fedexp.store import ClientStore
from fedexp.testing import card, play, trial

REMEDY = "force=true"


def number_tree(value: float) -> dict[str, torch.Tensor]:
    return {"value": torch.tensor(value)}


def example(round_: int = 7) -> Saved:
    store = ClientStore()
    store.put(3, {"a.ck": {"w": torch.full((2, 3), 3.0 + round_)}, "a.seen": number_tree(2)})
    store.put(12, {"a.ck": {"w": torch.full((2, 3), 12.0)}, "a.seen": {"value": torch.tensor(5)}})
    state = ServerState(
        round_,
        {"features.w": torch.arange(6.0).view(2, 3).T, "n": torch.tensor(round_), "flag": torch.tensor([True, False])},
        {"a.c": {"w": torch.ones(2, dtype=torch.float64)}, "b.t": number_tree(0.1)},
        {
            "m.post": {12: {"w": torch.zeros(3), "v": torch.ones(())}, 0: number_tree(1)},
            "m/odd.name": {4: number_tree(2)},
        },
    )
    return Saved(state, store, {"features.w": torch.zeros(3, 2)}, {"train": 1.5})


def same(one: Saved, other: Saved) -> bool:
    def mail(saved: Saved) -> dict[str, dict[str, torch.Tensor]]:
        return {f"{n}/{c}": t for n, box in saved.state.mailboxes.items() for c, t in box.items()}

    def whole(saved: Saved) -> tuple[object, ...]:
        trees = {"model": saved.state.model, "best": saved.best, **saved.state.slots, **mail(saved)}
        return saved.state.round, digest(trees), saved.store.digest(), list(saved.store), saved.seconds

    return whole(one) == whole(other)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoint"


def saved_to(folder, *, plan: str = "plan") -> Saved:
    Checkpoint(folder, plan).save(saved := example())
    return saved


# ---------------------------------------------------------------- round trip
def test_everything_comes_back(folder):
    saved = saved_to(folder)
    loaded = Checkpoint(folder, "plan").load()
    assert same(loaded, saved)
    assert list(loaded.state.mailboxes["m.post"]) == [12, 0]  # sums depend on the order in their last bits
    assert list(loaded.state.model) == list(saved.state.model) == ["features.w", "n", "flag"]
    assert loaded.state.mailboxes["m/odd.name"][4]["value"] == 2
    assert loaded.store.get(12)["a.seen"]["value"].dtype == torch.int64
    assert loaded.store.get(99) == {}


def test_no_checkpoint_is_none(folder):
    assert Checkpoint(folder, "plan").load() is None
    folder.mkdir()
    (folder / "server-000001.safetensors").write_bytes(b"an orphan of a crash")
    assert Checkpoint(folder, "plan").load() is None


def test_fedavg_has_nothing_but_a_model(folder):
    saved = Saved(ServerState(1, {"w": torch.ones(2)}, {}, {}), ClientStore())
    Checkpoint(folder, "plan").save(saved)
    loaded = Checkpoint(folder, "plan").load()
    assert same(loaded, saved)
    assert loaded.best == {}
    assert sorted(p.name for p in folder.iterdir()) == ["latest.json", "server-000001.safetensors"]


def test_a_client_without_slots_is_not_kept(folder):
    store = ClientStore()
    store.put(5, {})
    assert list(store) == []
    assert store.dirty == []


def test_the_store_gives_clients_in_order_and_their_digest_does_not_depend_on_it():
    one, two = ClientStore(), ClientStore()
    for store, order in ((one, (4, 1)), (two, (1, 4))):
        for client in order:
            store.put(client, {"s": number_tree(client)})
    assert list(one) == [1, 4]
    assert one.digest() == two.digest()
    two.put(4, {"s": number_tree(5)})
    assert one.digest() != two.digest()


def test_only_clients_that_changed_are_written_again(folder, monkeypatch):
    written: list[str] = []
    write = Checkpoint._write
    monkeypatch.setattr(
        Checkpoint, "_write", lambda self, name, trees: (written.append(name), write(self, name, trees))[1]
    )
    checkpoint, saved = Checkpoint(folder, "plan"), example(1)
    checkpoint.save(saved)
    assert len(written) == 3  # two clients and the server
    written.clear()
    saved.state.round = 2
    saved.store.put(12, {"a.ck": {"w": torch.zeros(1)}})
    checkpoint.save(saved)
    assert written == ["client-000012-000002.safetensors", "server-000002.safetensors"]
    assert sorted(p.name for p in folder.iterdir()) == [
        "client-000003-000001.safetensors", "client-000012-000002.safetensors", "latest.json",
        "server-000002.safetensors",
    ]  # fmt: skip
    assert same(Checkpoint(folder, "plan").load(), saved)


def test_after_loading_only_new_changes_are_written(folder):
    saved_to(folder)
    again = Checkpoint(folder, "plan")
    loaded = again.load()
    loaded.state.round = 8
    loaded.store.put(3, {"a.seen": number_tree(1)})
    again.save(loaded)
    assert {p.name for p in folder.glob("client-*")} == {
        "client-000003-000008.safetensors", "client-000012-000007.safetensors",
    }  # fmt: skip
    assert same(Checkpoint(folder, "plan").load(), loaded)


def test_clear(folder):
    saved_to(folder)
    checkpoint = Checkpoint(folder, "plan")
    checkpoint.clear()
    assert not folder.exists()
    checkpoint.clear()
    assert checkpoint.load() is None


def test_nothing_is_written_after_clear_that_was_not_asked_for(folder):
    checkpoint, saved = Checkpoint(folder, "plan"), example()
    checkpoint.save(saved)
    checkpoint.clear()
    fresh = Saved(ServerState(1, {"w": torch.ones(1)}, {}, {}), ClientStore())
    checkpoint.save(fresh)
    assert same(Checkpoint(folder, "plan").load(), fresh)


# ---------------------------------------------------------------- refused
def refused(folder, plan: str = "plan") -> str:
    with pytest.raises(CheckpointError) as error:
        Checkpoint(folder, plan).load()
    assert REMEDY in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("pattern", ["server-*", "client-000003-*"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "emptied", "swapped"])
def test_a_damaged_file_is_named(folder, pattern, damage):
    saved_to(folder)
    (path,) = folder.glob(pattern)
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "swapped":
        path.write_bytes(next(p for p in folder.glob("client-000012*")).read_bytes())
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes({"truncated": data[:-3], "flipped": data, "emptied": b""}[damage])
    message = refused(folder)
    assert str(path) in message
    assert ("missing" if damage == "missing" else "damaged") in message


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", "\x00\x01", '{"version": 2, "plan": "plan"}',
        '{"version": 2, "plan": "plan", "round": 1, "server": 5, "clients": {}, "seconds": {}}',
        '{"version": 2, "plan": "plan", "round": 1, "server": ["a", "b"], "clients": [], "seconds": {}}',
    ],
)  # fmt: skip
def test_an_unreadable_pointer_is_named(folder, text):
    saved_to(folder)
    (folder / "latest.json").write_text(text)
    assert str(folder / "latest.json") in refused(folder)


def test_another_plan_is_refused_with_both(folder):
    saved_to(folder, plan="first")
    message = refused(folder, plan="second")
    assert "first" in message
    assert "second" in message


def test_another_version_is_refused(folder):
    saved_to(folder)
    pointer = folder / "latest.json"
    pointer.write_text(json.dumps({**json.loads(pointer.read_text()), "version": 999}))
    assert "999" in refused(folder)


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a checkpoint was unpickled",)


def test_loading_never_unpickles(folder, monkeypatch):
    def forbidden(*_args, **_options):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    saved_to(folder)
    assert same(Checkpoint(folder, "plan").load(), example())


def test_a_pickle_in_place_of_tensors_is_refused_and_not_run(folder):
    """Even where the pointer's checksum fits."""
    saved_to(folder)
    (path,) = folder.glob("server-*")
    path.write_bytes(pickle.dumps(Bomb()))
    pointer = folder / "latest.json"
    meta = json.loads(pointer.read_text())
    meta["server"][1] = module.hashlib.sha256(path.read_bytes()).hexdigest()
    pointer.write_text(json.dumps(meta))
    assert str(path) in refused(folder)


# ---------------------------------------------------------------- crashes
class Crash(BaseException):
    """The process dies here."""


def dies_at(monkeypatch, call: int) -> None:
    """Lets the process die at the given write, after half of its bytes."""
    calls = iter(range(10**6))

    def watched(path, data):
        if next(calls) == call:
            path.with_name(f".{path.name}.tmp").write_bytes(data[: len(data) // 2])
            raise Crash
        return original(path, data)

    from fedexp import rundir

    original = rundir.write_atomically
    monkeypatch.setattr(rundir, "write_atomically", watched)
    monkeypatch.setattr(module, "write_atomically", watched)


@pytest.mark.parametrize("call", range(4))  # two clients, the server, the pointer
def test_a_crash_at_any_write_leaves_the_previous_checkpoint(folder, call):
    before = example(7)
    checkpoint = Checkpoint(folder, "plan")
    checkpoint.save(before)
    kept = Checkpoint(folder, "plan").load()
    after = Saved(example(8).state, before.store, before.best, before.seconds)
    for client in (3, 12):
        after.store.put(client, {"a.ck": {"w": torch.full((1,), -8.0)}})
    with pytest.MonkeyPatch.context() as patch:
        dies_at(patch, call)
        with pytest.raises(Crash):
            checkpoint.save(after)
    assert same(Checkpoint(folder, "plan").load(), kept)
    checkpoint.save(after)  # and the same process may try again: nothing is taken for written that is not
    assert same(Checkpoint(folder, "plan").load(), after)


@pytest.mark.parametrize("call", range(4))
def test_a_crash_while_the_same_round_is_saved_again(folder, call):
    """A run that stops on an error saves the round it began with, which may be on disk already."""
    checkpoint, saved = Checkpoint(folder, "plan"), example(7)
    checkpoint.save(saved)
    for client in saved.store:
        saved.store.put(client, saved.store.get(client))
    with pytest.MonkeyPatch.context() as patch:
        dies_at(patch, call)
        with pytest.raises(Crash):
            checkpoint.save(saved)
    assert same(Checkpoint(folder, "plan").load(), saved)


# ---------------------------------------------------------------- what a run keeps when it stops
@dataclass(frozen=True, kw_only=True)
class Counts(Component):
    """Remembers participations, and has a server slot that may be empty."""

    part: str = "none"

    def private(self):
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

    def cohort(self, round_, size):
        self.round = round_


def is_last(point: str, args, engine) -> bool:
    """Whether others of the same kind have gone well: clients of the round, files of the checkpoint."""
    if point == "_write":
        return args[1].startswith("server")
    return point != "work" or args[0].client == engine.sampler(1)[-1]


POINTS = ("work", "put", "append_rows", "test_server", "append_record", "record", "save", "_write")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    engine = trial({"counts": Counts()}, tmp_path_factory.mktemp("plain"), rounds=3)
    engine.run(card(engine))
    return engine


@pytest.mark.parametrize(("point", "error"), [*((p, KeyboardInterrupt) for p in POINTS), ("save", OSError)])
def test_a_run_that_stops_anywhere_in_a_round_goes_on_to_the_same_end(tmp_path, uninterrupted, point, error):
    """Whatever fails in round 2, and wherever: what is kept is a complete round, with its rows and its record."""
    components = {"counts": Counts()}
    engine = trial(components, tmp_path / "stopped", rounds=3)
    engine.display = Watching()
    owner = {
        "work": engine.executor._worker, "put": ClientStore, "append_rows": engine.rundir,
        "test_server": engine.executor, "append_record": engine.rundir, "record": engine.display,
        "save": engine.checkpoint, "_write": Checkpoint,
    }[point]  # fmt: skip
    original = getattr(owner, point)
    failed: list[int] = []

    def fails_once(*args, **options):
        if engine.display.round == 2 and not failed and is_last(point, args, engine):
            failed.append(engine.saved.state.round)
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
    again = trial(components, tmp_path / "stopped", rounds=3)
    assert again.saved.state.round == 1
    assert [r["round"] for r in again.records] == [1]
    again.run(card(again))
    plain = uninterrupted
    assert again.digests() == plain.digests()
    for file in ("clients.csv", "ledger.csv"):
        assert (again.rundir.path / file).read_bytes() == (plain.rundir.path / file).read_bytes()
    numbers = [[{k: v for k, v in r.items() if k != "seconds"} for r in e.rundir.records()] for e in (again, plain)]
    assert numbers[0] == numbers[1]
    assert (again.ledger.up, again.ledger.down) == (plain.ledger.up, plain.ledger.down)


def test_a_server_slot_that_is_empty_survives(tmp_path):
    """Where everything is private, zeros of the shared shape are no tensors at all."""
    first = trial({"counts": Counts(part="all")}, tmp_path, rounds=3)
    first.rounds = 1
    first.run(card(first))
    assert first.saved.state.slots["counts.c"] == {}
    second = trial({"counts": Counts(part="all")}, tmp_path, rounds=3)
    second.run(card(second))
    assert second.digests() == play({"counts": Counts(part="all")}, rounds=3).digests()


# ---------------------------------------------------------------- the final model
def test_the_final_model_is_plain_safetensors(tmp_path):
    model = {"w": torch.arange(6.0).view(2, 3).T, "n": torch.tensor(3)}
    save_model(tmp_path / "model.safetensors", model, {"run": "abc", "rounds": 5})
    loaded = load_file(tmp_path / "model.safetensors")
    assert digest({"": loaded}) == digest({"": model})
