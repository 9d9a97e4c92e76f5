"""Laws of reduction."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedexp.core.state import add, digest, scale, zeros_like
from fedexp.server.aggregate import BLOCKS, MIN_BLOCK_SAMPLES, TAIL_DIVISOR, Fold, Mean, blocks, groups, is_finite
from fedexp.server.update import cohort_weights
from tests.laws.strategies import small, uploads


def normal(weights: list[float]) -> list[float]:
    return [w / sum(weights) for w in weights]


positive = st.floats(0.01, 10, allow_nan=False)


def reduced(how: str, trees, weights) -> dict[str, torch.Tensor]:
    mean = Mean(how)
    for tree, weight in zip(trees, weights, strict=True):
        mean.feed(tree, weight)
    return mean.result()


def floats(tree):
    return {k: v for k, v in tree.items() if v.is_floating_point()}


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=400))
def test_blocks_are_a_cut_of_the_cohort(samples):
    cohort = sorted(range(len(samples)), key=lambda c: -samples[c])
    cut = blocks(cohort, samples)
    assert [c for block in cut for c in block] == cohort
    usual = max(sum(samples) / BLOCKS, MIN_BLOCK_SAMPLES)
    left = sum(samples)
    for block, following in zip_longest(cut, cut[1:]):
        size, most = sum(samples[c] for c in block), min(usual, left / TAIL_DIVISOR)
        assert len(block) == 1 or size <= most
        assert following is None or size + samples[following[0]] > most  # it could not take one more
        left -= size


@given(st.integers(0, 300), st.integers(1, 100))
def test_groups_are_few_and_alike(clients, size):
    cut = groups(range(clients), size)
    assert [c for group in cut for c in group] == list(range(clients))
    assert len(cut) == -(-clients // size)
    sizes = {len(group) for group in cut}
    assert not sizes or (max(sizes) <= size and max(sizes) - min(sizes) <= 1)


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("clients", "each"), [(10, 480), (100, 48), (100, 480), (1000, 48), (1000, 480)])
def test_workers_end_at_the_same_time(workers, clients, each):
    """Handing blocks to whoever is free takes little longer than an even split of the clients, or than one block."""
    ends = [0] * workers
    for block in blocks(range(clients), [each] * clients):
        ends[ends.index(min(ends))] += len(block)
    even = -(-clients // workers)
    assert max(ends) <= max(1.25 * even, even + 2, MIN_BLOCK_SAMPLES // each)


@given(uploads(), st.data())
@pytest.mark.parametrize("how", ["weighted", "uniform"])
def test_a_mean_is_convex(how, sent, data):
    weights = normal([data.draw(positive) for _ in sent])
    mean = floats(reduced(how, sent.values(), weights))
    for name, value in mean.items():
        stacked = torch.stack([tree[name] for tree in sent.values()])
        assert (value >= stacked.amin(0) - 1e-9).all()
        assert (value <= stacked.amax(0) + 1e-9).all()


@given(uploads(), small)
def test_a_mean_of_equal_trees_is_that_tree_and_means_are_linear(sent, factor):
    first = next(iter(sent.values()))
    weights = normal([1.0 + i for i in range(len(sent))])
    for how in ("weighted", "uniform"):
        got = floats(reduced(how, [first] * len(sent), weights))
        for name, value in got.items():
            torch.testing.assert_close(value, first[name])
        scaled = floats(reduced(how, [{**scale(floats(t), factor), "n": t["n"]} for t in sent.values()], weights))
        plain = scale(floats(reduced(how, sent.values(), weights)), factor)
        for name, value in scaled.items():
            torch.testing.assert_close(value, plain[name], rtol=1e-9, atol=1e-9)


@given(uploads())
def test_the_sum_is_n_times_the_uniform_mean(sent):
    weights = [0.3] * len(sent)  # of no consequence here
    total, mean = (floats(reduced(how, sent.values(), weights)) for how in ("sum", "uniform"))
    plain = zeros_like(total)
    for tree in sent.values():
        plain = add(plain, floats(tree))
    for name, value in total.items():
        torch.testing.assert_close(value, len(sent) * mean[name], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(value, plain[name], rtol=1e-9, atol=1e-9)


@given(uploads())
@pytest.mark.parametrize("how", ["weighted", "uniform", "sum"])
def test_counters_are_those_of_the_first(how, sent):
    got = reduced(how, sent.values(), normal([1.0] * len(sent)))
    assert got["n"].dtype == torch.int64
    assert got["n"] == next(iter(sent.values()))["n"]


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any), min_size=1, max_size=12), st.data()
)  # fmt: skip
def test_weights_are_positive_and_sum_to_one(counts, data):
    table = torch.tensor(counts, dtype=torch.float32)
    cohort = data.draw(st.lists(st.sampled_from(range(len(counts))), min_size=1, unique=True))
    algorithm = SimpleNamespace(facts=SimpleNamespace(counts=table), using=lambda _: [])
    for weighting in ("uniform", "samples"):
        weights = cohort_weights(algorithm, weighting, cohort)
        assert list(weights) == cohort
        assert sum(weights.values()) == pytest.approx(1, abs=1e-12)
        assert all(w > 0 for w in weights.values())
    one, other = cohort[0], cohort[-1]
    ratio = sum(counts[one]) / sum(counts[other])
    assert weights[one] == pytest.approx(ratio * weights[other])


# ---------------------------------------------------------------- folds
KINDS = ("weighted", "uniform", "sum")


def empty() -> Fold:
    return Fold({how: Mean(how) for how in KINDS}, {"sum": {}, "kept": {}})


@given(uploads(most=8), st.data())
def test_a_fold_is_its_formula_however_it_was_cut_and_whoever_is_missing(sent, data):
    """Numpy's sums over those who are there; ``share`` is what their weights sum to."""
    cohort = list(sent)
    weights = dict(zip(cohort, normal([data.draw(positive) for _ in cohort]), strict=True))
    there = data.draw(st.lists(st.sampled_from(cohort), min_size=1, unique=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(there)), max_size=3)))
    total = empty()
    for begin, end in pairwise([0, *cuts, len(there)]):
        part = empty()
        for client in there[begin:end]:
            part.feed(client, dict.fromkeys((*KINDS, "kept"), sent[client]), weights[client])
        total.merge(part)
    share = sum(weights[c] for c in there)
    for name in floats(sent[there[0]]):
        values = np.stack([sent[c][name].numpy() for c in there])
        factors = np.array([weights[c] for c in there]).reshape(-1, *[1] * (values.ndim - 1))
        expected = {
            "weighted": (factors * values).sum(0) / factors.sum(), "uniform": values.mean(0), "sum": values.sum(0)
        }  # fmt: skip
        for how in KINDS:
            got = total.means[how].result(share)[name].numpy()
            np.testing.assert_allclose(got, expected[how], rtol=1e-9, atol=1e-9)
    assert set(total.kept["kept"]) == set(total.kept["sum"]) == set(there)
    assert all(digest({"": total.kept["kept"][c]}) == digest({"": sent[c]}) for c in there)
    assert total.is_finite


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["weighted", "uniform", "sum", "kept"])
@given(sent=uploads(), data=st.data())
def test_one_number_that_is_not_finite_is_seen_in_the_fold(where, bad, sent, data):
    spoilt = data.draw(st.sampled_from(list(sent)))
    fold = empty()
    for client, tree in sent.items():
        name = next(iter(floats(tree)))
        worse = tree[name].clone()
        worse.view(-1)[-1] = bad
        given_ = {**tree, name: worse} if client == spoilt else tree
        fold.feed(client, {**dict.fromkeys(KINDS, tree), where: given_}, 0.5)
    assert not fold.is_finite


def test_a_finite_tree_whose_sum_overflows_is_finite():
    assert is_finite({"w": torch.full((8,), 3e38), "n": torch.tensor(3)})
    assert not is_finite({"w": torch.tensor([1.0, float("inf"), -float("inf")])})


def test_a_fold_keeps_no_hold_of_what_it_was_fed():
    """Uploads may be the live tensors of a network, which the next client overwrites."""
    live, fold = {"w": torch.ones(3)}, empty()
    fold.feed(4, dict.fromkeys((*KINDS, "kept"), live), 1.0)
    live["w"].fill_(99.0)
    assert all(m.total["w"].tolist() == [1.0] * 3 for m in fold.means.values())
    assert fold.kept["kept"][4]["w"].tolist() == [1.0] * 3
    other = empty()
    other.merge(fold)
    fold.means["sum"].total["w"].fill_(99.0)
    assert other.means["sum"].total["w"].tolist() == [1.0] * 3
