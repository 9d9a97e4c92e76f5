"""Whether a table that is shown is complete, which is the exit code of ``status``."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedexp.reproduce.request import request
from fedexp.reproduce.show import Display, table_of
from tests.unit.reproduce.fakes import result


@pytest.mark.parametrize(
    ("changes", "complete"),
    [
        ({"value": 50.0}, True),
        ({"value": 90.0}, True),  # above
        ({"value": 10.0}, False),  # below
        ({"value": 10.0, "reduced": "1 of 2 rounds"}, True),  # no verdict
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
