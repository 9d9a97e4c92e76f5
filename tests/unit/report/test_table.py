"""Tables of any metric: the statistics are written again, and every form says the same."""

from __future__ import annotations

import csv
import io
import math
import statistics

import pytest
from rich.console import Console

from fedexp.errors import ConfigError
from fedexp.report.load import load
from fedexp.report.table import make_table
from tests.unit.report import made
from tests.unit.report.made import ROUNDS, aggregation, write_run

T_975_WITH_2_DEGREES = 4.302652729911275
SEEDS = (0, 1, 2)


def rows_of(table):
    return {(row["row"], row["metric"]): row for row in csv.DictReader(io.StringIO(table.csv()))}


def test_mean_deviation_and_interval_over_seeds(runs):
    row = rows_of(make_table(runs, metric=["aggregation.mean"]))["map", "aggregation.mean"]
    values = [100 * aggregation("map", seed, ROUNDS) for seed in SEEDS]
    half = T_975_WITH_2_DEGREES * statistics.stdev(values) / math.sqrt(3)
    assert float(row["mean"]) == pytest.approx(statistics.fmean(values))
    assert float(row["std"]) == pytest.approx(statistics.stdev(values))
    assert float(row["interval_high"]) == pytest.approx(statistics.fmean(values) + half)
    assert [float(value) for value in row["values"].split()] == pytest.approx(values)


def test_differences_are_paired_by_seed(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path, "fedavg", seed)
    for seed in (0, 2):
        write_run(tmp_path, "map", seed)  # seed 1 is missing
    row = rows_of(make_table(load(tmp_path), metric=["aggregation.mean"], compare="fedavg"))["map", "aggregation.mean"]
    assert (row["pairs"], row["compared_with"]) == ("2", "fedavg")
    assert float(row["difference"]) == pytest.approx(10.0)  # not 10 + what the missing seed does to the mean


def test_the_runs_of_a_cell_may_be_told_apart_by_their_names(runs):
    by_run, by_seed = (rows_of(make_table(runs, metric=["aggregation.mean"], over=over)) for over in ("run", "seed"))
    assert by_run["map", "aggregation.mean"]["n"] == "3"
    assert [row["mean"] for row in by_run.values()] == [row["mean"] for row in by_seed.values()]
    alone = make_table(runs, metric=["aggregation.mean"], rows=["run"], over="run")
    assert len(alone.rows) == 12


def test_ranks_are_over_columns_and_seeds(runs):
    table = make_table(runs, metric=["aggregation.mean", "aggregation.loss"])
    assert table.ranks == {"map": 1.0, "scaffold": 2.0, "fedavg": 3.0, "fedrs": 4.0}  # less loss is better
    assert make_table(runs, metric=["seconds.train"]).ranks == dict.fromkeys(table.rows, 2.5)


@pytest.mark.parametrize("metric", ["missing.forgotten", "missing.predicted_owned"])
def test_what_is_not_better_where_there_is_more_is_neither_ranked_nor_best(tmp_path, metric):
    for algo in ("fedavg", "map"):
        result = write_run(tmp_path, algo, 0, done=False)
        result.append_record({"round": ROUNDS + 1, "missing": {metric.partition(".")[2]: made.BASE[algo], "absent": 1}})
        result.conclude({"status": "finished", "rounds": ROUNDS})
    table = make_table(load(tmp_path), metric=[metric])
    assert (table.ranks, table.columns[0].best) == ({}, {})
    assert "Rank" not in table.caption
    both = make_table(load(tmp_path), metric=["aggregation.accuracy", metric], rule="best round")
    assert both.ranks == {"map": 1.0, "fedavg": 2.0}


def test_ranks_say_what_they_leave_out(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path, "fedavg", seed)
    write_run(tmp_path, "map", 0)
    table = make_table(load(tmp_path), metric=["aggregation.mean"])
    assert table.ranks == {"map": 1.0, "fedavg": 2.0}
    assert "the 1 of 3 columns and seeds that all rows have" in table.caption


def test_a_metric_of_rounds_is_taken_by_a_rule(runs):
    taken = rows_of(make_table(runs, metric=["aggregation.loss"], rule="best round"))["map", "aggregation.loss"]
    assert float(taken["mean"]) == pytest.approx(
        statistics.fmean(1 - aggregation("map", seed, 1) for seed in SEEDS)  # the rule takes the largest
    )
    with pytest.raises(ConfigError, match=r"Did you mean 'best round'"):
        make_table(runs, metric=["aggregation.loss"], rule="best rounds")


def test_rows_and_columns_by_any_setting(swept):
    table = make_table(
        load(swept), metric=["aggregation.mean"], rows=["algo", "algo.rs.alpha"], columns=["local.epochs"]
    )
    assert table.rows == ("fedavg", "fedrs alpha=0.01", "fedrs alpha=0.1", "fedrs alpha=0.9")
    assert [column.title for column in table.columns] == ["epochs=1", "epochs=5"]
    assert table.columns[0].spreads[3].mean == pytest.approx(
        statistics.fmean(100 * aggregation("fedrs", seed, ROUNDS, 0.9) for seed in (0, 1))
    )


def test_runs_that_a_cell_cannot_tell_apart_are_refused(swept):
    with pytest.raises(ConfigError, match=r"fedavg: 2 runs have seed=0; they differ in local.epochs"):
        make_table(load(swept), metric=["aggregation.mean"])


def test_runs_without_personal_models_have_the_other_goal(tmp_path, monkeypatch):
    result = made._result
    monkeypatch.setattr(made, "_result", lambda *a, **k: {**result(*a, **k), "personalization": {}})
    made.write_run(tmp_path, "fedavg", 0)
    assert [column.title for column in make_table(load(tmp_path)).columns] == ["aggregation.mean (%)"]


def test_where_there_is_no_interval_it_is_said(swept):
    two = load(swept).where({"local.epochs": ["5"], "algo": ["fedavg"]})
    assert "mean [95 % interval where there are 3 seeds] over 2 seeds." in make_table(two, show="interval").caption
    assert "with 95 % interval where there are 3 seeds." in make_table(two, compare="fedavg").caption


def test_unfinished_runs_are_left_out_and_told(tmp_path):
    write_run(tmp_path, "fedavg", 0)
    write_run(tmp_path, "map", 0, done=False)
    table = make_table(load(tmp_path))
    assert table.rows == ("fedavg",)
    assert table.notes == ("Left out: 1 run not finished: map-0-None-5 (partial)",)


def test_wrong_names_get_the_nearest(runs):
    with pytest.raises(ConfigError, match=r"no finished run has such a metric. Did you mean 'aggregation.mean'"):
        make_table(runs, metric=["aggregation.men"])
    with pytest.raises(ConfigError, match=r"compare=fedav: there is no such row. Did you mean 'fedavg'"):
        make_table(runs, compare="fedav")
    with pytest.raises(ConfigError, match=r"show=std"):
        make_table(runs, show="std")


# ---------------------------------------------------------------- forms
def shown(table, width):
    console = Console(file=io.StringIO(), width=width)
    table.print(console)
    return console.file.getvalue()


def test_the_terminal_is_never_exceeded(runs):
    table = make_table(runs, compare="fedavg", metric=["aggregation.mean", "personalization.mean", "aggregation.loss"])
    narrow, wide = shown(table, 72), shown(table, 200)
    assert max(map(len, narrow.splitlines())) <= 72
    assert narrow.count("scaffold") > wide.count("scaffold") == 1  # blocks, each with the names of the rows
    assert "72.0 ± 2.0" in narrow  # map: 100 * (0.5 + 0.02 + 0.2)
    assert "+10.0 [+10.0, +10.0]" in narrow


def test_best_first(runs):
    assert make_table(runs, sort="value").rows == ("map", "scaffold", "fedavg", "fedrs")
    assert make_table(runs, sort="value", metric=["aggregation.loss"]).rows[0] == "map"


@pytest.mark.parametrize(
    ("show", "text"), [("mean±std", "72.0 ± 2.0"), ("interval", "72.0 [67.0, 77.0]"), ("values", "70.0 72.0 74.0")]
)
def test_what_a_cell_shows(runs, show, text):
    assert (
        f"| map | **{text.replace('[', chr(92) + '[').replace(']', chr(92) + ']')}** |"
        in make_table(runs, metric=["aggregation.mean"], show=show).markdown()
    )


def test_a_row_of_latex_does_not_begin_with_a_bracket(runs):
    text = make_table(runs.where({"algo": ["map"]}), metric=["aggregation.mean"], rows=["model.hidden"]).latex()
    assert "\n{}[8, 8] & 72.0" in text


def test_what_is_equal_as_written_is_equally_good(tmp_path):
    for algo, seconds in (("fedavg", 10.001), ("map", 10.002), ("fedrs", 12.0)):
        rundir = write_run(tmp_path, algo, 0, done=False)
        rundir.conclude({"status": "finished", "rounds": ROUNDS, "seconds": {"train": seconds}})
    (column,) = make_table(load(tmp_path), metric=["seconds.train"]).columns
    assert column.best == {0: 1, 1: 2, 2: 1}  # fedavg, fedrs, map


def test_latex_escapes_and_marks(runs):
    text = make_table(runs, metric=["aggregation.mean"], compare="fedavg").latex()
    assert r"map & \textbf{72.0 $\pm$ 2.0} & +10.0 [+10.0, +10.0] & 1.0 \\" in text
    assert r"\underline{67.0 $\pm$ 2.0}" in text
    assert r"aggregation.mean (\%)" in text
    assert text.count(r"\begin{tabular}{lrrr}") == text.count(r"\end{tabular}") == 1
