"""What is said when a request is impossible: numbers, and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from fedexp.errors import PartitionError
from fedexp.partition.base import ClientSplit, Partition, split
from fedexp.partition.classes import Classes
from fedexp.partition.dirichlet import Dirichlet
from fedexp.partition.dominant import Dominant
from fedexp.partition.explicit import Explicit
from fedexp.partition.iid import Iid
from fedexp.partition.incomplete import Incomplete
from fedexp.partition.quantity import Quantity
from fedexp.partition.shards import Shards
from tests.unit.partition.test_partition import balanced, rng

HALVES = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))


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
        (Classes(classes=2, dialect="fedrs"), 4, "own at most 8 of 10 classes"),
        (Classes(classes=11, dialect="flower"), 10, "partition.classes=11 has to lie between 1 and 10"),
        (Classes(classes=10, dialect="flbench"), 101, "class 0 has 100 samples for 101 owners"),
        (Classes(classes=10, dialect="pfllib"), 101, "class 0 has 100 samples for 101 owners"),
        (Classes(classes=2, dialect="fedrep"), 10, "partition.dialect='fedrep' is none of fedgela, fedmr, fedrs"),
        (Classes(classes=2, dialect="niid"), 5, r"niid leaves [1-5] of 10 classes without an owner \(class . first\)"),
        (Classes(classes=4, dialect="pfllib"), 3, r"pfllib leaves 2 of 10 classes without an owner \(class 8 first\)"),
        (Quantity(min_size=101), 10, r"10 clients with at least 101 .* need 1010, but there are 1000.*0 and 100"),
        (Quantity(min_size=-1), 10, "10 clients with at least -1 samples"),
        (Quantity(beta=0.0), 10, "partition.beta=0.0 has to be above 0"),
        (Quantity(law="power", exponent=-1.0), 10, "partition.exponent=-1.0 has to be 0"),
        (Quantity(law="zipf"), 10, "partition.law='zipf' is none of dirichlet, power"),
        (Quantity(beta=0.01, min_size=0), 10, r"client \d would own \d samples and needs 2"),
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


class Given:
    """A partition that was made up, by a user for example."""

    seed = None

    def __init__(self, *splits):
        self._splits = [ClientSplit(np.array(train), np.array(test, dtype=int), kind) for train, test, kind in splits]

    def splits(self, scene, n_clients, rng):
        return self._splits


WHOLE = ([0, 1], [2], "train")


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([WHOLE], r"splits\(\) returned 1 clients, and there are 2 \(cohort\.clients\)"),
        ([WHOLE, ([], [2], "train")], "client 1 must own indices .* one or more below 10"),
        ([WHOLE, ([0.5], [2], "train")], "client 1 must own indices"),
        ([([10], [2], "train"), WHOLE], "client 0 must own indices"),
        ([([-1], [2], "train"), WHOLE], "client 0 must own indices"),
        ([([1], [5], "test"), WHOLE], "client 0 must own indices .* any below 5 to be tested on"),
        ([([1, 2], [2], "train"), WHOLE], "client 0 would be tested on samples that it is trained on"),
    ],
)
def test_a_partition_that_is_none_is_refused(splits, message):
    labels = np.zeros(10, dtype=int)
    with pytest.raises(PartitionError, match=message):
        split(Given(*splits), labels, labels[:5], 2, 1, rng())


def test_a_sample_may_be_trained_on_here_and_tested_on_there():
    """Of test samples with the same indices, or by another client."""
    labels = np.zeros(10, dtype=int)
    assert len(split(Given(WHOLE, ([2], [2], "test")), labels, labels[:5], 2, 1, rng())) == 2
