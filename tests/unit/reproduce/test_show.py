"""Whether a table that is shown is complete, which is the exit code of ``status``."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedexp.reproduce import published
from fedexp.reproduce.listing import _state
from fedexp.reproduce.local import our_results
from fedexp.reproduce.request import request
from fedexp.reproduce.show import Display, table_of
from tests.unit.reproduce.fakes import result


@pytest.mark.parametrize(
    ("changes", "complete"),
    [
        ({"value": 50.0}, True),
        ({"value": 90.0}, True),  # above
        ({"value": 10.0}, False),  # below
        ({"value": 10.0, "reduced": "1 of 2 rounds"}, False),  # shorter than what is asked for
        ({"value": 10.0, "reduced": "stand-in"}, True),  # no verdict
        ({"value": None, "status": "failed"}, False),
        ({"value": None, "status": "diverged"}, False),
        ({"value": None, "status": "partial"}, False),
        ({"value": 50.0, "method": "FedRS"}, False),  # FedAvg is missing
    ],
)
def test_missing_failed_and_below_are_not_complete(paper, changes, complete):
    asked = request(paper.TABLE, settings="digits/mlp", methods="FedAvg")
    fields = {"entry": "tiny/table1", "setting": "digits/mlp", "method": "FedAvg", "rounds": 2} | changes
    display = Display(Console(file=io.StringIO()))
    assert display(asked, [result(**fields)]) == complete


@pytest.mark.parametrize(
    ("changes", "words", "lacking", "complete"),
    [
        (None, {}, ["seeds=0"], False),  # never run
        ({"value": 50.0}, {}, [], True),
        ({"value": 10.0}, {}, [], False),  # below
        ({"value": None, "status": "failed"}, {}, ["seeds=0"], False),
        ({"value": 50.0}, {"seeds": "0,1"}, ["seeds=1"], False),
    ],
)
def test_a_reading_that_is_asked_for_counts(paper, changes, words, lacking, complete):
    asked = request(paper.TABLE, settings="digits/mlp", methods="FedAvg samples", **words)
    fields = {"entry": "tiny/table1", "setting": "digits/mlp", "method": "FedAvg samples", "rounds": 2}
    ours = [] if changes is None else [result(**{**fields, **changes})]
    assert Display(Console(file=io.StringIO()))(asked, ours) == complete
    commands = table_of(asked, ours).commands
    assert [c.partition("settings=digits/mlp ")[2] for c in commands] == [
        f"'methods=FedAvg samples' {s}" for s in lacking
    ]


def test_settings_that_were_not_tried_for_a_table_do_not_win_there(paper):
    asked = request(paper.TABLE, settings="digits/mlp", methods="FedAvg", tune="paper")
    fields = {"entry": "tiny/table1", "setting": "digits/mlp", "method": "FedAvg"}
    (cell,) = table_of(asked, [result(50.0, **fields), result(90.0, tuning="cohort.fraction=1", **fields)]).cells
    assert cell.ours == 50.0


def test_another_reading_has_no_row_in_a_stand_in_either(paper):
    asked = request(paper.TABLE, settings="stand-in/digits/mlp", methods="FedAvg samples")
    fields = {"entry": "tiny/table1", "setting": "stand-in/digits/mlp", "reduced": "stand-in"}
    table = table_of(asked, [result(50.0, method=name, **fields) for name in ("FedAvg", "FedAvg samples")])
    assert table.rows == ("FedAvg",)
    assert [(method.name, cell.ours) for method, cell in table.readings] == [("FedAvg samples", 50.0)]


# ---------------------------------------------------------------- worked out from other cells
def cells_of(asked, results):
    return {(cell.method, cell.metric): cell for cell in table_of(asked, results).cells}


def test_a_gap_of_tuned_runs_is_that_of_the_numbers_that_are_shown():
    setting = "cifar10/resnet18_fc/P10C2"
    asked = request(published.entry("fedgela/table5"), settings=setting, tune="paper")
    of = {"entry": "fedgela/table5", "setting": setting}
    tuning = asked.tunings["FedGELA"][-1]
    ours = [
        result(92.0, method="FedAvg", metric="PA", **of),
        result(90.0, method="FedGELA", metric="PA", **of),
        result(95.0, method="FedGELA", metric="PA", tuning=tuning, **of),
        result(-2.0, method="FedAvg", metric="PA_gap_to_fedgela", **of),  # as it was worked out from untuned runs
    ]
    assert cells_of(asked, ours)["FedAvg", "PA_gap_to_fedgela"].ours == 3.0


def test_a_lead_over_the_best_other_method_is_not_taken_over_those_asked_for():
    setting = "fmnist/resnet18/P5C2"
    asked = request(published.entry("fedmr/table1"), settings=setting, methods="FedMR,FedAvg", seeds="0")
    of = {"entry": "fedmr/table1", "setting": setting, "metric": "GA"}
    found = cells_of(asked, [result(75.51, method="FedMR", **of), result(67.29, method="FedAvg", **of)])
    assert found["FedMR", "gain_over_fedavg"].ours == pytest.approx(8.22)
    assert found["FedMR", "gain_over_best"].ours is None


def test_a_lead_is_taken_over_results_of_methods_that_are_not_shown(tmp_path):
    setting = "fmnist/resnet18/P5C2"
    whole = request(published.entry("fedmr/table1"), settings=setting, tune="paper")
    of = {"entry": "fedmr/table1", "setting": setting, "metric": "GA", "status": "done"}
    values = {name: 70.0 + len(name) / 10 for name in whole.tunings} | {"FedMR": 80.0}
    ours = [
        result(values[name], method=name, tuning=each, **of) for name, tried in whole.tunings.items() for each in tried
    ]
    alone = request(whole.entry, settings=setting, tune="paper", methods="FedMR", out=str(tmp_path))
    shown = cells_of(alone, our_results(alone, tmp_path, ours))
    assert {method for method, _ in shown} == {"FedMR"}
    assert shown["FedMR", "gain_over_best"].ours == cells_of(whole, ours)["FedMR", "gain_over_best"].ours
    assert shown["FedMR", "gain_over_best"].ours == pytest.approx(80.0 - max(v for v in values.values() if v < 80))


def test_a_figure_of_a_grid_is_complete_with_all_of_its_settings():
    asked = request(published.entry("map/fig11"), settings="fmnist/mlpnet")
    ours = [
        result(50.0, entry="map/fig11", setting="fmnist/mlpnet", method=name, tuning=each, metric=metric, rounds=150)
        for name, tried in asked.tunings.items()
        for each in tried
        for metric in ("aggregation", "personalization")
    ]
    assert len(ours) == 2 * 21  # MAP's 20, and FedAvg
    display = Display(Console(file=io.StringIO()))
    assert display(asked, ours)
    assert not display(asked, ours[:-2])
    (command,) = table_of(asked, ours[:-2]).commands
    assert command == "python -m fedexp.reproduce map/fig11 settings=fmnist/mlpnet methods=MAP seeds=0"


def test_rows_that_nobody_can_run_are_not_missing_in_stand_ins():
    table = table_of(request(published.entry("fedgela/table5"), stand_ins=True), [])
    assert {cell.method for cell in table.cells} == {"FedAvg", "FedGELA"}


def test_a_scene_is_a_stand_in_where_the_entry_says_so():
    shown = request(published.entry("fedrema/table3"), settings="*").shown
    assert "fmnist/cnn/s0.2/n600" in shown.stand_ins
    assert shown.scenes == ("cifar10/alexnet/s0.2/n600",)


def test_the_method_that_rounds_are_measured_by_is_asked_for_too():
    asked = request(published.entry("fedmr/table4"), methods="FedProx")
    assert [method.name for method in asked.methods] == ["FedAvg", "FedProx"]


def test_a_list_counts_what_an_entry_shows(paper):
    of = {"entry": "tiny/table1", "setting": "stand-in/digits/mlp", "reduced": "stand-in", "rounds": 2}
    ours = [result(50.0, method=m, **of) for m in ("FedAvg", "FedAvg samples")] + [result(1.0, metric="other", **of)]
    assert _state(paper.TABLE, ours).startswith("1 reduced, ")
