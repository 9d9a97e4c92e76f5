"""Cohorts."""

from __future__ import annotations

import numpy as np
import pytest

from fedexp.build import build
from fedexp.display import SilentDisplay
from fedexp.server.sampler import ClientDropouts, UniformSampler, cohort_size


@pytest.mark.parametrize(
    ("clients", "fraction", "size"),
    [
        (100, 0.29, 29),  # 28.999999999999996 in floats
        (100, 0.57, 57), (100, 0.2, 20), (20, 0.2, 4), (10, 1.0, 10), (10, 0.01, 1), (3, 0.5, 1), (7, 0.99, 6),
        (1, 1.0, 1), (1000, 0.1, 100),
    ],
)  # fmt: skip
def test_size(clients, fraction, size):
    assert cohort_size(clients, fraction) == size
    sampler = UniformSampler(0, clients, fraction)
    assert sampler.size == size
    assert len(sampler(0)) == size


def test_every_percentage_of_a_hundred_clients():
    assert [cohort_size(100, p / 100) for p in range(1, 101)] == list(range(1, 101))


def test_a_cohort_has_nobody_twice_and_is_sorted():
    sampler = UniformSampler(3, 50, 0.5)
    for t in range(50):
        cohort = sampler(t)
        assert len(set(cohort)) == 25
        assert cohort == sorted(cohort)
        assert all(type(c) is int and 0 <= c < 50 for c in cohort)


def test_cohorts_are_frozen():
    """Changing these changes every result."""
    assert UniformSampler(0, 20, 0.2)(0) == [10, 12, 14, 19]
    assert UniformSampler(0, 20, 0.2)(1) == [3, 7, 10, 11]
    assert UniformSampler(1, 20, 0.2)(0) == [9, 16, 17, 18]


def test_a_cohort_does_not_depend_on_the_rounds_before_it():
    sampler = UniformSampler(0, 20, 0.2)
    late = sampler(9)
    for t in range(9):
        sampler(t)
    assert sampler(9) == late


def test_everybody_is_drawn_about_as_often():
    sampler = UniformSampler(0, 20, 0.25)
    drawn = np.bincount(np.concatenate([sampler(t) for t in range(2000)]), minlength=20)
    assert abs(drawn - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)


def test_the_cohort_is_the_same_for_all_algorithms(configured, rundir):
    cohorts = []
    for algo in ("fedavg", "map", "scaffold", "ditto"):
        engine = build(configured(f"algo={algo}", "seed=4")).engine(rundir, SilentDisplay())
        cohorts.append([engine.sampler(t) for t in range(5)])
    assert all(c == cohorts[0] for c in cohorts)
    assert len({tuple(c) for c in cohorts[0]}) > 1


# ---------------------------------------------------------------- mishaps
def test_mishaps_befall_as_often_as_they_should_and_each_on_its_own():
    mishaps = ClientDropouts(5, dropout=0.2, stragglers=0.3, slow=0.25)
    everybody = range(40)
    dropped = [mishaps.dropped(t, everybody) for t in range(200)]
    gone = np.array([[c in out for c in everybody] for out in dropped])
    slow = np.array([[mishaps.share(t, c) == 0.25 for c in everybody] for t in range(200)])
    n = gone.size
    for hit, probability in ((gone, 0.2), (slow, 0.3), (gone & slow, 0.06)):
        assert abs(hit.sum() - n * probability) < 4 * np.sqrt(n * probability * (1 - probability))
    for axis in (0, 1):  # no client and no round has all the bad luck
        share = gone.mean(axis)
        assert abs(share - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / gone.shape[axis])
    assert {mishaps.share(t, c) for t in range(20) for c in everybody} == {0.25, 1.0}


def test_mishaps_depend_on_seed_round_and_client_alone():
    one, again, other = ClientDropouts(1, dropout=0.5), ClientDropouts(1, dropout=0.5), ClientDropouts(2, dropout=0.5)
    assert one.dropped(7, range(30)) == again.dropped(7, range(30))
    assert one.dropped(7, range(30)) & {3, 8, 9} == one.dropped(7, [9, 3, 8])  # whoever else is there
    assert one.dropped(7, range(30)) != one.dropped(8, range(30))
    assert one.dropped(7, range(30)) != other.dropped(7, range(30))
    wider = ClientDropouts(1, dropout=0.8).dropped(7, range(30))
    assert one.dropped(7, range(30)) < wider  # more of the same, so that settings can be compared


def test_never_and_always():
    assert ClientDropouts(0).dropped(0, range(50)) == set()
    assert {ClientDropouts(0).share(t, 0) for t in range(50)} == {1.0}
    assert ClientDropouts(0, dropout=1.0).dropped(0, range(50)) == set(range(50))
    assert {ClientDropouts(0, stragglers=1.0, slow=0.5).share(t, 0) for t in range(50)} == {0.5}


def test_mishaps_are_the_same_for_all_algorithms(configured, rundir):
    found = []
    for algo in ("fedavg", "map", "scaffold"):
        engine = build(configured(f"algo={algo}", "mishaps.dropout=0.4", "mishaps.stragglers=0.4")).engine(
            rundir, SilentDisplay()
        )  # fmt: skip
        found.append([(engine.mishaps.dropped(t, range(6)), engine.mishaps.share(t, 2)) for t in range(8)])
    assert found[0] == found[1] == found[2]
    assert len({str(f) for f in found[0]}) > 1
