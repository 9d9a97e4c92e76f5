"""Each rule against its formula written again, and what becomes of short, untested and broken series."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedexp.errors import ConfigError
from fedexp.reproduce.selection import RULES, rounds_to, rule

SERIES = [*np.random.default_rng(0).uniform(0.2, 0.9, 73), 0.5]
NAN = math.nan


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("last round", SERIES[73]),
        ("best round", sorted(SERIES)[-1]),
        ("mean of the last 5 rounds", sum(SERIES[69:]) / 5),
        ("mean of the last 10 rounds", sum(SERIES[64:]) / 10),
        ("mean of the last 50 rounds", sum(SERIES[24:]) / 50),
        ("mean of the first 10 rounds", sum(SERIES[:10]) / 10),
        ("deviation of the last 50 rounds", np.std(SERIES[24:])),
    ],
)
def test_a_rule_is_its_formula(name, expected):
    assert rule(name)(SERIES) == pytest.approx(expected, abs=1e-12)


def test_a_number_of_the_result_is_taken_as_it_is():
    assert rule("result")([0.25]) == 0.25
    with pytest.raises(ValueError, match="too many values"):
        rule("result")([0.25, 0.5])


def test_only_rules_that_choose_on_the_test_set_carry_a_caution():
    assert {name for name, r in RULES.items() if r.caution} == {"best round"}
    assert "chosen on the test set" in rule("best round").caution
    assert all(name == r.name for name, r in RULES.items())


def test_a_run_shorter_than_its_window_gives_the_mean_of_what_it_has():
    assert rule("mean of the last 50 rounds")([0.25, 0.75]) == 0.5


def test_a_window_counts_rounds_and_not_tests():
    tested = [number / 100 if number % 10 == 0 else None for number in range(1, 101)]
    assert rule("mean of the last 50 rounds")(tested) == pytest.approx(np.mean([0.6, 0.7, 0.8, 0.9, 1.0]))
    assert rule("last round")([0.5, 0.25, None]) == 0.25
    assert rule("best round")([None, 0.5, None, 0.25]) == 0.5


def test_of_a_value_per_client_the_mean_counts():
    clients = [[0.1, 0.3], [0.6, 0.8], None, [0.2, 0.2, 0.8]]
    assert rule("last round")(clients) == pytest.approx(0.4)
    assert rule("best round")(clients) == pytest.approx(0.7)
    assert rule("mean of the last 5 rounds")(clients) == pytest.approx((0.2 + 0.7 + 0.4) / 3)
    assert math.isnan(rule("last round")([[]]))
    assert rounds_to(clients, 0.65) == 2


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("series", [[], [None], [None, None]])
def test_nothing_tested_is_no_number(name, series):
    assert math.isnan(rule(name)(series))


def test_nan_shows_except_in_the_best_round():
    assert math.isnan(rule("last round")([0.5, NAN]))
    assert math.isnan(rule("mean of the last 5 rounds")([0.5, NAN, 0.5]))
    assert rule("mean of the last 5 rounds")([NAN, 1, 1, 1, 1, 1]) == 1  # outside of the window
    assert math.isnan(rule("deviation of the last 50 rounds")([0.5, NAN, 0.5]))
    assert rule("best round")([NAN, 0.5, NAN]) == rule("best round")([0.5, NAN]) == 0.5
    assert math.isnan(rule("best round")([NAN]))


def test_one_round_has_no_deviation():
    assert math.isnan(rule("deviation of the last 50 rounds")([0.5]))


def test_an_unknown_rule_names_the_nearest():
    with pytest.raises(ConfigError, match="mean of the last 50 rounds"):
        rule("mean of last 50 rounds")


def test_rounds_to_a_target_count_from_one_and_include_equality():
    assert rounds_to([0.1, 0.5, 0.4, 0.6], 0.5) == 2
    assert rounds_to([0.1, None, NAN, 0.6], 0.5) == 4
    assert rounds_to([0.1, 0.2], 0.5) is None
    assert rounds_to([], 0.5) is None


def test_rounds_that_figures_draw():
    series = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert (rule("first round")(series), rule("round 5")(series)) == (1.0, 5.0)
    assert math.isnan(rule("first round")([None, 2.0]))
