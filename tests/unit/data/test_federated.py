"""Batches: their sizes, their order, their seeds; and what a client knows of its data."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedexp.core.component import Phase
from fedexp.data.federated import FederatedData, batch_sizes
from fedexp.data.source import DataSpec, Samples
from fedexp.partition.base import ClientSplit
from fedexp.testing import tiny_data, trial

N = 40
ROWS = np.array([3, 5, 7, 8, 11, 13, 17, 19, 20, 22, 30])  # eleven samples of one client


def data(augment=None) -> FederatedData:
    x = torch.arange(N, dtype=torch.float32).view(N, 1, 1, 1)
    samples = Samples(x, torch.arange(N) % 4)
    splits = [
        ClientSplit(ROWS, np.array([0, 1]), "train"), ClientSplit(np.array([2]), np.array([], dtype=np.int64), "train"),
        ClientSplit(np.array([4, 6]), np.array([0, 3]), "test"),
    ]  # fmt: skip
    return FederatedData(DataSpec((1, 1, 1), 5), samples, Samples(x + 100, (torch.arange(N) + 1) % 4), splits, augment)


def drawn(begin: int, end: int, *, seed: int = 1, size: int = 4, client: int = 0, augment=None) -> list[list[int]]:
    batches = data(augment).batches(client, size=size, begin=begin, end=end, seed=seed)
    return [x.flatten().int().tolist() for x, _ in batches]


@pytest.mark.parametrize(
    ("n", "size", "sizes"),
    [
        (10, 4, [4, 4, 2]), (9, 4, [4, 5]), (8, 4, [4, 4]), (5, 4, [5]), (4, 4, [4]), (3, 4, [3]), (1, 4, [1]),
        (65, 64, [65]), (129, 64, [64, 65]), (2, 1, [1, 1]), (3, 1, [1, 1, 1]), (3, 2, [3]), (7, 100, [7]),
    ],
)  # fmt: skip
def test_sizes(n, size, sizes):
    assert batch_sizes(n, size) == tuple(sizes)
    assert sum(batch_sizes(n, size)) == n


def test_no_batch_of_one_sample_beside_others():
    for n, size in itertools.product(range(2, 70), range(2, 20)):
        assert min(batch_sizes(n, size)) > 1


def test_every_epoch_visits_each_sample_once_in_a_new_order():
    per_epoch = data().steps_per_epoch(0, 4)
    assert per_epoch == len(batch_sizes(11, 4)) == 3
    batches = drawn(0, 5 * per_epoch)
    epochs = [sum(batches[e * per_epoch : (e + 1) * per_epoch], []) for e in range(5)]  # noqa: RUF017
    for epoch in epochs:
        assert sorted(epoch) == ROWS.tolist()
    assert len({tuple(e) for e in epochs}) == 5
    assert [len(b) for b in batches[:3]] == [4, 4, 3]


def test_labels_belong_to_their_images():
    for x, y in data().batches(0, size=4, begin=0, end=6, seed=0):
        assert torch.equal(x.flatten().long() % 4, y)


@pytest.mark.parametrize("cuts", [(0, 7), (0, 3, 7), (0, 1, 2, 3, 4, 5, 6, 7), (0, 5, 5, 7)])
def test_stretches_concatenate_to_the_whole(cuts):
    pieces = [batch for a, b in itertools.pairwise(cuts) for batch in drawn(a, b)]
    assert pieces == drawn(0, 7)


def test_same_seed_same_order_and_another_seed_another():
    assert drawn(0, 6) == drawn(0, 6)
    assert drawn(0, 6, seed=2) != drawn(0, 6)
    batches = data().batches(0, size=4, begin=0, end=4, seed=1)
    assert [y.tolist() for _, y in batches] == [y.tolist() for _, y in batches]  # a second pass is the same pass
    assert len(batches) == 4


def test_the_order_is_frozen():
    """Changing it changes every result."""
    assert drawn(0, 3) == [[3, 30, 7, 8], [19, 17, 11, 20], [5, 22, 13]]


def noise(x, generator):
    return x + torch.rand(x.shape, generator=generator)


def test_augmentation_is_seeded_per_step():
    plain = data().batches(0, size=4, begin=0, end=6, seed=1)
    noisy = data(noise).batches(0, size=4, begin=0, end=6, seed=1)
    offsets = [(a - b).flatten() for (a, _), (b, _) in zip(noisy, plain, strict=True)]
    assert all(((o > 0) & (o < 1)).all() for o in offsets)
    assert not torch.allclose(offsets[0], offsets[1], atol=1e-3)  # another step, other noise
    late = data(noise).batches(0, size=4, begin=4, end=6, seed=1)
    for (x, _), (y, _) in zip(late, list(noisy)[4:], strict=True):
        assert torch.equal(x, y)  # whoever begins in the middle sees the same
    other = data(noise).batches(0, size=4, begin=0, end=1, seed=2)
    assert not torch.allclose(next(iter(other))[0] % 1, next(iter(noisy))[0] % 1, atol=1e-3)


def test_augmentation_does_not_touch_the_data():
    federated = data(lambda x, generator: x.mul_(0))
    list(federated.batches(0, size=4, begin=0, end=3, seed=1))
    assert federated.train.x.sum() > 0


def test_a_client_of_one_sample():
    assert data().steps_per_epoch(1, 4) == 1
    assert drawn(0, 3, client=1) == [[2, 2]] * 3  # the same gradient, and batch norm needs two
    assert drawn(0, 2, client=1, size=1) == [[2]] * 2


def test_counts_and_info():
    federated = data()
    assert federated.n_clients == 3
    info = federated.info(0)
    assert (info.client, info.n) == (0, 11)
    assert info.counts.tolist() == [2.0, 3.0, 2.0, 4.0, 0.0]
    assert info.owned.tolist() == [True, True, True, True, False]
    assert info.share.sum() == 1
    assert federated.counts.shape == (3, 5)
    assert federated.counts.sum(1).tolist() == [11, 1, 2]


def test_own_samples_come_from_where_the_split_says():
    federated = data()
    assert federated.own_train(0).x.flatten().tolist() == ROWS.tolist()
    assert federated.own_test(0).x.flatten().tolist() == [0, 1]
    assert federated.own_test(1) is None
    assert federated.own_test(2).x.flatten().tolist() == [100, 103]
    assert federated.own_test(2).y.tolist() == [1, 0]


def test_to_a_device_is_the_same_data():
    one, two = data(noise), data(noise).to(torch.device("cpu"))
    assert torch.equal(one.counts, two.counts)
    for (a, _), (b, _) in zip(*(d.batches(0, size=4, begin=0, end=3, seed=1) for d in (one, two)), strict=True):
        assert torch.equal(a, b)


# ---------------------------------------------------------------- a phase's share of the steps
@pytest.mark.parametrize(
    ("epochs", "phase", "begin", "end"),
    [
        (2, Phase("local"), 0, 6), (2, Phase("local", end=0.5), 0, 3), (2, Phase("p", begin=0.5), 3, 6),
        (1, Phase("local", end=0.5), 0, 1), (1, Phase("p", begin=0.5), 1, 3),  # of an odd number
        (1.5, Phase("local"), 0, 4), (0.1, Phase("local"), 0, 1),  # at least one step
        (2, Phase("x", epochs=4), 0, 12), (2, Phase("x", epochs=4, begin=0.5), 6, 12),
    ],
)  # fmt: skip
def test_the_steps_of_a_phase(tmp_path, epochs, phase, begin, end):
    worker = trial({}, tmp_path, epochs=epochs).executor._worker
    client = 1  # twelve samples, three batches of four
    assert worker.data.steps_per_epoch(client, 4) == 3
    batches = worker.fitter.batches(phase, (0, client, "local"), worker.data.info(client))
    assert (batches.begin, batches.end) == (begin, end)


def test_fractions_of_an_epoch_are_not_lost_to_rounding(tmp_path):
    worker = trial({}, tmp_path, epochs=1.15).executor._worker
    worker.data.steps_per_epoch = lambda client, size: 100
    batches = worker.fitter.batches(Phase("local"), (0, 1, "local"), worker.data.info(1))
    assert len(batches) == 115  # 114.99999999999999 in floats


def test_tiny_data_is_what_the_tests_believe():
    federated = tiny_data()
    assert federated.counts.sum(1).tolist() == [7, 12, 6, 3, 1]
