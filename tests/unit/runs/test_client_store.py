"""The clients' slots: the same store to the rest of the program, wherever they are kept."""

from __future__ import annotations

import json
import weakref

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import fedexp
from fedexp.core.state import digest
from fedexp.runs.client_store import ClientStore
from fedexp.runs.tensor_files import TensorFiles

SIZE = 40  # bytes of a client's slots below: nine numbers of four bytes, and one more


def slots(value: float) -> dict[str, dict[str, torch.Tensor]]:
    one = torch.tensor(float(value))
    return {"b.model": {"w": one.repeat(3, 3), "none": torch.empty(0)}, "a.seen": {"n": one}}


def same(one, two) -> bool:
    return list(one) == list(two) and digest(one) == digest(two)


@pytest.fixture(params=[None, 0, SIZE, 3 * SIZE], ids=["memory", "disk", "one", "three"])
def store(request, tmp_path):
    return ClientStore(TensorFiles(tmp_path), hold=request.param)


def test_what_was_put_is_there(store):
    for client in (4, 1, 10, 2):
        store.put(client, slots(client))
    assert list(store) == [1, 2, 4, 10]
    for client in store:
        assert same(store.get(client), slots(client))
    assert store.get(3) == {}


def test_a_client_without_slots_is_not_kept(store):
    store.put(5, {})
    store.commit()
    assert list(store) == []


def test_the_digest_is_that_of_all_slots_together(store):
    """And thus does not depend on the order in which they came; 10 comes before 2, as text does."""
    for client in (10, 2, 1, 100):
        store.put(client, slots(client))
        store.commit()
    store.put(2, slots(7.5))
    values = {1: 1, 2: 7.5, 10: 10, 100: 100}
    assert store.digest() == digest({f"{c}/{name}": tree for c, v in values.items() for name, tree in slots(v).items()})
    store.rollback()
    assert store.digest() != digest({f"{c}/{n}": t for c, v in values.items() for n, t in slots(v).items()})


def test_a_rollback_leaves_no_trace(store, tmp_path):
    for client in (1, 2):
        store.put(client, slots(client))
    store.commit()
    before, files = store.digest(), sorted(tmp_path.iterdir())
    for value in (7, 8):
        for client in (2, 3):
            store.put(client, slots(value))
            assert same(store.get(client), slots(value))
    store.rollback()
    assert store.digest() == before
    assert list(store) == [1, 2]
    assert set(tmp_path.iterdir()) <= {*files, *(tmp_path / f"client-{c:06d}-000001.safetensors" for c in (1, 2))}


def test_old_slots_leave_the_disk_and_the_memory(store, tmp_path):
    for value in range(5):
        private = slots(value)
        last = weakref.ref(private["b.model"]["w"])
        store.put(1, private)
        store.commit()
        del private
    store.put(1, slots(9))
    store.commit()
    assert last() is None
    assert len(list(tmp_path.iterdir())) <= 1
    assert len(store._files) <= 1


@pytest.mark.parametrize("hold", [0, SIZE, 5 * SIZE])
def test_no_more_is_held_than_allowed(tmp_path, hold):
    store = ClientStore(TensorFiles(tmp_path), hold=hold)
    alive: list[weakref.ref[torch.Tensor]] = []
    for turn in range(3):
        for client in range(20):
            store.get(client)
            private = slots(client + turn)
            alive.append(weakref.ref(private["b.model"]["w"]))
            store.put(client, private)
            del private
            assert store._bytes <= hold
        store.commit()
    assert sum(ref() is not None for ref in alive) <= hold / SIZE
    assert store._bytes == SIZE * len(store._held)


def test_what_was_used_last_stays_in_memory(tmp_path):
    store = ClientStore(TensorFiles(tmp_path), hold=2 * SIZE)
    store.put(1, slots(1))
    store.put(2, slots(2))
    store.get(1)
    store.put(3, slots(3))
    store.commit()
    assert sorted(name.split("-")[1] for name in store._held) == ["000001", "000003"]
    assert [p.name for p in tmp_path.iterdir()] == ["client-000002-000001.safetensors"]  # the only one without memory


def test_the_digest_does_not_fill_the_memory(tmp_path):
    store = ClientStore(TensorFiles(tmp_path), hold=SIZE)
    for client in range(5):
        store.put(client, slots(client))
    held = list(store._held)
    store.digest()
    assert list(store._held) == held


class Alike(RuleBasedStateMachine):
    """Stores with different memories, and a plain dictionary: whatever one does, none can be told from another."""

    folder = None

    def __init__(self) -> None:
        super().__init__()
        folder = self.folder.mktemp("store")
        self.stores = [ClientStore(TensorFiles(folder / str(hold)), hold=hold) for hold in (None, 0, SIZE, 2 * SIZE)]
        self.kept: dict[int, float] = {}
        self.now: dict[int, float] = {}

    @rule(client=st.integers(0, 3), value=st.integers(0, 99))
    def put(self, client, value):
        for store in self.stores:
            store.put(client, slots(value))
        self.now[client] = value

    @rule()
    def commit(self):
        for store in self.stores:
            store.commit()
        self.kept = dict(self.now)

    @rule()
    def rollback(self):
        for store in self.stores:
            store.rollback()
        self.now = dict(self.kept)

    @rule()
    def save_and_load(self):
        """As a checkpoint does."""
        self.commit()
        again = []
        for store in self.stores:
            files = store.write()
            again.append(ClientStore(store._folder, hold=store._limit, files=files, version=store.version))
            again[-1].load()
        self.stores = again

    @rule(client=st.integers(0, 3))
    def get(self, client):
        expected = slots(self.now[client]) if client in self.now else {}
        for store in self.stores:
            assert same(store.get(client), expected)

    @invariant()
    def equal(self):
        expected = {f"{c}/{n}": t for c, value in self.now.items() for n, t in slots(value).items()}
        for store in self.stores:
            assert list(store) == sorted(self.now)
            assert store.digest() == digest(expected)


def test_all_stores_are_alike(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(Alike, "folder", tmp_path_factory)
    run_state_machine_as_test(Alike)


@given(st.lists(st.integers(0, 10**5), unique=True, max_size=30))
def test_clients_are_digested_in_the_order_of_their_slots_names(clients):
    """The order of ``digest`` over all slots at once, which is that of text."""
    keys = [f"{c}/{slot}" for c in sorted(clients, key=lambda c: f"{c}/") for slot in ("a.x", "b")]
    assert keys == sorted(keys)


# ---------------------------------------------------------------- as a setting
def test_a_run_is_the_same_with_both_and_has_one_identity(configured, tmp_path, monkeypatch):
    monkeypatch.setattr("fedexp.build.SLOT_MEMORY_BYTES", 1000)  # less than one client's slots
    results = {}
    for kind in ("memory", "disk"):
        config = configured("algo=scamap", "rounds=4", "every.checkpoint=2", "keep=all")
        results[kind] = fedexp.run({**config, "out": str(tmp_path / kind), "store": kind})
    memory, disk = results.values()
    assert memory.path.name == disk.path.name
    assert memory.summary["digests"] == disk.summary["digests"]
    assert (memory.path / "model.safetensors").read_bytes() == (disk.path / "model.safetensors").read_bytes()
    pointers = [json.loads((r.path / "checkpoint" / "latest.json").read_text()) for r in results.values()]
    assert pointers[0]["clients"] == pointers[1]["clients"]
