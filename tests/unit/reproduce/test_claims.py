"""Claims are data with known names, and verdicts on them follow from paired differences alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from fedexp.errors import ConfigError
from fedexp.reproduce import published
from fedexp.reproduce.claim_text import STYLES, markdown, show
from fedexp.reproduce.claim_verdict import WORDS, judged
from fedexp.reproduce.claims import KINDS, _claim, _read, claims, measures
from fedexp.reproduce.selection import RULES
from tests.unit.reproduce.fakes import entry, result, results

BETTER, WORSE, UNCLEAR = (72.0, 71.9, 72.2), (68.0, 68.1, 67.9), (70.5, 69.0, 71.5)
BASE = (70.0, 70.1, 69.9)


def above(**fields):
    known = {"kind": "above", "entry": "map/table1", "metric": "aggregation", "higher": "MAP", "lower": ["FedAvg"]}
    return known | {"scenes": ["scene"]} | fields


def claim(*decided_by, **fields):
    return _claim({"id": "map/some", "says": "MAP wins.", "source": "table 1", "decided_by": decided_by} | fields)


def verdict(ours, *decided_by, **fields):
    (found,) = judged(ours, [claim(*decided_by, **fields)])
    return found


def runs(first, second=BASE, **fields):
    return [*results(*first, **fields), *results(*second, **(fields | {"method": "FedAvg"}))]


# One comparison


@pytest.mark.parametrize(
    ("ours", "word"),
    [
        (BETTER, "confirmed"),
        (WORSE, "refuted"),
        (UNCLEAR, "undecided"),
        (BETTER[:2], "undecided"),  # two seeds are too few for an interval
        ((), "not run"),
    ],
)
def test_the_word_follows_from_the_interval(ours, word):
    found = verdict(runs(ours), above())
    assert (found.word, found.said) == (word, word)
    assert len(found.evidence) == (word != "not run")
    assert bool(found.commands) == (word not in ("confirmed", "refuted"))


def test_a_margin_shifts_what_counts():
    slightly_worse = (69.8, 69.9, 69.7)
    assert verdict(runs(slightly_worse), above()).word == "refuted"
    assert verdict(runs(slightly_worse), above(margin=-0.5)).word == "confirmed"
    assert verdict(runs(WORSE), above(margin=-0.5)).word == "refuted"
    assert verdict(runs(BETTER), above(margin=3)).word == "refuted"


def test_only_equal_seeds_are_compared():
    apart = [*results(*BETTER), *(result(70.0, seed, method="FedAvg") for seed in (7, 8, 9))]
    assert verdict(apart, above()).word == "not run"


def test_of_a_failed_run_the_evidence_tells():
    ours = [*runs(BETTER), result(None, 3, status="diverged"), result(70.0, 3, method="FedAvg")]
    found = verdict(ours, above())
    assert (found.word, found.evidence[0].failed) == ("confirmed", 1)
    assert "1 run failed" in str(found.evidence[0])
    assert verdict([result(None, status="failed"), result(1.0, method="FedAvg")], above()).word == "undecided"
    again = [replace(one, entry="map/fig11") for one in ours]  # the same run is on file for two tables
    assert verdict([*ours, *again], above()).evidence[0].failed == 1
    drop = {"kind": "drops", "entry": "map/table1", "metric": "aggregation", "method": "MAP", "scenes": [["a", "b"]]}
    both = [result(None, 0, setting=setting, status="failed") for setting in "ab"]
    assert verdict(both, drop).evidence[0].failed == 2


def test_other_readings_are_told_and_decide_nothing():
    ours = [*runs(WORSE), *results(*BETTER, method="MAP one_stage"), *results(*BASE, method="FedNova shrink")]
    found = verdict(ours, above())
    assert found.said == "refuted"
    assert found.evidence == verdict(runs(WORSE), above()).evidence
    (told,) = [note for note in found.notes if "in place of" in note]
    assert told.startswith("with MAP one_stage in place of MAP, scene: MAP − FedAvg, aggregation: +2.03 [")
    assert told.endswith("(confirmed)")
    assert verdict([*results(*BETTER, method="MAP one_stage"), *runs(())], above()).word == "not run"


def test_runs_with_further_changes_do_not_decide_where_there_are_some_without():
    known = runs(BETTER, reduced="stand-in")
    changed = runs(WORSE, reduced="stand-in, optim.lr=0.05")
    assert verdict([*known, *changed], above()).said == "confirmed (stand-in)"
    assert verdict(changed, above()).said == "refuted (reduced stand-in)"


def test_the_command_is_for_the_scene_that_leaves_it_undecided():
    ours = [*runs(BETTER, setting="a"), *runs(UNCLEAR, setting="b")]
    (command,) = verdict(ours, above(scenes=["a", "b"])).commands
    assert command.endswith("settings=b methods=MAP,FedAvg seeds=3,4,5")


def test_unfinished_and_other_papers_runs_do_not_count():
    assert verdict(runs(BETTER, status="partial"), above()).word == "not run"
    assert verdict(runs(BETTER, entry="fedrs/table1"), above()).word == "not run"
    assert verdict(runs(BETTER, entry="map/fig11"), above()).word == "confirmed"  # the same runs in another figure
    assert verdict(runs(BETTER, tuning="algo.rs.alpha=0.1"), above()).word == "not run"


# Runs that are not the paper's


def test_reduced_runs_decide_with_a_mark():
    found = verdict(runs(BETTER, reduced="50 of 150 rounds"), above())
    assert found.said == "confirmed (reduced)"
    assert "50 of 150 rounds" in str(found.evidence[0])


def test_stand_ins_decide_with_a_mark():
    items = above(scenes=["paper"], stand_ins=["small"])
    assert verdict(runs(BETTER, setting="small"), items).said == "confirmed (stand-in)"
    assert (
        verdict(runs(BETTER, setting="small", reduced="stand-in, 3 of 100 rounds"), items).said
        == "confirmed (reduced stand-in)"
    )
    both = [*runs(WORSE, setting="paper"), *runs(BETTER, setting="small")]
    assert verdict(both, items).said == "refuted"
    unclear = [*runs(UNCLEAR, setting="paper"), *runs(BETTER, setting="small")]
    assert verdict(unclear, items).said == "undecided"  # a stand-in does not overrule the paper's scene
    few = [*runs(BETTER[:1], setting="paper"), *runs(BETTER, setting="small")]
    assert verdict(few, items).said == "confirmed (stand-in)"  # but speaks where that is silent


def test_runs_reduced_in_different_things_are_never_compared():
    ours = [*results(*BETTER), *results(*BASE, method="FedAvg", reduced="3 of 150 rounds")]
    assert verdict(ours, above()).word == "not run"


def test_of_reduced_runs_the_longest_count():
    short = runs(WORSE, reduced="9 of 150 rounds", rounds=9)
    found = verdict([*short, *runs(BETTER, reduced="50 of 150 rounds", rounds=50)], above())
    assert (found.said, len(found.evidence)) == ("confirmed (reduced)", 1)


def test_full_runs_come_before_reduced_ones():
    found = verdict([*runs(BETTER), *runs(WORSE, reduced="50 of 150 rounds")], above())
    assert (found.said, len(found.evidence)) == ("confirmed", 2)


# Several comparisons


def test_every_part_must_be_confirmed():
    both = [above(), above(metric="personalization")]
    assert verdict(runs(BETTER), *both).word == "undecided"
    assert verdict([*runs(BETTER), *runs(BETTER, metric="personalization")], *both).word == "confirmed"
    assert verdict([*runs(BETTER), *runs(WORSE, metric="personalization")], *both).word == "refuted"


def test_scenes_that_were_not_run_do_not_hold_up_a_verdict():
    scenes = above(scenes=["scene", "other"])
    assert verdict(runs(BETTER), scenes).word == "confirmed"
    assert verdict([*runs(BETTER), *runs(BETTER[:1], setting="other")], scenes).word == "confirmed"
    assert verdict([*runs(BETTER), *runs(UNCLEAR, setting="other")], scenes).word == "undecided"
    assert verdict([*runs(BETTER), *runs(WORSE, setting="other")], scenes).word == "refuted"


def test_best_of_several_is_above_each():
    best = above(lower=["FedAvg", "Ditto"])
    assert verdict(runs(BETTER), best).word == "undecided"
    assert verdict([*runs(BETTER), *results(*BASE, method="Ditto")], best).word == "confirmed"
    assert verdict([*runs(BETTER), *results(75, 75.1, 74.9, method="Ditto")], best).word == "refuted"


# The other kinds


def test_a_lead_that_shrinks():
    pair = above(kind="gap_shrinks", scenes=[["scene cohort.fraction=0.1", "scene cohort.fraction=1.0"]])
    wide, narrow = runs(BETTER, tuning="cohort.fraction=0.1"), runs((70.5, 70.6, 70.5), tuning="cohort.fraction=1.0")
    found = verdict([*wide, *narrow], pair)
    assert found.word == "confirmed"
    expected = [(b - a) - (n - a) for b, a, n in zip(BETTER, BASE, (70.5, 70.6, 70.5), strict=True)]
    assert found.evidence[0].differences.values == pytest.approx(expected)
    assert verdict([*runs(BASE, tuning="cohort.fraction=0.1"), *narrow], pair).word == "refuted"
    assert verdict(wide, pair).word == "not run"


def test_a_metric_that_drops():
    told = {"kind": "drops", "entry": "map/table1", "metric": "aggregation", "method": "FedAvg", "scenes": [["a", "b"]]}
    ours = [*results(*BETTER, setting="a", method="FedAvg"), *results(*BASE, setting="b", method="FedAvg")]
    assert verdict(ours, told).word == "confirmed"
    assert verdict(ours, told | {"scenes": [["b", "a"]]}).word == "refuted"


def test_a_series_that_fades():
    told = {"kind": "fades", "entry": "map/fig1", "method": "MAP", "early": "e", "late": "l", "scenes": ["scene"]}
    ours = [*results(0.5, 0.6, 0.55, metric="e"), *results(0.1, 0.2, 0.1, metric="l")]
    assert verdict(ours, told).word == "confirmed"
    assert verdict(ours, told | {"early": "l", "late": "e"}).word == "refuted"


def test_more_than_so_many_times_the_other():
    told = {"kind": "fades", "entry": "map/fig1", "method": "MAP", "early": "e", "late": "l", "scenes": ["scene"]}
    ours = [*results(0.5, 0.6, 0.55, metric="e"), *results(0.1, 0.11, 0.1, metric="l")]
    assert verdict(ours, told | {"times": 2}).word == "confirmed"
    found = verdict(ours, told | {"times": 30})
    assert found.word == "refuted"
    assert "MAP, e − 30 · l" in found.notes[0]
    both = [*results(*BETTER), *results(*BASE, method="FedAvg")]
    assert verdict(both, above()).word == "confirmed"
    assert verdict(both, above(times=2)).word == "refuted"


def test_no_claim_is_left_to_the_eye():
    """What probes have seen decides too: see ``fades`` and ``drops`` of metrics that begin with ``probes.``."""
    assert [c.id for c in claims() if c.probe] == []
    shown = {c.id: {comparison.entry for comparison in c.comparisons} for c in claims()}
    assert shown["map/missing-proxies"] == {"map/fig6"}
    assert shown["fedmr/direction"] == {"fedmr/fig2"}


def test_every_setting_needs_all_settings():
    told = above(kind="every_setting", settings=2, scenes=["scene", "not run"])
    base = results(*BASE, method="FedAvg")
    first, second = results(*BETTER, tuning="a=1"), results(*BETTER, tuning="a=2")
    half = verdict([*base, *first, *results(*BETTER)], told)  # the method's own values are none of the settings
    assert half.word == "undecided"
    assert "1 setting without an interval" in " ".join(half.notes)
    assert "tune=paper" in half.commands[0]
    assert verdict([*base, *first, *second], told).word == "confirmed"
    assert verdict([*base, *first, *second[:2]], told).word == "undecided"
    short = [replace(one, reduced="3 of 150 rounds") for one in [*base, *second]]
    assert verdict([*base, *first, *short], told).word == "undecided"
    assert verdict([*base, *first, *results(*WORSE, tuning="a=2")], told).word == "refuted"
    assert verdict(base, told).word == "not run"


def test_every_setting_needs_all_settings_of_runs_of_one_length():
    told = above(kind="every_setting", settings=2)
    settings = [*results(*BASE, method="FedAvg"), *(r for a in "12" for r in results(*BETTER, tuning=f"a={a}"))]
    short = [replace(one, reduced="3 of 150 rounds") for one in settings]
    assert verdict(short, told).said == "confirmed (reduced)"
    partly = verdict([*short, *(one for one in settings if one.tuning != "a=2")], told)
    assert partly.said == "confirmed (reduced)"
    assert "1 setting without an interval at full length" in " ".join(partly.notes)


def test_the_seeds_of_a_grid_are_those_of_all_of_its_settings():
    def seeds(*tunings):
        ours = [r for tuning in tunings for r in results(*BETTER[:1], tuning=tuning)]
        found = verdict([*results(*BASE[:1], method="FedAvg"), *ours], above(kind="every_setting", settings=2))
        return found.commands[0].split()[-2]

    assert seeds("a=1", "a=2") == "seeds=1,2"
    assert seeds("a=1") == "seeds=0,1,2"


def test_of_runs_that_are_equally_close_to_the_papers_always_the_same_are_taken():
    ways = [(f"3 of 150 rounds, optim.lr={lr}", BETTER if lr == 0.2 else WORSE) for lr in (0.1, 0.2, 0.3, 0.4)]
    ours = [
        replace(one, reduced=label, rounds=3)
        for label, values in ways
        for one in (*results(*BASE, method="FedAvg"), *results(*values))
    ]
    (shown,) = verdict(ours, above()).evidence
    assert shown.reduced.endswith("optim.lr=0.4")


def test_an_unknown_kind_is_named():
    with pytest.raises(ConfigError, match="kind 'over' is not known"):
        claim(above(kind="over"))


# What is printed


def test_a_claim_that_is_left_to_a_probe_says_what_to_look_at():
    found = verdict([], probe="angles of class vectors")
    assert (found.word, found.commands) == ("not run", ())
    assert found.notes == ("look at what a probe has seen: angles of class vectors",)


def test_the_reason_is_given_where_a_claim_is_refuted():
    assert "because of momentum" in verdict(runs(WORSE), above(), because="of momentum").notes
    assert "because of momentum" not in verdict(runs(BETTER), above(), because="of momentum").notes


def test_the_commands_name_the_first_stand_in_and_the_first_scene_of_the_paper():
    found = verdict([], above(scenes=["a", "b"], stand_ins=["c"], higher="FedRS alpha=0.5"))
    assert found.commands == (
        "python -m fedexp.reproduce map/table1 settings=c 'methods=FedRS alpha=0.5,FedAvg' seeds=0,1,2",
        "python -m fedexp.reproduce map/table1 settings=a 'methods=FedRS alpha=0.5,FedAvg' seeds=0,1,2",
    )


def test_the_command_asks_for_more_seeds_where_those_that_were_run_do_not_decide():
    def seeds(ours):
        (command,) = verdict(runs(ours), above()).commands
        return command.rpartition("seeds=")[2]

    assert seeds(UNCLEAR[:2]) == "2"
    assert seeds(UNCLEAR) == "3,4,5"
    assert verdict(runs([*UNCLEAR, *UNCLEAR], [*BASE, *BASE]), above()).commands == ()  # a second look is the last


def test_seeds_of_stand_ins_that_were_run_are_not_asked_for_again():
    ours = runs(UNCLEAR, setting="stand-in/c", reduced="stand-in")
    command, *_ = verdict(ours, above(scenes=["a"], stand_ins=["stand-in/c"])).commands
    assert command.endswith("settings=stand-in/c methods=MAP,FedAvg seeds=3,4,5")


def test_much_evidence_is_cut_and_refutations_come_first():
    scenes = [f"s{n}" for n in range(12)]
    ours = [r for s in scenes for r in runs(WORSE if s == "s11" else BETTER, setting=s)]
    notes = verdict(ours, above(scenes=scenes)).notes
    assert notes[0].startswith("s11: MAP − FedAvg, aggregation: −2.00 [")
    assert notes[-1] == "and 4 more, 4 confirmed"


def test_both_forms():
    verdicts = judged(runs(BETTER), [claim(above(margin=-0.5)), claim(above(scenes=["other"]))])
    line = "scene: MAP − FedAvg, aggregation: +2.03 [+1.41, +2.66], 3 seeds: +2.00 +1.80 +2.30 (confirmed, margin −0.5)"
    command = "python -m fedexp.reproduce map/table1 settings=other methods=MAP,FedAvg seeds=0,1,2"
    assert markdown(verdicts) == (
        "2 claims: 1 confirmed, 1 not run.\n\n"
        f"### map\n\n- **confirmed**: MAP wins. (table 1)\n  - {line}\n"
        f"- **not run**: MAP wins. (table 1)\n  - to decide it: `{command}`\n"
    )
    console = Console(width=40, record=True, force_terminal=False)
    with console.capture() as printed:
        show(verdicts, console)
    assert printed.get() == (
        f"\nmap\n  confirmed: MAP wins. (table 1)\n    {line}\n  not run: MAP wins. (table 1)\n    {command}\n"
    )


def test_every_word_has_a_style():
    assert set(STYLES) == set(WORDS)


# The claims themselves


def test_each_paper_has_a_few_claims_and_none_is_empty():
    papers = [c.paper for c in claims()]
    assert {paper: papers.count(paper) for paper in papers}.keys() == {"map", "fedrs", "fedrema", "fedmr", "fedgela"}
    assert all(3 <= papers.count(paper) <= 6 for paper in papers)
    assert len({c.id for c in claims()}) == len(papers)
    assert [c.id for c in claims() if bool(c.comparisons) == bool(c.probe)] == []


def test_without_results_nothing_is_decided():
    assert {v.said for v in judged([])} == {"not run"}
    assert all(v.commands or v.claim.probe for v in judged([]))


def test_measures_of_claims_reach_the_runs_that_need_them_only():
    fedrs = entry(id="fedrs/table1")
    (deviation,) = measures(fedrs, "FedRS alpha=0.5")
    assert (deviation.metric, deviation.rule, deviation.percent) == (
        "accuracy_deviation", "deviation of the last 50 rounds", True,
    )  # fmt: skip
    assert measures(fedrs, "Scaffold") == ()
    assert {m.metric for m in measures(entry(id="fedrema/table5"), "FedReMa MDS")} == {"gap_early", "gap_late"}
    assert measures(entry(id="fedrema/table5"), "FedAvg") == measures(entry(), "MAP") == ()
    assert measures(entry(id="fedrs/table1", measures=(deviation,)), "FedAvg") == ()


@pytest.mark.parametrize("of", [c for c in claims() if c.comparisons], ids=lambda c: c.id)
def test_all_names_of_a_claim_are_known(of):
    for comparison in of.comparisons:
        known = published.entry(comparison.entry)
        assert known.paper == of.paper
        for term in comparison.terms:
            metrics = {m.metric: m.rule for m in (*known.measures, *measures(known, term.method))}
            assert term.setting in (known.stand_ins if comparison.stand_in else known.scenes)
            assert published.method(of.paper, term.method).overrides is not None
            assert term.method in known.rows
            assert metrics[term.metric] in RULES
            varied = {f"{key}={value}" for key, values in known.varied for value in values}
            assert term.tuning in (varied or ({"", "*"} if comparison.settings else {""}))


def test_numbers_of_settings_are_those_of_the_grids():
    for comparison in (c for of in claims() for c in of.comparisons if c.settings):
        (method,) = {term.method for term in comparison.terms if term.tuning == "*"}
        assert len(published.method("map", method).grid) == comparison.settings


@pytest.mark.parametrize("of", [c for c in claims() if c.comparisons], ids=lambda c: c.id)
def test_the_papers_own_numbers_do_not_contradict_the_claim(of):
    """Where all cells of a comparison are printed, its sum is above the margin in most scenes."""
    for part in {c.part for c in of.comparisons}:
        sums = []
        for comparison in (c for c in of.comparisons if c.part == part):
            paper = [n for e in published.entries().values() if e.paper == of.paper for n in e.numbers]
            cells = {n.cell: n.value for n in paper if n.metric != "network"}
            wanted = [(term.weight, (term.setting, term.method, term.metric)) for term in comparison.terms]
            if all(cell in cells for _, cell in wanted) and not any(term.tuning for term in comparison.terms):
                sums.append(sum(weight * cells[cell] for weight, cell in wanted) > comparison.margin)
        assert sum(sums) >= len(sums) / 2, part


def test_every_kind_is_used():
    assert {item["kind"] for told in _read()["claims"] for item in told.get("decided_by", ())} == set(KINDS)


def test_claims_are_judged_without_torch_and_without_scipy_until_there_is_an_interval():
    heavy = "print({'torch', 'scipy'} & set(sys.modules))"
    code = f"import sys; from fedexp.reproduce.claim_verdict import judged; judged([]); {heavy}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
