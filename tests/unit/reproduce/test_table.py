"""Tables with ours beside the published numbers, in all their forms."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from fedexp.reproduce.entry import Entry, Method, Number, Scene
from fedexp.reproduce.measure import Measure
from fedexp.reproduce.results import Result
from fedexp.reproduce.tables.cells import Column, TableCell
from fedexp.reproduce.tables.making import make_table
from fedexp.reproduce.tables.tidy import csv_rows
from fedexp.reproduce.tolerance import Tolerance
from fedexp.reproduce.verdict import Verdict, judge
from tests.unit.reproduce.sweep import GOLDEN, ODD, asked, entry, method, table


def shown(one, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    one.show(console)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


FORMS = {
    "terminal-80.txt": lambda one: shown(one, 80),
    "terminal-140.txt": lambda one: shown(one, 140),
    "table.md": lambda one: one.markdown(),
    "table.tex": lambda one: one.latex(),
    "table.csv": lambda one: one.csv(),
}


def result(**changes) -> Result:
    one = Result(
        "demo/fig1", "mnist/mlp", "MAP", "accuracy", 0, "", 50.0, "done", "", 150, "last round", "r", "c", 1.0, "p", "v"
    )
    return replace(one, **changes)


@pytest.mark.parametrize("name", FORMS)
def test_the_small_sweep_gives_the_golden_table(name, request):
    path, now = GOLDEN / name, FORMS[name](table())
    if request.config.getoption("--regold"):
        path.write_text(now)
    assert now == path.read_text(), "if this is meant: pytest tests/unit/reproduce/test_table.py --regold"


# ---------------------------------------------------------------- what a table says
@pytest.mark.parametrize("width", [80, 140])
def test_no_line_but_commands_is_wider_than_the_terminal(width):
    lines = shown(table(), width).splitlines()
    assert max(len(line) for line in lines if "python -m" not in line) <= width


@pytest.mark.parametrize("write", [lambda one: shown(one, 80), lambda one: one.markdown(), lambda one: one.csv()])
def test_every_verdict_is_a_word(write):
    words = {"reproduced", "compatible", "above", "below", "reduced", "failed", "missing", "unjudged"}
    assert words <= set(re.findall(r"\w+", write(table())))


def test_a_failed_and_a_diverged_run_are_cells_that_say_so():
    text = shown(table(), 80)
    assert re.search(r"FedProx +diverged +92\.5 ± 0\.5 +failed\n", text)
    assert re.search(r"FedRS alpha=0\.5 +failed +62\.5 +failed\n", text)
    assert "FedProx, mnist/mlp, seed 0: diverged after 12 rounds: the loss is not finite (run r10)" in " ".join(
        text.split()
    )
    assert r"FedProx & diverged$^{\times}$ & " in table().latex()


def test_another_reading_is_proposed_where_ours_is_below_or_above_until_it_was_run():
    names = {"Scaffold momentum": "Scaffold", "MAP one_stage": "MAP", "FedAvg samples": "FedAvg"}
    readings = [Method("demo", name, ("algo=fedavg",), "steps are longer", reading_of=of) for name, of in names.items()]
    before = table(readings=readings)
    assert before.commands == table().commands
    text = shown(before, 140)
    assert "'methods=Scaffold momentum,MAP one_stage' seeds=0,1,2\n" in text  # FedAvg is reproduced
    run = result(entry="demo/table1", method="Scaffold momentum", value=91.25)
    after = table(run, readings=readings)
    text = shown(after, 140)
    assert (
        "Scaffold momentum, mnist/mlp: 91.2 with seed 0, where Scaffold has 87.2, published 91.0 ± 0.5 (+0.2), "
        "compatible. Here steps are longer."
    ) in " ".join(text.split())
    assert "'methods=MAP one_stage' seeds=0,1,2\n" in text
    assert (after.rows, after.outcome, after.cells) == (before.rows, before.outcome, before.cells)


def test_another_reading_is_told_without_a_published_number_too_and_by_metric_if_there_are_several():
    reading = Method("demo", "MAP one_stage", ("algo=map",), "all steps are uploaded", reading_of="MAP")
    place = {"entry": "demo/table1", "setting": "stand-in/mlp", "metric": "loss", "reduced": "stand-in"}
    usual = [result(method="MAP", value=value, seed=seed, **place) for seed, value in enumerate((70.0, 90.0))]
    for seed, told in [(0, "72.0† with seed 0, where MAP has 70.0†, reduced"), (7, "72.0† with seed 7, reduced")]:
        other = result(method=reading.name, value=72.0, seed=seed, **place)
        text = " ".join(shown(table(*usual, other, readings=[reading]), 140).split())
        assert f"MAP one_stage, stand-in/mlp, loss: {told}. Here all steps are uploaded." in text


def test_reduced_runs_are_labelled_in_heading_cell_and_csv():
    one = table()
    assert one.heading.startswith("demo/table1 (partly reduced): ")
    assert "Reduced, without verdict (†): 30 of 150 rounds (1 cell)." in shown(one, 80)
    assert re.search(r"FedAvg +58\.2† .* reduced\n", shown(one, 80))
    assert r"58.2$^{\dagger}$" in one.latex()
    assert [row["reduced"] for row in csv_rows(one) if row["verdict"] == "reduced"] == ["30 of 150 rounds"]


def test_a_reduced_run_that_failed_is_labelled_too():
    cell = TableCell("s", "m", "k", "", None, 1.0, {0: 1.0}, "failed", (result(reduced="3 of 150 rounds"),))
    assert cell.reduced == "3 of 150 rounds"


def test_a_mean_over_reduced_cells_is_labelled_by_its_verdict():
    number = Number("demo/table1", "", "avg", "MAP", "accuracy", "1.0", None)
    verdict = Verdict("reduced", 1.0, {0: 1.0}, None, number, 0.0, Tolerance(None, ""), "stand-in")
    means = entry(numbers=(number,), scenes=("mnist/mlp",), aggregates=(("avg", "*"),))
    one = make_table(asked(means), {number.cell: verdict}, [])
    assert one.cells[0].reduced == "stand-in"
    assert [(row["value"], row["reduced"]) for row in csv_rows(one) if row["setting"] == "avg"] == [(1.0, "stand-in")]


def test_three_seeds_are_shown_as_they_are_and_more_by_their_deviation():
    text = shown(table(), 80)
    assert re.search(r"FedAvg +90\.1 +90\.0 90\.3 90\.0 +90\.0 ± 0\.5 +\+0\.1 +reproduced\n", text)
    five = TableCell("s", "m", "k", "", None, 3.0, dict(enumerate([1.0, 2.0, 3.0, 4.0, 5.0])), "", ())
    assert Column("s", (five,), ranked=True).fields["seeds"] == ["± 1.6 of 5"]


def test_the_best_of_several_settings_has_their_deviation_behind_it():
    one = entry(
        numbers=(Number("demo/table1", "", "mnist/mlp", "MAP", "accuracy", "93.0", 0.46),),
        tuned=True,
        scenes=("mnist/mlp",),
    )
    tried = [result(value=value, tuning=f"a={value}") for value in (90.0, 92.0, 94.0)]
    verdicts = {one.numbers[0].cell: judge(one.numbers[0], one, tried, tune="paper")}
    best = make_table(asked(one, tune="paper"), verdicts, tried)
    assert re.search(r"MAP +94\.0 ± 2\.00 +93\.0 ± 0\.46 +\+1\.0 ", shown(best, 80))
    assert "± of ours is the standard deviation over the hyper-parameter settings that were tried." in shown(best, 120)
    assert r"94.0 $\pm$ 2.00" in best.latex()
    assert {row["spread_of_settings"] for row in csv_rows(best) if row["method"] == "MAP"} == {2.0}


def test_columns_in_which_nothing_was_run_are_named_by_their_command_only():
    text = shown(table(), 80)
    assert "80.1" not in text
    assert "  python -m fedexp.reproduce demo/table1 settings=svhn/cnn methods=FedAvg seeds=0,1,2\n" in text


def test_if_nothing_was_run_the_published_table_is_shown():
    one = make_table(asked(entry()), {}, [])
    assert "0 of 11 printed numbers run: 11 missing" in shown(one, 80)
    assert re.search(r"MAP +– +93\.0 ± 0\.5 +missing", shown(one, 80))
    assert one.commands == (
        "python -m fedexp.reproduce demo/table1 settings=mnist/mlp seeds=0",
        "python -m fedexp.reproduce demo/table1 settings=cifar10/cnn 'methods=FedAvg,FedRS alpha=0.5,MAP' seeds=0",
        "python -m fedexp.reproduce demo/table1 settings=svhn/cnn methods=FedAvg seeds=0",
    )


def test_a_command_leaves_out_the_methods_only_if_it_is_for_all_of_the_entry():
    whole = asked(entry(numbers=entry().numbers[:1]))
    (command,) = make_table(replace(whole, methods=whole.methods[:1]), {}, []).commands
    assert "methods=FedAvg" in command


def test_each_hyper_parameter_setting_that_is_to_be_run_can_be_a_hole():
    number = Number("demo/table1", "", "mnist/mlp", "MAP", "accuracy", "50.0", None)
    tried = [result(tuning="a=1"), result(tuning="a=2")]
    for grid, complete in ((("a=1", "a=2"), True), (("a=1", "a=2", "a=3"), False), ((), False)):
        tuned = method("MAP", grid=tuple((override,) for override in grid))
        one = entry(numbers=(number,), scenes=("mnist/mlp",), methods=(tuned,), tuned=True)
        assert (make_table(asked(one, tune="paper"), {}, tried).commands == ()) == complete


def test_in_a_cell_of_ours_only_runs_of_full_length_count_if_there_are_any():
    figure = Entry(id="demo/fig1", kind="train", title="Curves", measures=entry().measures, methods=(method("MAP"),))
    short = result(seed=1, value=10.0, reduced="3 of 150 rounds")
    (cell_,) = make_table(asked(figure), {}, [result(value=50.0), short]).cells
    assert (cell_.ours, cell_.word) == (50.0, "")
    (cell_,) = make_table(asked(figure), {}, [short]).cells
    assert (cell_.ours, cell_.word) == (10.0, "reduced")


def test_a_run_that_is_not_finished_has_not_been_run():
    one = entry(numbers=entry().numbers[:1], scenes=("mnist/mlp",))
    partial = result(method="FedAvg", status="partial", value=None)
    assert make_table(asked(one), {}, [partial]).extent == "0 of 1 printed number run"


def cell(method: str, *values: float, reduced: str = "", first: int = 0) -> TableCell:
    by_seed = dict(enumerate(values, first))
    ours = sum(values) / len(values) if values else None
    return TableCell("s", method, "k", "", None, ours, by_seed, "", (result(reduced=reduced),))


def test_methods_are_compared_with_fedavg_by_seed():
    one = Column("s", (cell("MAP", 71.0, 72.0, 70.0), cell("FedAvg", 70.0, 71.2, 68.8, 10.0)), ranked=True)
    assert one.reference is one.cells[1]
    assert one.lead(one.cells[0]).by_seed == pytest.approx({0: 1.0, 1: 0.8, 2: 1.2})
    assert one.leads == ["+1.0 [+0.5, +1.5]", ""]
    two = Column("s", (cell("MAP", 71.0, 72.0), cell("MOON", 70.0, 71.2)), ranked=True)
    assert two.leads == ["", "−0.9"]


@pytest.mark.parametrize(
    "other",
    [
        cell("MAP", 71.0),  # one seed says nothing
        cell("MAP", 71.0, 72.0, first=7),  # other seeds
        cell("MAP", 71.0, 72.0, reduced="3 of 150 rounds"),  # less than the paper's, unlike FedAvg's
    ],
)
def test_what_shares_too_little_with_fedavg_is_not_compared(other):
    one = Column("s", (cell("FedAvg", 70.0, 71.2), other), ranked=True)
    assert one.reference is one.lead(other) is None
    assert one.leads == ["", ""]


def test_a_figure_compares_methods_with_the_same_setting():
    cells = [
        replace(cell(method, *values), tuning=tuning)
        for tuning, values in (("q=0.1", (50.0, 52.0)), ("q=1", (70.0, 72.0)))
        for method, values in (("FedAvg", values), ("FedRS", [value - 1 for value in values]))
    ]
    one = Column("s", tuple(cells), ranked=True)
    assert one.leads == ["", "−1.0", "", "−1.0"]


def test_runs_of_different_lengths_are_not_averaged():
    short = result(value=30.0, seed=1, reduced="1 of 30 rounds", rounds=1)
    own = asked(entry(numbers=(), scenes=("mnist/mlp",), methods=(method("MAP"),)))
    (cell,) = make_table(own, {}, [result(value=80.0), short]).cells
    assert (cell.ours, cell.reduced) == (80.0, "")
    longer = result(value=50.0, seed=2, reduced="9 of 30 rounds", rounds=9)
    (cell,) = make_table(own, {}, [short, longer]).cells
    assert cell.ours == 50.0


def test_what_is_asked_for_of_stand_ins_alone_is_missing_until_it_was_run():
    one = entry(numbers=(), scenes=(), stand_ins=("stand-in/mlp",), methods=(method("MAP"),))
    assert [(c.setting, c.word) for c in make_table(asked(one), {}, []).cells] == [("stand-in/mlp", "missing")]


def test_a_reduced_number_is_marked_beside_whole_runs_of_settings_that_do_not_count():
    number = Number("demo/table1", "", "mnist/mlp", "MAP", "accuracy", "50.0", None)
    ours = [result(value=60.0, reduced="3 of 150 rounds", rounds=3), result(value=70.0, tuning="algo.rs.alpha=0.5")]
    one = entry(numbers=(number,), scenes=("mnist/mlp",), methods=(method("MAP"),))
    (cell,) = make_table(asked(one), {number.cell: judge(number, one, ours, tune="none")}, ours).cells
    assert (cell.ours, cell.word, cell.reduced) == (60.0, "reduced", "3 of 150 rounds")


def test_a_bound_is_no_number_to_subtract():
    number = Number("demo/table1", "", "s", "MAP", "accuracy", "3000", None, "lower bound: printed >3000s")
    one = entry(numbers=(number,), scenes=("s",), methods=(method("MAP"),))
    ours = [result(setting="s", value=6000.0)]
    (column,) = make_table(asked(one), {number.cell: judge(number, one, ours, tune="none")}, ours).columns
    assert column.fields["published"] == [">3000"]
    assert "difference" not in column.fields


def test_other_readings_are_rows_of_the_csv_file_too():
    reading = Method("demo", "MAP one_stage", ("algo=map",), "all steps are uploaded", reading_of="MAP")
    other = result(entry="demo/table1", method=reading.name, value=72.0)
    (row,) = (row for row in csv_rows(table(other, readings=[reading])) if row["method"] == reading.name)
    assert (row["value"], row["verdict"]) == (72.0, "below")


def test_holes_are_seeds_that_were_asked_for_and_are_not_done():
    lacking = [command.partition("settings=")[2] for command in table().commands]
    assert lacking[:3] == [
        "mnist/mlp 'methods=FedRS alpha=0.5' seeds=2",
        f"mnist/mlp 'methods=Scaffold,{ODD}' seeds=1,2",
        "mnist/mlp methods=FedProx,Ditto seeds=0,1,2",  # FedProx has failed
    ]
    paper = table(tune="paper", rounds=3)
    assert all(command.endswith(" tune=paper rounds=3") for command in paper.commands)


def test_one_command_serves_all_settings_that_lack_the_same():
    def number(setting, method):
        return Number("demo/table1", "", setting, method, "accuracy", "50.0", None)

    scenes = ("mnist/mlp", "svhn/cnn", "cifar10/cnn")
    numbers = tuple(number(setting, method) for setting in scenes for method in ("FedAvg", "MAP"))
    ours = [result(setting="mnist/mlp", method="FedAvg"), result(setting="svhn/cnn", method="FedAvg")]
    one = entry(numbers=numbers, scenes=scenes, methods=(method("FedAvg"), method("MAP")))
    commands = make_table(asked(one, seeds=(0, 1), any_seed=False), {}, ours).commands
    assert [command.partition("settings=")[2] for command in commands] == [
        "mnist/mlp,svhn/cnn methods=FedAvg seeds=1",
        "mnist/mlp,svhn/cnn methods=MAP seeds=0,1",
        "cifar10/cnn seeds=0,1",
    ]


def test_numbers_that_are_computed_from_others_are_no_holes():
    gain = Measure("gain", "accuracy", "lead over FedAvg", percent=False)
    numbers = (
        Number("demo/table1", "", "mnist/mlp", "MAP", "accuracy", "50.0", None),
        Number("demo/table1", "", "mnist/mlp", "MAP", "gain", "1.0", None),
        Number("demo/table1", "", "avg", "MAP", "accuracy", "50.0", None),
    )
    one = entry(numbers=numbers, scenes=("mnist/mlp",), methods=(method("MAP"),), measures=(*entry().measures, gain))
    assert make_table(asked(one), {}, [result()]).commands == ()
    assert make_table(asked(one), {}, [result(metric="gain")]).commands != ()


def test_what_is_assumed_is_said_once_for_scenes_that_share_it():
    assert "  mnist/mlp, cifar10/cnn: batch\n" in shown(table(), 80)


def test_rows_that_a_block_has_no_cell_for_are_left_out():
    block = shown(table(), 80).partition("cifar10/cnn")[2].partition("Differences between")[0]
    assert re.findall(r"^(\w+)", block, re.MULTILINE) == ["method", "FedAvg", "FedRS", "MAP"]


def test_a_difference_that_is_written_as_zero_has_no_minus():
    assert Column("s", (), ranked=True).written(-0.04, sign="+") == "+0.0"


# ---------------------------------------------------------------- best and second
def column(*values: float | None, reduced: dict[int, str] | None = None, ranked: bool = True) -> Column:
    cells = [
        TableCell("s", "m", "k", "", None, value, {}, "", (result(reduced=(reduced or {}).get(row, "")),))
        for row, value in enumerate(values)
    ]
    return Column("s", tuple(cells), ranked)


@pytest.mark.parametrize(
    ("one", "ranks"),
    [
        (column(3.0, 1.0, 2.0), {0: 1, 2: 2}),
        (column(3.0, 3.0, 2.0, 1.0), {0: 1, 1: 1, 2: 2}),
        (column(3.0, 2.0, 2.0), {0: 1, 1: 2, 2: 2}),
        (column(3.01, 2.99, 1.0), {0: 1, 1: 1, 2: 2}),  # equal as written
        (column(3.0, None, None), {}),
        (column(3.0, None, 2.0), {0: 1, 2: 2}),
        (column(3.0, 2.0, ranked=False), {}),
        (column(9.0, 2.0, 1.0, reduced={0: "stand-in"}), {1: 1, 2: 2}),
        (column(3.0, 2.0, reduced={0: "3 of 150 rounds", 1: "3 of 150 rounds"}), {0: 1, 1: 2}),
        (column(3.0, 2.0, reduced={0: "3 of 150 rounds", 1: "5 of 150 rounds"}), {}),
    ],
)
def test_best_and_second(one, ranks):
    assert one.our_ranks == ranks


def test_differences_between_methods_are_in_the_table():
    assert re.search(r"mnist/mlp, less FedAvg\n.*\n  MAP +\+4\.4 \[\+3\.7, \+5\.1\]\n", shown(table(), 80))
    assert r"| MAP | +4.4 \[+3.7, +5.1\] |" in table().markdown()
    (row, *_) = [row for row in csv_rows(table()) if row["method"] == "MAP"]
    assert (row["reference"], row["lead"]) == ("FedAvg", pytest.approx(4.4))
    assert (row["lead_low"], row["lead_high"]) == pytest.approx((3.7, 5.1), abs=0.05)


def test_best_is_bold_and_second_underlined():
    place = {"entry": "demo/table1", "value": 90.0}
    few = {"FedRS alpha=0.5": [2], "Scaffold": [1, 2], ODD: [1, 2]}
    one = table(*(result(method=name, seed=seed, **place) for name, seeds in few.items() for seed in seeds))
    tex, markdown = one.latex(), one.markdown()
    assert re.search(r"MAP & \\textbf\{94\.5\}\$\^\{\+\}\$ & \\textbf\{93\.0 \$\\pm\$ 0\.5\}", tex)
    assert re.search(r"FedProx & diverged\S* & \\underline\{92\.5", tex)
    assert "| MAP | **94.5** | 94.3 94.5 94.7 | **93.0 ± 0.5** |" in markdown
    assert "<ins>92.5 ± 0.5</ins>" in markdown
    assert "| <ins>91.2</ins> | 92.4 91.2 90.0 |" in markdown


def test_a_run_that_ended_without_the_number_is_no_hole():
    one = entry(numbers=entry().numbers[:1], scenes=("mnist/mlp",), methods=entry().methods[:1])
    broken = result(entry=one.id, method="FedAvg", status="failed", value=None)
    assert make_table(asked(one), {}, [replace(broken, seconds=None)]).commands != ()
    assert make_table(asked(one), {}, [broken]).commands == ()


def test_a_command_names_readings_beside_all_methods():
    reading = method("MAP one_stage", reading_of="MAP")
    one = asked(entry(readings=(reading,)))
    both = make_table(replace(one, methods=(*one.methods, reading)), {}, [])
    assert all("MAP one_stage" in command for command in both.commands)


def test_what_the_text_says_of_a_figure_stands_below_it():
    told = make_table(asked(entry(axes=("rounds", "angle"), states=(("claim", "it grows"),))), {}, []).markdown()
    assert "In the paper:\n\n- axes: rounds; angle\n- claim: it grows\n" in told


def test_a_rule_that_chooses_on_the_test_set_says_so():
    best = Measure("accuracy", "aggregation.accuracy", "best round")
    assert "The best round is chosen on the test set itself." in shown(
        make_table(asked(entry(measures=(best,))), {}, []), 120
    )
    assert "chosen on the test set" not in shown(table(), 120)


def test_methods_with_other_seeds_are_not_ranked():
    assert table().columns[0].our_ranks == {}
    assert "| MAP | 94.5 | 94.3 94.5 94.7 | **93.0 ± 0.5** |" in table().markdown()


def test_a_shorter_run_than_what_is_asked_for_is_a_hole():
    alike = {"seeds": (0,), "scenes": (), "methods": entry().methods[:1]}
    place = Scene("demo", "cifar10/cnn", "demo/cifar10_cnn")
    command = "python -m fedexp.reproduce demo/table1 settings=cifar10/cnn methods=FedAvg seeds=0"
    assert table(**{**alike, "scenes": (place,)}).commands == (command,)
    assert table(**{**alike, "scenes": (place,)}, rounds=30).commands == ()


# ---------------------------------------------------------------- other kinds of entries
def test_an_entry_without_published_numbers_shows_ours_with_a_row_for_each_tuning():
    figure = Entry(
        id="demo/fig1",
        kind="train",
        title="Sensitivity",
        measures=(Measure("accuracy", "aggregation.accuracy", "last round"),),
        scenes=("mnist/mlp",),
        methods=(method("FedAvg"), method("MAP")),
    )
    results = [result(tuning="algo.alpha=0.5"), result(tuning="algo.alpha=0.9", value=60.0)]
    text = shown(make_table(asked(figure), {}, results), 80)
    assert re.search(r"MAP algo\.alpha=0\.5 +50\.0\nMAP algo\.alpha=0\.9 +60\.0\n", text)
    assert re.search(r"FedAvg +– +missing\n", text)
    assert "published  " not in text
    assert "Verdicts" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, r"MAP +50\.0$"),
        ({"reduced": "stand-in"}, r"MAP +50\.0† +reduced$"),
        ({"status": "diverged", "value": None}, r"MAP +diverged +failed$"),
        ({"status": "partial", "value": None}, r"MAP +partial +missing$"),
    ],
)
def test_cells_without_a_published_number_say_how_their_runs_ended(changes, said):
    figure = Entry(id="demo/fig1", kind="train", title="Sensitivity", methods=(method("MAP"),))
    text = shown(make_table(asked(figure), {}, [result(**changes)]), 80)
    assert re.search(said, text, re.MULTILINE)


def test_counts_are_printed_counted_and_equal_or_not():
    numbers = [Number("demo/table4", "", net, "", "parameters", printed, None) for net, printed in
               {"lenet": "33654", "vgg": "9220480", "lstm": "799368"}.items()]  # fmt: skip
    counts = Entry(id="demo/table4", kind="count", title="Sizes", numbers=tuple(numbers))
    tolerance = Tolerance(0.5, "exact")
    verdicts = {
        numbers[0].cell: Verdict("reproduced", 33654.0, {0: 33654.0}, None, numbers[0], 0.0, tolerance, "a count"),
        numbers[1].cell: Verdict("above", 9220481.0, {0: 9220481.0}, None, numbers[1], 1.0, tolerance, "a count"),
    }
    one = make_table(asked(counts), verdicts, [])
    text = shown(one, 80)
    assert re.search(r"setting +printed +counted +equal\?\n", text)
    assert re.search(r"lenet +33654 +33654 +equal\n", text)
    assert re.search(r"vgg +9220480 +9220481 +different\n", text)
    assert re.search(r"lstm +799368 +– +missing\n", text)
    assert one.commands == ("python -m fedexp.reproduce export demo/table4",)
    assert r"vgg & 9220480 & 9220481$^{\neq}$ \\" in one.latex()


# ---------------------------------------------------------------- LaTeX, Markdown, CSV
def test_names_are_escaped():
    assert r"A\&B\_50\%$|$x & " in table().latex()
    assert r"| A&B\_50%\|x | " in table().markdown()


def test_latex_has_no_row_without_a_cell():
    published = Number("demo/table1", "", "mnist/mlp", "MAP", "accuracy", "50.0", None)
    one = entry(
        numbers=(published,),
        scenes=("mnist/mlp",),
        stand_ins=("stand-in/mlp",),
        methods=(method("MAP"), method("FedRS")),
    )
    tex = make_table(asked(one), {}, [result(setting="stand-in/mlp", method="MAP")]).latex()
    assert "MAP &" in tex
    assert "FedRS" not in tex


def test_rows_of_latex_have_as_many_fields_as_columns():
    tex = table().latex()
    assert tex.isascii()
    spec = re.search(r"\\begin\{tabular\}\{(\w+)\}", tex).group(1)
    rows = [line for line in tex.splitlines() if line.endswith(r"\\")]
    fields = [
        sum(int(re.match(r" *\\multicolumn\{(\d+)\}|()", field).group(1) or 1) for field in re.split(r"(?<!\\)&", row))
        for row in rows
    ]
    assert len(rows) == 2 + 7
    assert set(fields) == {len(spec)}
    assert max(int(end) for end in re.findall(r"\\cmidrule\(lr\)\{\d+-(\d+)\}", tex)) == len(spec)
    bare = re.sub(r"\\[{}$&%#_\\]", "", tex)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert tex.count(r"\begin{") == tex.count(r"\end{")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    document = (
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + table().latex() + "\\end{document}\n"
    )
    (tmp_path / "table.tex").write_text(document)
    done = subprocess.run(["pdflatex", "-halt-on-error", "table.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_rows_of_markdown_have_as_many_fields_as_their_heading():
    blocks = re.findall(r"(?:^\|.*\n)+", table().markdown(), re.MULTILINE)
    assert len(blocks) == 3
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_csv_has_a_row_for_each_run_with_what_is_published_beside_it():
    rows = list(csv.DictReader(io.StringIO(table().csv())))
    first = rows[0]
    assert (first["method"], first["seed"], first["value"]) == ("FedAvg", "0", "90.0")
    assert (first["published"], first["tolerance"], first["verdict"]) == ("90.0", "1.0", "reproduced")
    assert first["command"].startswith("fedexp experiment=demo/mnist_mlp")
    assert (first["partition"], first["versions"]) == ("0efdadb3b583", "fedexp 0.1.0, torch 2.15.0")
    assert sum(row["verdict"] == "missing" and not row["seed"] for row in rows) == 3
    assert len({(row["setting"], row["method"], row["seed"]) for row in rows}) == len(rows)


def test_tables_do_not_need_torch():
    code = "import sys; from tests.unit.reproduce import sweep; t = sweep.table(); t.markdown(), t.latex(), t.csv(); "
    code += "from rich.console import Console; t.show(Console(quiet=True)); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
