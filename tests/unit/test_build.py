from __future__ import annotations

import numpy as np
import pytest

from fedexp.build import build
from fedexp.errors import ConfigError


def test_partition_seed_gives_the_partition_of_that_run_seed(configured):
    fixed = build(configured("partition.seed=3")).plan.content["partition_digest"]
    assert fixed == build(configured("seed=3")).plan.content["partition_digest"]
    assert fixed != build(configured()).plan.content["partition_digest"]


def test_partition_does_not_depend_on_the_algorithm(configured):
    digests = {build(configured(f"algo={a}")).plan.content["partition_digest"] for a in ("fedavg", "map", "scaffold")}
    assert len(digests) == 1


def test_pool_all_deals_out_everything_and_tests_on_what_clients_hold_out(configured):
    apart, together = build(configured()), build(configured("pool=all"))
    dealt = np.concatenate([np.concatenate([s.train, s.test]) for s in together.splits])
    assert len(dealt) == len(set(dealt)) > sum(len(s.train) + len(s.test) for s in apart.splits)
    held = np.concatenate([s.test for s in together.splits])
    assert len(together.data.test) == len(held)
    assert not set(held) & set(np.concatenate([s.train for s in together.splits]))


def test_pool_all_refuses_a_partition_whose_tests_come_from_the_test_set(configured):
    with pytest.raises(ConfigError, match=r"pool=all needs clients that hold out"):
        build(configured("pool=all", "partition.test=mirror"))


def test_every_problem_is_reported_at_once(configured):
    with pytest.raises(ConfigError) as caught:
        build(
            configured("algo=map", "algo.rs.alpha=2", "cohort.fraction=0", "partition=classes", "partition.classes=0")
        )
    text = str(caught.value)
    assert all(part in text for part in ("algo.rs.alpha", "cohort.fraction", "partition.classes"))
