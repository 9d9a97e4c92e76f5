"""The numbers that the papers and the public codes give for their partitions, and what must never move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedexp.errors import PartitionError
from fedexp.partition.base import ClientSplit, digest, split
from fedexp.partition.classes import Classes
from fedexp.partition.dirichlet import Dirichlet
from fedexp.partition.dominant import Dominant
from fedexp.partition.explicit import Explicit
from fedexp.partition.iid import Iid
from fedexp.partition.incomplete import Incomplete
from fedexp.partition.quantity import Quantity
from fedexp.partition.shards import Shards
from tests.unit.partition.test_partition import balanced, counts, rng

HALVES = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))


def test_iid_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in Iid()(balanced(101), 7, 10, rng())]
    assert max(sizes) - min(sizes) <= 1


def test_incomplete_draws_two_to_all_classes_and_covers_them():
    targets = balanced(1000)
    owned = [(counts(Incomplete()(targets, 100, 10, rng(s)), targets) > 0) for s in range(10)]
    numbers = np.concatenate([own.sum(axis=1) for own in owned])
    assert all(own.any(axis=0).all() for own in owned)
    assert (numbers.min(), numbers.max()) == (2, 10)
    assert abs(numbers.mean() - (10 + 2) / 2) < 0.3
    assert np.all(np.abs(np.bincount(numbers)[2:] / 1000 - 1 / 9) < 0.04)


def test_incomplete_divides_a_class_equally_over_its_owners():
    targets = balanced(1000)
    table = counts(Incomplete()(targets, 100, 10, rng()), targets)
    for column in table.T:
        assert np.ptp(column[column > 0]) <= 1


def test_incomplete_holds_to_its_bounds():
    targets = balanced(100)
    numbers = (counts(Incomplete(min_classes=3, max_classes=4)(targets, 20, 10, rng()), targets) > 0).sum(axis=1)
    assert set(numbers.tolist()) == {3, 4}


@pytest.mark.parametrize(("n_classes", "per_client"), [(10, 5), (10, 2), (100, 20)])
def test_block_shards_are_fedrs_table_2(n_classes, per_client):
    targets = balanced(50_000 // n_classes, n_classes)
    table = counts(Shards(per_client=per_client)(targets, 100, n_classes, rng()), targets, n_classes)
    assert np.all((table > 0).sum(axis=1) == per_client)
    assert np.all(table.sum(axis=1) == 500)
    assert np.all(table[table > 0] == 500 // per_client)


@pytest.mark.parametrize(("n_classes", "per_client", "distinct"), [(10, 5, 4.11), (10, 2, 1.91), (100, 20, 18.29)])
def test_random_shards_have_fewer_classes(n_classes, per_client, distinct):
    targets, partition = balanced(50_000 // n_classes, n_classes), Shards(per_client=per_client, deal="random")
    tables = [counts(partition(targets, 100, n_classes, rng(s)), targets, n_classes) for s in range(5)]
    assert np.mean([(table > 0).sum(axis=1).mean() for table in tables]) == pytest.approx(distinct, rel=0.02)
    assert all(np.all(table.sum(axis=1) == 500) for table in tables)


@settings(max_examples=40)
@given(n_classes=st.integers(2, 12), n_clients=st.integers(2, 12), data=st.data())
def test_block_shards_are_of_different_classes_even_when_they_do_not_divide(n_classes, n_clients, data):
    per_client = data.draw(st.integers(-(-n_classes // n_clients), n_classes))
    targets = balanced(40, n_classes)
    owns = counts(Shards(per_client=per_client)(targets, n_clients, n_classes, rng()), targets, n_classes) > 0
    assert np.all(owns.sum(axis=1) == per_client)
    assert np.ptp(owns.sum(axis=0)) <= 1


@pytest.mark.parametrize(("n_clients", "classes", "n_classes"), [(5, 2, 10), (10, 10, 100)])
def test_p5c2_and_p10c10_are_disjoint_and_in_order(n_clients, classes, n_classes):
    targets = balanced(50, n_classes)
    table = counts(Classes(classes=classes)(targets, n_clients, n_classes, rng()), targets, n_classes)
    blocks = np.arange(n_classes).reshape(n_clients, classes)
    assert [np.flatnonzero(row).tolist() for row in table] == blocks.tolist()


def test_p10c3_deals_in_order_and_then_fills_up():
    targets = balanced(100)
    table = counts(Classes(classes=3)(targets, 10, 10, rng()), targets)
    owned = [np.flatnonzero(row).tolist() for row in table]
    assert owned[:3] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert 9 in owned[3]
    assert all(len(own) == 3 for own in owned)
    assert table.sum() == 1000


def test_all_classes_is_iid_with_equal_shares():
    targets = balanced(100)
    assert np.all(counts(Classes(classes=10)(targets, 10, 10, rng()), targets) == 10)


@pytest.mark.parametrize("by", ["client", "class"])
def test_dirichlet_turns_iid_as_beta_grows_and_skewed_as_it_falls(by):
    targets = balanced(1000)
    even, skewed = (
        counts(Dirichlet(beta=beta, by=by, min_size=2)(targets, 10, 10, rng()), targets) for beta in (1e5, 0.1)
    )
    assert np.all(np.abs(even - 100) <= 5)
    assert (skewed > 500).sum() >= 3


def test_dirichlet_by_class_stops_filling_a_client_at_the_mean_size():
    targets = balanced(1000)
    for seed in range(5):
        table = counts(Dirichlet(beta=0.3, by="class", min_size=1)(targets, 10, 10, rng(seed)), targets)
        before_last = np.cumsum(table, axis=1) - table
        assert np.all(table[before_last >= 1000] == 0)


def test_dirichlet_by_client_has_flatter_sizes():
    targets, spread = balanced(1000), {}
    for by in ("client", "class"):
        sizes = [[len(p) for p in Dirichlet(beta=0.5, by=by)(targets, 20, 10, rng(s))] for s in range(10)]
        spread[by] = np.std(sizes)
    assert spread["client"] < spread["class"]


def test_dominant_gives_172_and_12():
    targets = balanced(6000)
    table = counts(Dominant(iid=0.2, samples_per_client=600)(targets, 20, 10, rng()), targets)
    groups = [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]
    expected = np.full((20, 10), 12)
    for client in range(20):
        expected[client, groups[client // 4]] = 172
    assert np.array_equal(table, expected)
    splits = split(Dominant(iid=0.2, samples_per_client=600), targets, targets[:0], 20, 10, rng())
    assert {(len(s.train), len(s.test)) for s in splits} == {(480, 120)}


def test_dominant_leaves_remainders_to_the_last_classes():
    table = Dominant(iid=0.2, samples_per_client=125).table(np.full(10, 9999), 5, rng())
    assert table[0].tolist() == [35, 35, 36, 2, 2, 3, 3, 3, 3, 3]
    assert table.sum() == 5 * 125


def test_dominant_can_take_as_many_as_fit():
    totals = np.full(10, 1000)
    most = Dominant(iid=0.2).table(totals, 20, rng()).sum(axis=1)
    assert len(set(most.tolist())) == 1
    with pytest.raises(PartitionError, match=f"partition.samples_per_client={most[0]} fits"):
        Dominant(iid=0.2, samples_per_client=int(most[0]) + 1).table(totals, 20, rng())


def test_explicit_gives_exactly_what_is_listed():
    targets = balanced(100)
    assert counts(Explicit(classes=HALVES)(targets, 2, 10, rng()), targets).tolist() == [
        [100] * 5 + [0] * 5,
        [0] * 5 + [100] * 5,
    ]
    shared = counts(Explicit(classes=[[0, 1], [1]])(targets, 2, 10, rng()), targets)
    assert shared[:, :3].tolist() == [[100, 50, 0], [0, 50, 0]]


@pytest.mark.parametrize("law", ["dirichlet", "power"])
def test_quantity_gives_unequal_sizes_and_everybodys_labels(law):
    targets = balanced(5000)
    table = counts(Quantity(law=law, min_size=200)(targets, 20, 10, rng()), targets)
    sizes = table.sum(axis=1)
    assert sizes.min() >= 200
    assert sizes.max() > 5 * sizes.min()
    assert np.all(np.abs(table / sizes[:, None] - 0.1) < 0.1)


def test_quantity_by_the_power_law_has_its_sizes_in_some_order():
    sizes = Quantity(law="power", exponent=1.0, min_size=0).table(np.full(2, 550), 4, rng()).sum(axis=1)
    assert sorted(sizes.tolist(), reverse=True) == [528, 264, 176, 132]
    assert Quantity(law="power", exponent=0.0).table(np.full(2, 550), 4, rng()).sum(axis=1).tolist() == [275] * 4


def test_quantity_needs_no_second_draw_however_unequal():
    sizes = Quantity(beta=1e-3, min_size=10).table(np.full(10, 100), 50, rng()).sum(axis=1)
    assert (sizes.min(), sizes.sum()) == (10, 1000)


# ---------------------------------------------------------------- clients' own tests
@pytest.mark.parametrize(("n", "holdout", "n_test"), [(500, 0.2, 100), (7, 0.2, 1), (3, 0.2, 1), (100, 0.29, 29)])
def test_holdout_takes_its_share_but_at_least_one(n, holdout, n_test):
    (own,) = split(Iid(holdout=holdout), np.zeros(n, dtype=np.int64), np.empty(0, dtype=np.int64), 1, 1, rng())
    assert (len(own.train), len(own.test), own.test_from) == (n - n_test, n_test, "train")
    assert sorted([*own.train, *own.test]) == list(range(n))


def test_mirror_gives_each_client_its_own_classes_in_its_proportions():
    train, test = balanced(600), balanced(100)
    splits = split(Classes(classes=3, test="mirror"), train, test, 10, 10, rng())
    owned, tested = counts([s.train for s in splits], train), counts([s.test for s in splits], test)
    assert {s.test_from for s in splits} == {"test"}
    assert owned.sum() == len(train)
    assert np.array_equal(owned > 0, tested > 0)
    assert np.all(np.abs(tested - owned / 6) < 1)
    assert np.array_equal(np.sort(np.concatenate([s.test for s in splits])), np.arange(len(test)))


def test_none_leaves_all_samples_to_training():
    splits = split(Iid(test="none"), balanced(10), balanced(1), 100, 10, rng())
    assert all(len(s.train) == 1 and len(s.test) == 0 for s in splits)


def test_the_digest_sees_ids_lengths_and_where_tests_come_from():
    a, b, none = np.array([1, 2]), np.array([3]), np.empty(0, dtype=np.int64)
    variants = [
        [ClientSplit(a, b, "train")],
        [ClientSplit(a, b, "test")],
        [ClientSplit(np.array([1, 2, 3]), none, "train")],
        [ClientSplit(b, a, "train")],
        [ClientSplit(a, none, "train"), ClientSplit(b, none, "train")],
    ]
    assert len({digest(v) for v in variants}) == len(variants)
    assert digest(variants[0]) == digest([ClientSplit(a.astype(">i8"), b.astype(np.int32), "train")])


FROZEN = {
    "blocks": (Shards(per_client=5), "424b7b460b5b790c"),
    "classes": (Classes(classes=3), "5083b3821afd332c"),
    "classes-mirror": (Classes(classes=3, test="mirror"), "38a432c08cdce79b"),
    "dirichlet": (Dirichlet(beta=0.5), "320ab7dcfb53c84b"),
    "dirichlet-class": (Dirichlet(beta=0.5, by="class"), "381167c61ea968ce"),
    "dominant": (Dominant(iid=0.2), "6efe91585dbc380d"),
    "explicit": (Explicit(classes=[*HALVES] * 5), "a7545413d09b5c6c"),
    "iid": (Iid(), "8d061b0634ffed74"),
    "incomplete": (Incomplete(), "23aea945fa70e48e"),
    "quantity": (Quantity(), "5113674166a31615"),
    "quantity-power": (Quantity(law="power"), "376ffce2edf8c92f"),
    "random": (Shards(per_client=5, deal="random"), "957de0ec3eec0a49"),
}


@pytest.mark.parametrize("name", FROZEN)
def test_partitions_stay_what_they_were(name):
    partition, frozen = FROZEN[name]
    assert digest(split(partition, balanced(100), balanced(20), 10, 10, rng(7)))[:16] == frozen
