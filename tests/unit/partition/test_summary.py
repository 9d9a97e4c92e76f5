"""What is told of a partition: sizes, owners, overlap, and what may surprise."""

from __future__ import annotations

import json

import numpy as np

from fedexp.partition.base import ClientSplit, split
from fedexp.partition.classes import Classes
from fedexp.partition.iid import Iid
from fedexp.partition.summary import summarise, warnings
from tests.unit.partition.test_partition import balanced, rng


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


def test_samples_that_are_left_out_shared_or_held_twice_are_counted():
    splits = [
        ClientSplit(np.array([0, 0, 1]), np.array([2]), "train"),
        ClientSplit(np.array([1, 3]), np.array([0, 4]), "test"),
    ]
    summary = summarise(splits, np.zeros(6, dtype=np.int64), 1)
    assert summary.as_dict()["samples"] == {"all": 6, "left_out": 2, "shared": 1, "copies": 1}
    assert any("1 of 6 samples have several owners, and clients hold 1 second copies" in w for w in warnings(summary))


def test_the_double_deal_of_fedmr_is_told():
    targets = balanced(100)
    partition = Classes(classes=3, dialect="fedmr", test="none")
    summary = summarise(split(partition, targets, targets, 10, 10, rng()), targets, 10)
    assert summary.left_out == 0
    assert summary.shared + summary.copies == len(targets)
    assert len(warnings(summary)) == 1
