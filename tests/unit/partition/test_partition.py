"""Laws of the partitions: what each promises of any labels, number of clients and seed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import get_class
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fedexp.errors import PartitionError
from fedexp.partition.base import Scene, split
from fedexp.partition.classes import Classes
from fedexp.partition.dialects import DIALECTS
from fedexp.partition.dirichlet import Dirichlet
from fedexp.partition.dominant import Dominant
from fedexp.partition.explicit import Explicit
from fedexp.partition.file import encode
from fedexp.partition.iid import Iid
from fedexp.partition.incomplete import Incomplete
from fedexp.partition.quantity import Quantity
from fedexp.partition.shards import Shards
from fedexp.partition.table import apportion, deal, equal

CONF = Path(__file__).parents[3] / "conf" / "partition"
GROUPS = ((0, 1), (1, 2), (2, 0))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(per_class: int, n_classes: int = 10) -> np.ndarray:
    return np.arange(per_class * n_classes) % n_classes


def counts(parts, targets, n_classes: int = 10) -> np.ndarray:
    return np.stack([np.bincount(targets[part], minlength=n_classes) for part in parts])


ALL = {
    "iid": lambda k, c: Iid(),
    "incomplete": lambda k, c: Incomplete(min_classes=min(2, c)),
    "blocks": lambda k, c: Shards(per_client=max(2, -(-c // k)) if c > 1 else 1),
    "random": lambda k, c: Shards(per_client=max(2, -(-c // k)), deal="random"),
    "dirichlet": lambda k, c: Dirichlet(beta=1.0, min_size=2),
    "dirichlet-class": lambda k, c: Dirichlet(beta=1.0, by="class", min_size=2),
    "quantity": lambda k, c: Quantity(beta=0.1, min_size=2),
    "quantity-power": lambda k, c: Quantity(law="power", exponent=2.0, min_size=2),
    "dominant": lambda k, c: Dominant(iid=0.4, groups=GROUPS[: 1 if c < 3 else 3]),
    "explicit": lambda k, c: Explicit(classes=[(i % c, (i + 1) % c) for i in range(k)]),
    **{
        f"classes-{dialect}": lambda k, c, d=dialect: Classes(classes=max(2, -(-c // k)), dialect=d, test="none")
        for dialect in DIALECTS
    },
}


@st.composite
def requests(draw):
    n_classes = draw(st.integers(2, 7))
    totals = draw(st.lists(st.integers(30, 60), min_size=n_classes, max_size=n_classes))
    targets = rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(n_classes), totals))
    return targets, draw(st.integers(2, 9)), n_classes, draw(st.integers(0, 2**32))


# ---------------------------------------------------------------- laws
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10)
@given(request=requests())
def test_a_partition_keeps_its_promises_and_the_seed_decides(name, request):
    targets, n_clients, n_classes, seed = request
    before = targets.copy()
    partition = ALL[name](n_clients, n_classes)
    try:
        parts = partition(targets, n_clients, n_classes, rng(seed))
    except PartitionError:
        assume(name not in ("classes-niid", "classes-pfllib"))  # they cannot always give every class an owner
        raise
    again = partition(targets, n_clients, n_classes, rng(seed))
    dealt = np.concatenate(parts)
    assert len(parts) == n_clients
    assert all(part.dtype == np.int64 and len(part) >= 1 for part in parts)
    assert all(np.array_equal(part, np.sort(part)) for part in parts)
    assert 0 <= dealt.min() <= dealt.max() < len(targets)
    assert np.bincount(dealt).max() <= (1 if partition.disjoint else 2)
    if partition.conserved:
        assert len(np.unique(dealt)) == len(targets)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert np.array_equal(targets, before)


@pytest.mark.parametrize("name", ALL)
def test_another_seed_gives_other_samples(name):
    partition, targets = ALL[name](10, 10), balanced(100)
    one, two = (np.concatenate(partition(targets, 10, 10, rng(seed))) for seed in (0, 1))
    assert not np.array_equal(one, two)


@pytest.mark.parametrize("name", ALL)
def test_tests_are_not_trained_on_and_a_partition_with_copies_refuses_to_hold_out(name):
    partition, targets = ALL[name](10, 10), balanced(100)
    held = type(partition)(**{f.name: getattr(partition, f.name) for f in fields(partition)} | {"test": "holdout"})
    if not partition.disjoint:
        with pytest.raises(
            PartitionError, match=r"1000 of 2000 dealt samples were dealt before.*partition.test=mirror"
        ):
            split(held, targets, targets[:0], 10, 10, rng())
        return
    splits = split(held, targets, targets[:0], 10, 10, rng())
    everything = np.concatenate([ids for own in splits for ids in (own.train, own.test)])
    assert len(np.unique(everything)) == len(everything)


@settings(max_examples=40)
@given(
    total=st.integers(0, 500),
    weights=st.lists(st.floats(0, 10), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-3),
)
def test_apportioning_loses_nothing_and_stays_within_one_of_the_quota(total, weights):
    w = np.array(weights)
    parts = apportion(total, w)
    assert parts.sum() == total
    assert np.all(np.abs(parts - total * w / w.sum()) < 1 + 1e-6)


@settings(max_examples=40)
@given(total=st.integers(20, 90), shares=st.lists(st.integers(0, 3), min_size=1, max_size=6).filter(any))
def test_equal_shares_are_those_of_array_split(total, shares):
    pieces = [len(piece) for piece in np.array_split(np.arange(total), sum(shares))]
    edges = np.cumsum([0, *shares])
    expected = [sum(pieces[a:b]) for a, b in pairwise(edges)]
    assert equal(np.array(shares)[:, None], np.array([total]))[:, 0].tolist() == expected


def test_dealing_more_than_there_is_is_refused():
    with pytest.raises(PartitionError, match="4 samples of class 1 were given away, but there are 3"):
        deal(np.array([0, 1, 1, 1]), np.array([[1, 2], [0, 2]]), rng())


# ---------------------------------------------------------------- the yamls, and what is imported
@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda p: p.stem)
def test_each_yaml_lists_every_field_and_works(path, tmp_path):
    config = OmegaConf.to_container(OmegaConf.load(path))
    kind = get_class(config.pop("_target_"))
    assert set(config) == {field.name for field in fields(kind)}
    n_clients = {"explicit": 2}.get(path.stem, 20)
    train, test = balanced(2000), balanced(200)
    if path.stem == "file":
        saved = split(Iid(), train, test, n_clients, 10, rng())
        file = tmp_path / "saved.json"
        file.write_bytes(encode(saved, Scene(train, test, 10), ".json", {}))
        config["path"] = str(file)
    owners = {"owners": np.arange(len(train)) // 500, "owners_test": np.arange(len(test)) // 50}
    assert len(split(kind(**config), train, test, n_clients, 10, rng(), **owners)) == n_clients


def test_partitions_do_not_need_torch():
    code = "import sys, fedexp.partition.{0}; assert 'torch' not in sys.modules"
    names = [path.stem for path in (Path(__file__).parents[3] / "fedexp" / "partition").glob("[a-z]*.py")]
    lines = "; ".join(code.format(name) for name in names)
    assert subprocess.run([sys.executable, "-c", lines]).returncode == 0
