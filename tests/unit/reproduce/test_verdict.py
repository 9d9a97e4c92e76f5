"""Tolerances by formula, and verdicts of cases that can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy import stats

from fedexp.reproduce import tolerance as tolerances
from fedexp.reproduce import verdict
from fedexp.reproduce.measure import Measure
from fedexp.reproduce.tolerance import CAP, tolerance
from fedexp.reproduce.verdict import interval, judge, remarks
from tests.unit.reproduce.fakes import entry, number, result, results

SAMPLES = ((("scene", "aggregation"), 10_000),)
KNOWN = entry(test_samples=SAMPLES)  # 70 % of 10,000: tolerance 0.917
TOLERANCE = 200 * math.sqrt(0.7 * 0.3 / 10_000)


def judged(*ours, of=KNOWN, published=None, tune="none"):
    return judge(published or number(), of, list(ours), tune=tune)


# Tolerance


def test_two_binomial_errors_of_the_test_set():
    assert tolerance(number(), KNOWN).points == pytest.approx(TOLERANCE)
    assert tolerance(number(), KNOWN).basis == "2 binomial errors of 10,000 samples"
    assert tolerance(number("99.90"), KNOWN).points == pytest.approx(200 * math.sqrt(0.999 * 0.001 / 10_000))


def test_half_of_the_last_digit_where_it_is_the_largest():
    assert tolerance(number("100.0"), KNOWN).points == 0.05
    assert tolerance(number("100"), KNOWN).points == 0.5


def test_a_spread_over_seeds_counts_and_is_not_capped():
    assert tolerance(number(spread=2.5), entry(spread="seeds", test_samples=SAMPLES)).points == 2.5
    small = tolerance(number(spread=0.1), entry(spread="seeds", test_samples=SAMPLES))
    assert small.points == pytest.approx(TOLERANCE)
    assert (
        tolerance(number(spread=0.1), entry(spread="seeds", test_samples=((("scene", "aggregation"), 100),))).points
        > CAP
    )


@pytest.mark.parametrize("over", ["rounds", "settings", None])
def test_any_other_spread_does_not_count(over):
    assert tolerance(number(spread=2.5), entry(spread=over, test_samples=SAMPLES)).points == pytest.approx(TOLERANCE)


def test_without_a_spread_over_seeds_the_cap_holds():
    capped = tolerance(number(), entry(test_samples=((("scene", "aggregation"), 100),)))
    assert capped.points == CAP == 1.5
    slightly = tolerance(number(), entry(test_samples=((("scene", "aggregation"), 2_400),)))  # 2 errors are 1.87
    assert slightly.points == CAP
    assert capped.basis == "2 binomial errors of 100 samples, capped"
    assert (
        tolerance(number(), entry(spread="seeds", test_samples=((("scene", "aggregation"), 100),))).points == CAP
    )  # none printed here


def test_where_nothing_is_known_the_cap_is_the_tolerance():
    assert tolerance(number(), entry()).points == CAP
    assert tolerance(number(spread=0.3), entry(spread="seeds")).points == 0.3


def test_the_error_of_a_mean_over_scenes():
    table = entry(
        scenes=("a", "b", "other/c"),
        aggregates=(("avg", "?"),),
        test_samples=((("a", "aggregation"), 5000), (("b", "aggregation"), 20_000), (("other/c", "aggregation"), 1)),
    )
    expected = 2 * 100 * math.sqrt(0.7 * 0.3 / 5000 + 0.7 * 0.3 / 20_000) / 2
    assert tolerance(number(setting="avg"), table).points == pytest.approx(expected)
    unknown = entry(scenes=("a", "b"), aggregates=(("avg", "*"),), test_samples=((("a", "aggregation"), 1000),))
    assert tolerance(number(setting="avg"), unknown).points == CAP


def test_a_gain_has_the_error_of_two_accuracies():
    gain = tolerance(
        number("6.05", metric="gain_over_fedavg"), entry(test_samples=((("scene", "gain_over_fedavg"), 26_000),))
    )
    assert gain.points == pytest.approx(2 * math.sqrt(2) * 100 * math.sqrt(0.25 / 26_000))
    assert gain.basis == "√2 · 2 binomial errors of 26,000 samples"
    assert tolerance(number("6.05", metric="gain_over_fedavg"), entry()).points == CAP


def test_a_count_agrees_in_the_printed_digits():
    assert tolerance(number("33654", metric="parameters"), KNOWN).points == 0.5
    assert (
        judged(result(33654, metric="parameters"), published=number("33654", metric="parameters")).word == "reproduced"
    )
    assert judged(result(33655, metric="parameters"), published=number("33654", metric="parameters")).word == "above"
    millions = number("11.184", metric="parameters_million")
    assert judged(result(11.183582, metric="parameters_million"), published=millions).word == "reproduced"
    assert judged(result(11.182430, metric="parameters_million"), published=millions).word == "below"


@pytest.mark.parametrize("metric", ["seconds", "rounds_to_target", "ccp_rounds", "speedup", "eigenvalue_variance"])
def test_numbers_without_an_error_get_no_verdict(metric):
    published = number("400", metric=metric)
    assert tolerance(published, KNOWN).points is None
    of = entry(numbers=(published,))
    assert judged(*results(400, 400, 400, metric=metric), published=published, of=of).word == "unjudged"


def test_seconds_are_told_relative_to_the_first_method():
    numbers = [number("796.5", method="FedReMa", metric="seconds"), number("4464.3", method="FedPAC", metric="seconds")]
    of = entry(numbers=tuple(numbers))
    ours = [result(10.0, method="FedReMa", metric="seconds"), result(30.0, method="FedPAC", metric="seconds")]
    assert judged(*ours, published=numbers[1], of=of).why == "3.00 times FedReMa, in the paper 5.60 times"
    nothing = "no run of FedReMa of full length to compare with"
    assert judged(ours[1], published=numbers[1], of=of).why == nothing
    short = replace(ours[0], reduced="10 of 500 rounds")
    assert judged(short, ours[1], published=numbers[1], of=of).why == nothing
    bound = replace(numbers[1], printed="3000", note="lower bound")
    of = entry(numbers=(numbers[0], bound))
    assert judged(*ours, published=bound, of=of).why == "3.00 times FedReMa, in the paper >3.77 times"


# Verdicts


def test_the_interval_is_students():
    values = [69.1, 70.4, 70.0, 69.7]
    mean, error = sum(values) / 4, stats.tstd(values) / 2
    half = 2.3533634348 * error  # 95 % point of t with 3 degrees of freedom, from a printed table
    assert interval(values, 0.9) == pytest.approx((mean - half, mean + half))
    assert interval(values, 0.9) == pytest.approx(stats.t.interval(0.9, 3, loc=mean, scale=error))


def test_reproduced_is_two_one_sided_tests_at_five_percent():
    for shift in (-1.0, -0.7, -0.5, 0.0, 0.3, 0.55, 0.6, 0.8):
        values = [69.9 + shift, 70.1 + shift, 70.2 + shift]
        lower = stats.ttest_1samp(values, 70 - TOLERANCE, alternative="greater").pvalue
        upper = stats.ttest_1samp(values, 70 + TOLERANCE, alternative="less").pvalue
        assert (judged(*results(*values)).word == "reproduced") == (max(lower, upper) <= 0.05)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ((69.9, 70.0, 70.1), "reproduced"),
        ((68.0, 70.0, 72.0), "compatible"),  # the mean is exact, the interval wide
        ((69.0, 69.1, 69.2), "compatible"),  # the interval crosses the border
        ((66.0, 68.0, 70.0), "compatible"),  # the mean is too far off, but the interval reaches the tolerance
        ((67.9, 68.0, 68.1), "below"),
        ((71.9, 72.0, 72.1), "above"),
        ((71.5, 71.5, 71.5), "above"),
    ],
)
def test_three_seeds(values, word):
    found = judged(*results(*values))
    assert found.word == word
    assert found.values == values
    assert found.ours == pytest.approx(sum(values) / 3)
    assert found.difference == pytest.approx(sum(values) / 3 - 70)
    assert found.interval == pytest.approx(interval(values, 0.9))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ((70.0,), "compatible"),
        ((70 - 1.9 * TOLERANCE,), "compatible"),  # our own run may be off as much as theirs
        ((70 - 2.1 * TOLERANCE,), "below"),
        ((70 + 2.1 * TOLERANCE,), "above"),
        ((70.0, 70.0), "compatible"),  # never reproduced, however near
        ((70 - 1.6 * TOLERANCE, 70 - 1.8 * TOLERANCE), "compatible"),  # 1 + 1/√2 is 1.707
        ((70 - 1.7 * TOLERANCE, 70 - 1.8 * TOLERANCE), "below"),
    ],
)
def test_one_and_two_seeds(values, word):
    found = judged(*results(*values))
    assert (found.word, found.interval) == (word, None)


def test_missing():
    found = judged(result(70.0, method="FedAvg"), result(70.0, setting="other"), result(70.0, metric="PA"))
    assert (found.word, found.ours, found.values, found.difference) == ("missing", None, (), None)
    assert found.why == "there is no result"


def test_reduced_runs_get_no_verdict():
    found = judged(*results(70.0, 70.0, 70.0, reduced="3 of 150 rounds"))
    assert (found.word, found.why, found.ours) == ("reduced", "3 of 150 rounds", 70.0)


def test_full_runs_decide_beside_reduced_ones():
    found = judged(*results(70.0, 70.0, 70.0), *results(20.0, 20.0, 20.0, 20.0, reduced="3 of 150 rounds"))
    assert (found.word, found.values) == ("reproduced", (70.0, 70.0, 70.0))


def test_of_reduced_runs_the_longest_count():
    ours = [*results(60.0, 61.0, reduced="50 of 150 rounds", rounds=50), result(20.0, reduced="9 of 150", rounds=9)]
    found = judged(*ours)
    assert (found.word, found.values, found.why) == ("reduced", (60.0, 61.0), "50 of 150 rounds")
    assert judged(*reversed(ours)).values == (60.0, 61.0)


def test_failed_runs_say_how_many():
    found = judged(*results(70.0, 70.0), result(None, 2, status="diverged", error="loss is NaN in round 7"))
    assert (found.word, found.ours) == ("failed", 70.0)
    assert found.why == "1 of 3 runs failed: seed 2 diverged: loss is NaN in round 7"
    assert judged(result(None, status="failed")).why == "1 of 1 run failed: seed 0 failed"


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_finished_run_without_a_number_has_failed(value):
    found = judged(result(value))
    assert (found.word, found.why) == ("failed", "1 of 1 run failed: seed 0 has no finite number")


def test_an_unfinished_run_does_not_count():
    assert judged(result(55.0, status="partial")).word == "missing"
    assert judged(result(55.0, status="partial")).why == "1 run not finished"
    found = judged(*results(70.0, 70.0, 70.0), result(55.0, 3, status="partial"))
    assert (found.word, found.ours) == ("reproduced", 70.0)
    assert found.why.endswith("; 1 run not finished")


# Protocols of the papers


def test_the_best_setting_is_taken_if_the_paper_did_so():
    ours = [*results(68.0, 68.2, 68.4, tuning="a"), *results(70.0, 70.1, 69.9, tuning="b"), *results(60.0, 61, 62)]
    found = judged(*ours, tune="paper")
    assert (found.word, found.values) == ("reproduced", (70.0, 70.1, 69.9))
    assert sorted(found.tried) == pytest.approx([61, 68.2, 70])
    assert found.spread_of_settings == pytest.approx(stats.tstd([61, 68.2, 70]))
    assert found.why.endswith("; best of 3 settings")
    own = judged(*ours, tune="none")
    assert (own.word, own.values, own.tried, own.spread_of_settings) == ("below", (60, 61, 62), (), None)


def test_a_lucky_seed_of_another_setting_does_not_win():
    found = judged(*results(70.0, 70.1, 69.9, tuning="a"), *results(75.0, tuning="b"), tune="paper")
    assert found.values == (70.0, 70.1, 69.9)


def test_a_setting_that_diverged_is_not_the_best():
    found = judged(*results(70.0, tuning="a"), result(None, tuning="b", status="diverged"), tune="paper")
    assert (found.word, found.values) == ("compatible", (70.0,))
    assert judged(result(None, tuning="b", status="diverged"), tune="paper").word == "failed"


def test_tuned_results_do_not_stand_in_for_the_own_setting():
    assert judged(*results(70.0, tuning="a")).why == "there are results of tuned settings only"
    both = judged(*results(70.0, tuning="a"), *results(30.0, reduced="3 of 150 rounds"))
    assert (both.word, both.ours) == ("reduced", 30.0)


def test_a_mean_over_scenes_needs_all_of_them():
    table = entry(
        scenes=("a", "b", "other/c"),
        aggregates=(("avg", "?"),),
        test_samples=((("a", "aggregation"), 10_000), (("b", "aggregation"), 10_000)),
    )
    published = number(setting="avg")
    first, second = results(60.0, 61.0, 62.0, setting="a"), results(80.0, 79.0, 78.0, 1.0, setting="b")
    whole = judged(*first, *second, of=table, published=published)
    assert (whole.word, whole.values) == ("reproduced", (70.0, 70.0, 70.0))
    part = judged(*first, of=table, published=published)
    assert (part.word, part.ours, part.why) == ("missing", None, "1 of 2 scenes have results")
    apart = judged(*first, result(70.0, 7, setting="b"), of=table, published=published)
    assert (apart.word, apart.why) == ("missing", "no seed was run in all scenes")
    less = judged(*first, *results(80, 80, 80, setting="b", reduced="5 rounds"), of=table, published=published)
    assert less.word == "reduced"
    broken = judged(*first, result(None, setting="b", status="failed"), of=table, published=published)
    assert broken.word == "failed"


def test_a_mean_over_scenes_takes_the_best_setting_of_each():
    table = entry(scenes=("a", "b"), aggregates=(("avg", "*"),))
    ours = [result(value, setting=s, tuning=t) for s, t, value in [("a", "x", 60), ("a", "y", 50), ("b", "y", 80)]]
    assert judged(*ours, of=table, published=number(setting="avg"), tune="paper").values == (70.0,)


GAIN = Measure("gain", "aggregation", "lead over FedAvg", percent=False)


def gains_of(*names: str, rule: str = GAIN.rule, **fields):
    """A table of accuracies, and of what they are above others."""
    printed = [number(method=method, **fields) for method in names]
    measures = (Measure("aggregation", "aggregation.accuracy", "last round"), replace(GAIN, rule=rule))
    return entry(measures=measures, numbers=(*printed, number(metric="gain", **fields)), scenes=("a", "b"),
        aggregates=(("avg", "*"),))  # fmt: skip


def test_a_gain_is_that_of_the_numbers_that_are_shown():
    table = gains_of("MAP", "FedAvg", setting="a")
    ours = [
        *(result(value, method=method, setting="a") for method, value in (("MAP", 60.0), ("FedAvg", 55.0))),
        *(result(v, method=m, setting="a", tuning="x") for m, v in (("MAP", 76.5), ("FedAvg", 67.0))),
        result(5.0, setting="a", metric="gain"),  # as it was worked out from untuned runs
    ]
    gain = number(metric="gain", setting="a")
    assert judged(*ours, of=table, published=gain).values == (5.0,)
    assert judged(*ours, of=table, published=gain, tune="paper").values == (9.5,)
    assert judged(*ours[2:4], of=table, published=gain, tune="paper").values == (9.5,)
    short = replace(ours[1], reduced="3 of 150 rounds", rounds=3)
    assert judged(ours[0], short, of=table, published=gain).word == "missing"  # lengths are not mixed


def test_the_gain_of_a_mean_is_that_over_the_best_other_mean():
    table = gains_of("MAP", "MOON", "FedAvg", rule="lead over the best other method", setting="avg")
    accuracies = {"MAP": (80.0, 60.0), "MOON": (78.0, 40.0), "FedAvg": (60.0, 56.0)}  # each is the best other once
    ours = [
        result(v, method=m, setting=s) for m, values in accuracies.items() for s, v in zip("ab", values, strict=True)
    ]
    leads = [result(v, metric="gain", setting=s) for s, v in (("a", 2.0), ("b", 4.0))]
    found = judged(*ours, *leads, of=table, published=number(metric="gain", setting="avg"))
    assert found.values == (70.0 - 59.0,)  # and not 3, the mean of the leads


def test_seconds_of_nothing_are_no_unit():
    table = entry(numbers=(number(method="FedAvg", metric="seconds"), number(metric="seconds")))
    ours = [result(0.0, method="FedAvg", metric="seconds"), result(5.0, metric="seconds")]
    assert (
        judged(*ours, of=table, published=number(metric="seconds")).why
        == "no run of FedAvg of full length to compare with"
    )


@pytest.mark.parametrize(
    ("printed", "note", "half"),
    [("845000", "printed 845k", 500), ("27500", "printed 27.5k", 50), ("845", "", 0.5), ("7.25", "", 0.005)],
)
def test_a_number_is_rounded_where_it_was_printed(printed, note, half):
    assert number(printed, note=note).rounding == half


def test_the_foot_says_what_was_done():
    numbers = (number(), number(metric="seconds"), number("71"))
    table = entry(tuned=True, seeds=5, numbers=numbers)
    verdicts = [judge(n, table, [result(70.0, metric=n.metric)], tune="none") for n in numbers]
    assert [*remarks(table, verdicts, tune="none")] == [
        tolerances.ACCURACY_RULE, tolerances.NO_RULE, verdict.FEW_SEEDS, verdict.UNTUNED,
        "The paper's numbers are means over 5 seeds.",
    ]  # fmt: skip
    assert verdict.TUNED in remarks(table, verdicts, tune="paper")
    assert [*remarks(entry(), verdicts[1:2], tune="none")] == [tolerances.NO_RULE]
    assert [*remarks(table, [judge(number(), table, [], tune="none")], tune="none")] == []  # nothing was compared
