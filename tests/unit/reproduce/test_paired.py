"""Paired differences against scipy and against the formulas written again."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedexp.reproduce.paired import Differences, contrast, mean_ranks, paired

FIRST = {0: 71.0, 1: 72.5, 2: 70.0, 3: 73.0, 4: 71.5, 5: 74.0, 9: 99.0}
SECOND = {5: 72.0, 4: 71.0, 3: 72.8, 2: 70.4, 1: 71.0, 0: 70.0, 8: 1.0}
PAIRS = [1.0, 1.5, -0.4, 0.2, 0.5, 2.0]


def some(n):
    return Differences(dict(enumerate(PAIRS[:n])))


def test_only_seeds_that_both_have_are_paired():
    found = paired(FIRST, SECOND)
    assert list(found.by_seed) == [0, 1, 2, 3, 4, 5]
    assert found.values == pytest.approx(PAIRS)
    assert found.mean == pytest.approx(sum(PAIRS) / 6)


def test_the_interval_is_that_of_the_paired_t_test():
    seeds = [0, 1, 2, 3, 4, 5]
    scipys = stats.ttest_rel([FIRST[s] for s in seeds], [SECOND[s] for s in seeds]).confidence_interval(0.95)
    assert paired(FIRST, SECOND).interval == pytest.approx(tuple(scipys))
    error = math.sqrt(sum((d - 0.8) ** 2 for d in PAIRS) / 5) / math.sqrt(6)
    assert paired(FIRST, SECOND).interval == pytest.approx((0.8 - 2.570581836 * error, 0.8 + 2.570581836 * error))


def test_pairing_removes_what_seeds_share():
    base = {seed: 50 + 10 * math.sin(seed) for seed in range(3)}
    better = {seed: value + 1 + 0.01 * seed for seed, value in base.items()}
    low, high = paired(better, base).interval
    assert 0.9 < low < high < 1.1


@pytest.mark.parametrize("n", range(3))
def test_no_interval_below_three_pairs(n):
    assert some(n).interval is None
    assert some(3).interval is not None


def test_wilcoxon_from_six_pairs_on():
    assert [some(n).p_value for n in range(6)] == [None] * 6
    assert some(6).p_value == stats.wilcoxon(PAIRS).pvalue
    ranks = stats.rankdata(np.abs(PAIRS))
    observed = sum(rank for rank, d in zip(ranks, PAIRS, strict=True) if d > 0)
    sums = [sum(rank for rank, up in zip(ranks, ups, strict=True) if up) for ups in product([0, 1], repeat=6)]
    assert some(6).p_value == pytest.approx(2 * sum(s >= observed for s in sums) / 64)


def test_equal_pairs_say_nothing():
    assert Differences(dict.fromkeys(range(8), 0.0)).p_value is None
    assert Differences(dict.fromkeys(range(8), 0.0)).interval == (0.0, 0.0)


def test_a_contrast_of_four_is_the_difference_of_two_differences():
    wide, narrow = paired({0: 5.0, 1: 6.0}, {0: 1.0, 1: 1.0}), paired({0: 3.0, 1: 3.0}, {0: 2.0, 1: 1.5})
    four = contrast([(1, {0: 5.0, 1: 6.0}), (-1, {0: 1.0, 1: 1.0}), (-1, {0: 3.0, 1: 3.0}), (1, {0: 2.0, 1: 1.5})])
    assert four.by_seed == paired(wide.by_seed, narrow.by_seed).by_seed == {0: 3.0, 1: 3.5}


def test_few_differences_are_written_out():
    assert str(some(0)) == "no pair of runs"
    assert str(some(1)) == "+1.00, 1 seed"
    assert str(some(3)) == "+0.70 [−1.75, +3.15], 3 seeds: +1.00 +1.50 −0.40"
    assert str(some(6)).endswith("], 6 seeds")


def test_mean_ranks():
    columns = [{"a": 3.0, "b": 2.0, "c": 1.0, "d": 9.0}, {"a": 1.0, "b": 1.0, "c": 5.0}]
    assert mean_ranks(columns) == {"a": (1 + 2.5) / 2, "b": (2 + 2.5) / 2, "c": (3 + 1) / 2}
    assert mean_ranks([]) == {}
