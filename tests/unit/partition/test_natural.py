"""Clients that are writers, roles or centres: which owners are chosen, and what is said when there are too few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedexp.errors import ConfigError, PartitionError
from fedexp.partition.base import digest, split
from fedexp.partition.natural import Natural
from tests.unit.partition.test_partition import rng

SIZES = {3: 40, 5: 10, 11: 30, 12: 1, 20: 30}  # owner: training samples
OWNERS = rng(0).permutation(np.repeat(list(SIZES), list(SIZES.values())))
TARGETS = rng(1).integers(0, 4, len(OWNERS))
OWNERS_TEST = np.array([3, 3, 5, 11, 12, 12, 20])
TARGETS_TEST = np.array([0, 1, 2, 3, 0, 1, 2])


def natural(n_clients, *, seed=0, owners=OWNERS, owners_test=OWNERS_TEST, **settings):
    return split(
        Natural(**settings), TARGETS, TARGETS_TEST, n_clients, 4, rng(seed), owners=owners, owners_test=owners_test
    )


def who(splits):
    """The owner behind each client."""
    found = [
        np.unique(OWNERS[np.concatenate([s.train, s.test] if s.test_from == "train" else [s.train])]) for s in splits
    ]
    assert all(len(owners) == 1 for owners in found)
    return [int(owners[0]) for owners in found]


def test_every_owner_becomes_a_client_with_its_own_samples_and_tests():
    splits = natural(5, min_samples=1)
    assert who(splits) == list(SIZES)
    assert [len(own.train) for own in splits] == list(SIZES.values())
    assert [own.test.tolist() for own in splits] == [[0, 1], [2], [3], [4, 5], [6]]
    assert {own.test_from for own in splits} == {"test"}


@pytest.mark.parametrize(("n_clients", "chosen"), [(1, [3]), (2, [3, 11]), (3, [3, 11, 20]), (4, [3, 5, 11, 20])])
def test_the_largest_are_chosen_and_ties_go_to_the_lower_number(n_clients, chosen):
    assert who(natural(n_clients)) == chosen
    assert who(natural(n_clients, seed=1)) == chosen


def test_a_random_choice_follows_the_seed_and_the_filter():
    choices = [tuple(who(natural(2, choose="random", seed=seed))) for seed in range(30)]
    assert choices == [tuple(who(natural(2, choose="random", seed=seed))) for seed in range(30)]
    assert len(set(choices)) == 6  # all pairs of the four owners with two samples or more
    assert 12 not in {owner for pair in choices for owner in pair}


def test_the_other_rules_for_tests_work_too():
    held = natural(4, test="holdout", owners_test=None)
    assert [(len(own.train), len(own.test)) for own in held] == [(32, 8), (8, 2), (24, 6), (24, 6)]
    assert all(len(own.test) == 0 for own in natural(4, test="none", owners_test=None))
    assert {own.test_from for own in natural(2, test="mirror", owners_test=None)} == {"test"}


def test_it_stays_what_it_was():
    assert digest(natural(4))[:16] == "075485ace04893f3"
    assert digest(natural(2, choose="random", test="holdout", seed=7))[:16] == "6fc4220753eb6d25"


@settings(max_examples=30)
@given(owners=st.lists(st.integers(-3, 9), min_size=4, max_size=80), seed=st.integers(0, 99), data=st.data())
def test_clients_are_whole_owners_and_disjoint(owners, seed, data):
    names, sizes = np.unique(owners, return_counts=True)
    n_clients = data.draw(st.integers(1, len(names)))
    choose = data.draw(st.sampled_from(["largest", "random"]))
    partition = Natural(choose=choose, min_samples=1, test="none")
    targets = np.zeros(len(owners), dtype=np.int64)
    splits = split(partition, targets, targets[:0], n_clients, 1, rng(seed), owners=np.array(owners))
    dealt = np.concatenate([own.train for own in splits])
    assert len(splits) == n_clients
    assert len(np.unique(dealt)) == len(dealt)
    for own in splits:
        (owner,) = np.unique(np.array(owners)[own.train])
        assert len(own.train) == sizes[names == owner][0]
    if choose == "largest":
        assert sorted(len(own.train) for own in splits) == sorted(sizes)[-n_clients:]


def test_a_run_hands_its_data_sets_owners_over(monkeypatch):
    import torch

    from fedexp.build import build
    from fedexp.config.compose import composed
    from fedexp.data.digits import Digits

    plain = Digits.load

    def load(source):
        loaded = plain(source)
        by = {"owners": torch.arange(len(loaded.train)) % 7, "test_owners": torch.arange(len(loaded.test)) % 7}
        return replace(loaded, **by)

    monkeypatch.setattr(Digits, "load", load)
    made = build(composed(["algo=fedavg", "partition=natural", "cohort.clients=7"]))
    for client, own in enumerate(made.splits):
        assert set(own.train % 7) == set(own.test % 7) == {client}
    with pytest.raises(ConfigError, match=r"cohort.clients=8, but of 7 owners 7 .* between 1 and 7\."):
        build(composed(["algo=fedavg", "partition=natural", "cohort.clients=8"]))
    pooled = ["algo=fedavg", "partition=natural", "cohort.clients=7", "pool=all", "partition.test=holdout"]
    assert sum(len(own.train) + len(own.test) for own in build(composed(pooled)).splits) == 1797


@pytest.mark.parametrize(
    ("n_clients", "settings", "message"),
    [
        (5, {}, r"cohort.clients=5, but of 5 owners 4 have at least 2 .*min_samples=2\) and a test sample; .* has 40"),
        (4, {"min_samples": 20}, r"of 5 owners 3 have at least 20 .* between 1 and 3, or a smaller partition.min_sa"),
        (6, {"min_samples": 1}, r"cohort.clients=6, but of 5 owners 5 .* Use cohort.clients between 1 and 5\.$"),
        (0, {}, "cohort.clients=0"),
        (5, {"min_samples": 1, "owners_test": np.repeat(3, 7)}, "of 5 owners 1 have at least 1 .* and a test sample"),
        (5, {"min_samples": 1, "test": "holdout"}, "of 5 owners 4 have at least 2"),
        (2, {"owners": None}, "who made each training sample.* a data set that does, or another partition"),
        (2, {"owners_test": None}, r"who made each test sample.* Use partition.test=holdout\."),
        (2, {"owners": OWNERS[:100]}, "owners of 100 training samples, but there are 111.*use pool=train"),
        (2, {"choose": "smallest"}, "partition.choose='smallest' is none of largest, random"),
        (2, {"test": "mine"}, "partition.test='mine' is none of own, holdout, mirror, none"),
    ],
)
def test_an_impossible_request_says_so_with_numbers(n_clients, settings, message):
    with pytest.raises(PartitionError, match=message):
        natural(n_clients, **settings)
