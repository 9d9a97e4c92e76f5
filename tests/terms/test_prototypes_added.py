"""Baselines with prototypes (FedMR, table 8): the baseline as it is, and FedMR's margin without its intra loss."""

from __future__ import annotations

import pytest

from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.core.state import digest
from tests.helpers import played

BASELINES = ["fednova", "feddyn", "feddc"]


def components(name):
    return {key: make(node) for key, node in composed([f"algo={name}"])["algo"].items()}


@pytest.mark.parametrize("name", BASELINES)
def test_margin_is_added_and_nothing_else(name):
    both, plain, fedmr = components(f"{name}_proto"), components(name), components("fedmr")
    assert list(both) == [*plain, "means", "mr"]
    assert {key: both[key] for key in plain} == plain
    assert both["means"] == fedmr["means"]
    assert (both["mr"].intra, both["mr"].inter) == (0.0, fedmr["mr"].inter)


@pytest.mark.parametrize("name", BASELINES)
def test_prototypes_act_from_the_second_round_on(name, tmp_path):
    """On the digits: the battery's classes are too far apart for a margin."""
    both, plain = (played(tmp_path / n, f"algo={n}") for n in (f"{name}_proto", name))
    first, second = (record["terms"] for record in both.records)
    assert first == plain.records[0]["terms"]
    assert second["local/mr.inter"] > 0
    assert digest({"": both.progress.state.model}) != digest({"": plain.progress.state.model})
