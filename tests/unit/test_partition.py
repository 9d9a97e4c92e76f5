"""Laws of the partitions, the papers' numbers, and what is said when a request is impossible."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import get_class
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fedexp.errors import PartitionError
from fedexp.partition.base import ClientSplit, Partition, digest, split
from fedexp.partition.classes import Classes
from fedexp.partition.dirichlet import Dirichlet
from fedexp.partition.dominant import Dominant
from fedexp.partition.explicit import Explicit
from fedexp.partition.iid import Iid
from fedexp.partition.incomplete import Incomplete
from fedexp.partition.shards import Shards
from fedexp.partition.summary import summarise, warnings
from fedexp.partition.table import apportion, deal, equal

CONF = Path(__file__).parents[2] / "conf" / "partition"
GROUPS = ((0, 1), (1, 2), (2, 0))
HALVES = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(per_class: int, n_classes: int = 10) -> np.ndarray:
    return np.arange(per_class * n_classes) % n_classes


def counts(parts, targets, n_classes: int = 10) -> np.ndarray:
    return np.stack([np.bincount(targets[part], minlength=n_classes) for part in parts])


KEEPS_ALL = {
    "iid": lambda k, c: Iid(),
    "incomplete": lambda k, c: Incomplete(min_classes=min(2, c)),
    "blocks": lambda k, c: Shards(per_client=max(2, -(-c // k)) if c > 1 else 1),
    "random": lambda k, c: Shards(per_client=max(2, -(-c // k)), deal="random"),
    "classes": lambda k, c: Classes(classes=max(2, -(-c // k))),
    "dirichlet": lambda k, c: Dirichlet(beta=1.0, min_size=2),
    "dirichlet-class": lambda k, c: Dirichlet(beta=1.0, by="class", min_size=2),
}
ALL = KEEPS_ALL | {
    "dominant": lambda k, c: Dominant(iid=0.4, groups=GROUPS[: 1 if c < 3 else 3]),
    "explicit": lambda k, c: Explicit(classes=[(i % c, (i + 1) % c) for i in range(k)]),
}


@st.composite
def requests(draw):
    n_classes = draw(st.integers(2, 7))
    totals = draw(st.lists(st.integers(30, 60), min_size=n_classes, max_size=n_classes))
    targets = rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(n_classes), totals))
    return targets, draw(st.integers(2, 9)), n_classes, draw(st.integers(0, 2**32))


# ---------------------------------------------------------------- laws
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, deadline=None)
@given(request=requests())
def test_every_sample_has_at_most_one_owner_and_the_seed_decides(name, request):
    targets, n_clients, n_classes, seed = request
    before = targets.copy()
    partition = ALL[name](n_clients, n_classes)
    parts = partition(targets, n_clients, n_classes, rng(seed))
    again = partition(targets, n_clients, n_classes, rng(seed))
    given_away = np.concatenate(parts)
    assert len(parts) == n_clients
    assert all(part.dtype == np.int64 and len(part) >= 2 for part in parts)
    assert len(np.unique(given_away)) == len(given_away)
    assert 0 <= given_away.min() <= given_away.max() < len(targets)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert np.array_equal(targets, before)
    if name in KEEPS_ALL:
        assert len(given_away) == len(targets)


@pytest.mark.parametrize("name", ALL)
def test_another_seed_gives_other_samples(name):
    partition, targets = ALL[name](10, 10), balanced(100)
    one, two = (np.concatenate(partition(targets, 10, 10, rng(seed))) for seed in (0, 1))
    assert not np.array_equal(one, two)


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(0, 500),
    weights=st.lists(st.floats(0, 10), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-3),
)
def test_apportioning_loses_nothing_and_stays_within_one_of_the_quota(total, weights):
    w = np.array(weights)
    parts = apportion(total, w)
    assert parts.sum() == total
    assert np.all(np.abs(parts - total * w / w.sum()) < 1 + 1e-6)


@settings(max_examples=60, deadline=None)
@given(total=st.integers(20, 90), shares=st.lists(st.integers(0, 3), min_size=1, max_size=6).filter(any))
def test_equal_shares_are_those_of_array_split(total, shares):
    pieces = [len(piece) for piece in np.array_split(np.arange(total), sum(shares))]
    edges = np.cumsum([0, *shares])
    expected = [sum(pieces[a:b]) for a, b in pairwise(edges)]
    assert equal(np.array(shares)[:, None], np.array([total]))[:, 0].tolist() == expected


def test_dealing_more_than_there_is_is_refused():
    with pytest.raises(PartitionError, match="4 samples of class 1 were given away, but there are 3"):
        deal(np.array([0, 1, 1, 1]), np.array([[1, 2], [0, 2]]), rng())


# ---------------------------------------------------------------- the papers' numbers
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


@settings(max_examples=60, deadline=None)
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
    "random": (Shards(per_client=5, deal="random"), "957de0ec3eec0a49"),
}


@pytest.mark.parametrize("name", FROZEN)
def test_partitions_stay_what_they_were(name):
    partition, frozen = FROZEN[name]
    assert digest(split(partition, balanced(100), balanced(20), 10, 10, rng(7)))[:16] == frozen


# ---------------------------------------------------------------- impossible requests
@pytest.mark.parametrize(
    ("partition", "n_clients", "message"),
    [
        (Iid(), 501, "1000 samples cannot give 501 clients 2 each. Use between 1 and 500"),
        (Iid(test="none"), 1001, "1000 samples cannot give 1001 clients 1 each"),
        (Iid(), 0, "cannot give 0 clients"),
        (Incomplete(min_classes=11), 10, r"min_classes=11 and partition.max_classes=10 .* between 1 and 10"),
        (Incomplete(max_classes=2), 4, "4 clients with at most 2 classes own at most 8 of 10"),
        (Incomplete(min_classes=1, max_classes=1), 10, "in 1000 draws of 1 to 1 classes for 10 clients"),
        (Incomplete(min_classes=10), 101, "class 0 has 100 samples for 101 owners"),
        (Shards(per_client=11), 10, "per_client=11 has to lie between 1 and 10"),
        (Shards(per_client=2), 4, "4 clients with 2 shards hold 8 shards, too few for 10"),
        (Shards(per_client=2, deal="blcks"), 9, "partition.deal='blcks' is none of blocks, random"),
        (Classes(classes=11), 10, "partition.classes=11 has to lie between 1 and 10"),
        (Classes(classes=2), 4, "own at most 8 of 10 classes"),
        (Dirichlet(beta=0.0), 10, "beta=0.0 has to be above 0"),
        (Dirichlet(beta=1.0, by="sample"), 10, "partition.by='sample' is none of client, class"),
        (Dirichlet(beta=1.0, min_size=101), 10, "10 clients with at least 101 .* need 1010, but there are 1000"),
        (Dirichlet(beta=0.1, min_size=90, retries=20), 10, r"in 20 draws with beta=0.1 .* never held more than \d+ of"),
        (Dirichlet(beta=1e-4, retries=20), 2, "in 20 draws with beta=0.0001 the smallest of 2 clients never held"),
        (Dominant(iid=0.2, samples_per_client=600), 20, r"need 1520 samples of class 0, which has 100\..*=37 fits"),
        (Dominant(iid=1.5), 20, "partition.iid=1.5 is a share"),
        (Dominant(iid=0.5, groups=((0, 10),)), 20, r"\[0, 10\]; a group names different classes from 0 to 9"),
        (Dominant(iid=0.5, groups=()), 20, "needs at least one group"),
        (Explicit(classes=HALVES), 3, "lists 2 clients, but the run has 3"),
        (Explicit(classes=[[0], []]), 2, r"gives client 1 \[\]"),
        (Explicit(classes=[[0], [10]]), 2, r"gives client 1 \[10\]; a client needs different classes from 0 to 9"),
        (Iid(holdout=0.0), 10, "partition.holdout=0.0 .* use partition.test=none"),
        (Iid(test="miror"), 10, "partition.test='miror' is none of holdout, mirror, none"),
        (Iid(test="mirror"), 400, r"client \d+ owns \d training samples, whose share of the 200 official test"),
    ],
)
def test_an_impossible_request_says_so_with_numbers(partition, n_clients, message):
    with pytest.raises(PartitionError, match=message):
        split(partition, balanced(100), balanced(20), n_clients, 10, rng())


def test_a_client_that_would_own_too_little_is_named():
    class Greedy(Partition):
        def table(self, totals, n_clients, rng):
            return np.array([[9], [1]])

    with pytest.raises(PartitionError, match=r"client 1 would own 1 samples and needs 2 \(1 of 2 clients"):
        Greedy()(np.zeros(10, dtype=np.int64), 2, 1, rng())


def test_labels_beyond_the_classes_are_refused():
    with pytest.raises(PartitionError, match="labels go from 0 to 9, but the data set says it has 5 classes"):
        Iid()(balanced(10), 2, 5, rng())


# ---------------------------------------------------------------- summary
def test_the_summary_counts_owners_groups_and_surprises():
    targets = np.array([0, 0, 1, 1, 2, 2, 0, 1])
    splits = [
        ClientSplit(np.array([0, 2]), np.array([4]), "train"),
        ClientSplit(np.array([1, 3]), np.array([7]), "train"),
        ClientSplit(np.array([6]), np.array([0, 1, 2]), "test"),
    ]
    summary = summarise(splits, targets, 4)
    assert summary.counts.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    assert summary.sizes.tolist() == [2, 2, 1]
    assert summary.owners.tolist() == [3, 2, 0, 0]
    assert summary.groups == {(0,): (2,), (0, 1): (0, 1)}
    assert summary.single_class == (2,)
    assert summary.unseen == {0: (2,)}
    spoken = warnings(summary)
    assert len(spoken) == 3
    assert "2 of 4 classes have no owner and cannot be learned: 2, 3." in spoken[0]
    assert "1 of 3 clients own one class only" in spoken[1]
    assert "1 of 3 clients are tested on classes" in spoken[2]
    content = json.loads(json.dumps(summary.as_dict()))
    assert content["train"] == {"min": 1, "mean": 5 / 3, "max": 2}
    assert content["groups"][1] == {"classes": [0, 1], "clients": [0, 1]}


def test_nothing_is_said_about_a_harmless_partition():
    targets = balanced(100)
    assert warnings(summarise(split(Iid(), targets, targets, 5, 10, rng()), targets, 10)) == []


# ---------------------------------------------------------------- the yamls, and what is imported
@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda p: p.stem)
def test_each_yaml_lists_every_field_and_works(path):
    config = OmegaConf.to_container(OmegaConf.load(path))
    kind = get_class(config.pop("_target_"))
    assert set(config) == {field.name for field in fields(kind)}
    n_clients = {"explicit": 2}.get(path.stem, 20)
    assert len(split(kind(**config), balanced(2000), balanced(200), n_clients, 10, rng())) == n_clients


def test_partitions_do_not_need_torch():
    code = "import sys, fedexp.partition.{0}; assert 'torch' not in sys.modules"
    names = [path.stem for path in (Path(__file__).parents[2] / "fedexp" / "partition").glob("[a-z]*.py")]
    lines = "; ".join(code.format(name) for name in names)
    assert subprocess.run([sys.executable, "-c", lines]).returncode == 0
