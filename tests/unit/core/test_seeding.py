"""Randomness as a function of its address."""

from __future__ import annotations

import itertools

import pytest
import torch

from fedexp.core.seeding import derive, numpy_rng, seeded, torch_rng
from fedexp.testing import play, tiny_data

# These values are frozen: a change would change every result ever published with this package.
FROZEN = {
    (0,): 3581690635855307741,
    (0, "batches", 3, 1, "local"): 8037728626335807557,
    (7, "cohort", 0): 3357066075606155439,
}


@pytest.mark.parametrize("path", FROZEN)
def test_seeds_are_frozen(path):
    assert derive(*path) == FROZEN[path]


def test_streams_are_frozen():
    assert numpy_rng(0, "x").integers(0, 10**6, 3).tolist() == [171173, 195111, 388809]
    assert torch.randint(0, 10**6, (3,), generator=torch_rng(0, "x")).tolist() == [738499, 990428, 395355]


def test_distinct_paths_are_distinct():
    seeds, rounds, clients, purposes = (0, 1, 11), range(12), range(12), ("batches", "fit", "1", "")
    paths = [*itertools.product(seeds, purposes, rounds, clients), *itertools.product(seeds, purposes)]
    assert len({derive(*p) for p in paths}) == len(paths)


@pytest.mark.parametrize(
    ("one", "other"),
    [((0, 1, 23), (0, 12, 3)), ((0, "1"), (0, 1)), ((0, "a", "b"), (0, "ab"))],
)
def test_paths_that_look_alike(one, other):
    assert derive(*one) != derive(*other)


def test_a_seed_is_a_positive_63_bit_number():
    for n in range(200):
        assert 0 <= derive(n, "x") < 2**63


def test_adding_a_client_changes_no_other_stream():
    """The batches of client 1 do not know how many clients there are, or who was worked on before."""
    data = tiny_data()
    few = [derive(0, "batches", 0, client, "local") for client in range(3)]
    many = [derive(0, "batches", 0, client, "local") for client in range(5)]
    assert many[:3] == few
    alone = [y.tolist() for _, y in data.batches(1, size=4, begin=0, end=6, seed=many[1])]
    for client, seed in enumerate(many):
        list(data.batches(client, size=4, begin=0, end=6, seed=seed))
    assert [y.tolist() for _, y in data.batches(1, size=4, begin=0, end=6, seed=many[1])] == alone


def test_seeded_repeats_and_restores_the_global_generator():
    torch.random.manual_seed(5)
    torch.rand(3)
    before = torch.random.get_rng_state()
    with seeded(0, "block"):
        inside = torch.rand(4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(100)
    with seeded(0, "block"):
        assert torch.equal(torch.rand(4), inside)
    with seeded(0, "other"):
        assert not torch.equal(torch.rand(4), inside)


def test_seeded_restores_after_an_error():
    before = torch.random.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded(0, "block"):
        torch.rand(1) / (1 // 0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_run_neither_uses_nor_moves_the_global_generator():
    torch.random.manual_seed(1)
    before = torch.random.get_rng_state()
    one = play({}, rounds=1).digests()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.random.manual_seed(2)
    assert play({}, rounds=1).digests() == one
