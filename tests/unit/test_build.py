from __future__ import annotations

import numpy as np
import pytest

from fedexp.build import build, make, parts
from fedexp.config.compose import choices_of, composed
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


def test_a_run_unlike_the_methods_paper_says_so(configured):
    usual, other = (build(configured("algo=fedgela", *more)).plan.content for more in ((), ("evaluate=fedgela",)))
    (said,) = usual["unlike_paper"]
    assert said == (
        "algo: FedGELA's paper has weighting=samples, evaluate=fedgela; this run has weighting=uniform, evaluate=map."
    )
    assert said in usual["notes"]
    assert other["unlike_paper"] == ["algo: FedGELA's paper has weighting=samples; this run has weighting=uniform."]
    alike = build(configured("algo=fedgela", "evaluate=fedgela", "weighting=samples")).plan.content
    assert alike["unlike_paper"] == [] == build(configured("algo=fedavg")).plan.content["unlike_paper"]


def test_the_protocols_that_papers_name_are_there():
    papers = {c.paper for algo in choices_of("algo") for c in parts(composed([f"algo={algo}"]))[1].values() if c.paper}
    assert {p.name for p in papers} == {"MAP", "FedRS", "FedReMa", "FedMR", "FedGELA"}
    names = {choice: make(composed([f"evaluate={choice}"])["evaluate"]).name for choice in choices_of("evaluate")}
    assert all(choice == name for choice, name in names.items())
    assert {p.evaluate for p in papers} == set(names)
