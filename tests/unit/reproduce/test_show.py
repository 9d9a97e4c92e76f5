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


def test_another_reading_has_no_row_in_a_stand_in_either(paper):
    asked = request(paper.TABLE, settings="stand-in/digits/mlp", methods="FedAvg samples")
    fields = {"entry": "tiny/table1", "setting": "stand-in/digits/mlp", "reduced": "stand-in"}
    table = table_of(asked, [result(50.0, method=name, **fields) for name in ("FedAvg", "FedAvg samples")])
    assert table.rows == ("FedAvg",)
    assert [(method.name, cell.ours) for method, cell in table.readings] == [("FedAvg samples", 50.0)]
