"""Seven readings of "each client owns k classes": the peculiarity of each, and that none ever moves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedexp.partition.base import digest, split
from fedexp.partition.classes import Classes
from fedexp.partition.dialects import DIALECTS
from fedexp.partition.summary import summarise, warnings
from tests.unit.partition.test_partition import balanced, counts, rng


def dealt(dialect, n_clients, classes, *, per_class=100, n_classes=10, seed=0):
    """The counts [clients, classes] of one partition."""
    targets = balanced(per_class, n_classes)
    partition = Classes(classes=classes, dialect=dialect, test="none")
    return counts(partition(targets, n_clients, n_classes, rng(seed)), targets, n_classes)


# ---------------------------------------------------------------- all of them
FROZEN = {
    "fedgela": "5083b3821afd332c",  # the digest of the default before there were dialects
    "fedmr": "b8cc153ec206c765",
    "fedrs": "8076e86cfb244a81",
    "niid": "9f41ff08c420c4ae",
    "flower": "d3aa9d4b160a3efe",
    "flbench": "8501f886604b59c1",
    "pfllib": "6c4a36a86420d805",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects_stay_what_they_were(dialect):
    partition = Classes(classes=3, dialect=dialect, test="holdout" if DIALECTS[dialect].disjoint else "mirror")
    assert digest(split(partition, balanced(100), balanced(20), 10, 10, rng(7)))[:16] == FROZEN[dialect]


def test_the_default_is_fedgela():
    assert Classes(classes=3) == Classes(classes=3, dialect="fedgela")


def test_promises_are_declared_per_dialect():
    promises = {d: (Classes(classes=2, dialect=d).disjoint, Classes(classes=2, dialect=d).conserved) for d in DIALECTS}
    assert [d for d, (disjoint, _) in promises.items() if not disjoint] == ["fedmr"]
    assert [d for d, (_, conserved) in promises.items() if not conserved] == ["fedrs", "flower", "flbench"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_all_classes_for_everybody_is_one_class_set_in_every_dialect(dialect):
    table = dealt(dialect, 10, 10)
    assert np.all(table > 0)
    assert table.sum() == 1000  # fedmr divides this case by another function, once
    if dialect != "pfllib":
        assert np.all(table == 10)


# ---------------------------------------------------------------- fedmr
def test_fedmr_deals_every_sample_twice():
    targets = balanced(100)
    once = Classes(classes=3, test="none")(targets, 10, 10, rng(1))
    twice = Classes(classes=3, dialect="fedmr", test="none")(targets, 10, 10, rng(1))
    assert np.all(np.bincount(np.concatenate(twice), minlength=1000) == 2)
    assert np.array_equal(counts(twice, targets), 2 * counts(once, targets))
    for single, double in zip(once, twice, strict=True):  # the first pass is fedgela's
        assert set(single) <= set(double)


def test_fedmr_duplicates_a_class_of_one_owner_and_shares_the_others():
    targets = balanced(2000)
    parts = Classes(classes=3, dialect="fedmr", test="none")(targets, 10, 10, rng(1))
    owners = (counts(parts, targets) > 0).sum(axis=0)
    for client in parts:
        for c in np.unique(targets[client]):
            own = client[targets[client] == c]
            fresh = len(np.unique(own)) / 2000
            assert fresh == pytest.approx(1 - (1 - 1 / owners[c]) ** 2, abs=0.05)


def test_fedmr_mirrors_the_official_test_set_once():
    splits = split(Classes(classes=3, dialect="fedmr", test="mirror"), balanced(100), balanced(20), 10, 10, rng())
    assert sorted(np.concatenate([own.test for own in splits])) == list(range(200))


# ---------------------------------------------------------------- fedrs
def test_fedrs_gives_exactly_its_number_of_classes_where_blocks_divide_the_list():
    for n_classes, classes in ((10, 5), (10, 2), (100, 20)):
        assert np.all((dealt("fedrs", 100, classes, per_class=500, n_classes=n_classes) > 0).sum(axis=1) == classes)


def test_fedrs_may_give_one_class_twice_across_a_border():
    sizes = Counter()
    for seed in range(20):
        table = dealt("fedrs", 10, 3, seed=seed)  # 30 of three lists: each class has three shares of 33
        distinct = (table > 0).sum(axis=1)
        assert set(distinct) <= {2, 3}
        assert np.all(table[distinct == 2].max(axis=1, initial=66) == 66)
        assert np.all(table.sum(axis=1) == 99)
        sizes.update(distinct.tolist())
    assert sizes[2] > 0


def test_fedrs_drops_what_does_not_divide():
    assert dealt("fedrs", 10, 3).sum(axis=0).tolist() == [99] * 10


# ---------------------------------------------------------------- niid
def test_niid_gives_client_i_class_i_and_loses_nothing():
    for seed in range(5):
        table = dealt("niid", 25, 2, seed=seed)
        assert all(table[i, i % 10] > 0 for i in range(25))
        assert np.all((table > 0).sum(axis=1) == 2)
        assert np.all(table.sum(axis=0) == 100)


# ---------------------------------------------------------------- flower and flbench
@pytest.mark.parametrize("dialect", ["flower", "flbench"])
def test_a_class_may_have_no_owner_and_its_samples_vanish(dialect):
    targets = balanced(100)
    splits = split(Classes(classes=2, dialect=dialect, test="none"), targets, targets[:0], 4, 10, rng())
    summary = summarise(splits, targets, 10)
    orphans = int((summary.owners == 0).sum())
    assert orphans >= 2  # four clients with two classes own eight at most
    assert summary.left_out == 100 * orphans
    assert any(f"{orphans} of 10 classes have no owner" in warning for warning in warnings(summary))


def test_flower_and_flbench_draw_the_same_owners_and_round_differently():
    flower, flbench = (dealt(d, 7, 3, seed=3) for d in ("flower", "flbench"))
    assert np.array_equal(flower > 0, flbench > 0)
    for c in np.flatnonzero(flower.any(axis=0)):
        owned = flbench[flbench[:, c] > 0, c].tolist()
        share = 100 // len(owned)
        assert owned == [share] * (len(owned) - 1) + [100 - share * (len(owned) - 1)]
        assert np.ptp(flower[flower[:, c] > 0, c]) <= 1


def test_flbench_drops_a_remainder_as_large_as_a_share():
    table = dealt("flbench", 60, 10)  # 60 owners of 100 samples: shares of 1, and 40 are left
    assert np.all(table == 1)


# ---------------------------------------------------------------- pfllib
def test_pfllib_makes_5_groups_of_4_identical_clients():
    targets = balanced(600)
    splits = split(Classes(classes=2, dialect="pfllib", test="none"), targets, targets[:0], 20, 10, rng())
    groups = summarise(splits, targets, 10).groups
    assert groups == {(2 * g, 2 * g + 1): tuple(range(4 * g, 4 * g + 4)) for g in range(5)}


def test_pfllib_leaves_most_of_a_class_to_its_last_owner():
    table = dealt("pfllib", 20, 2, per_class=4000)  # an equal share is 1000
    for column in table.T:
        *others, last = column[column > 0].tolist()
        assert all(100 <= n < 1000 for n in others)
        assert last > 1000
        assert column.sum() == 4000


def test_pfllib_may_give_the_last_clients_fewer_classes():
    assert (dealt("pfllib", 5, 2, n_classes=3) > 0).sum(axis=1).tolist() == [2, 2, 2, 2, 1]
