"""Every method that the papers compare with is a choice."""

from __future__ import annotations

import pytest

from fedexp.config.compose import composed
from fedexp.reproduce.published import PAPERS, methods

ROWS = [row for paper in PAPERS for row in methods(paper) if row.overrides is not None]


def test_all_five_papers_are_there():
    assert {row.paper for row in ROWS} == {"map", "fedrs", "fedrema", "fedmr", "fedgela"}
    assert len(ROWS) > 80


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper} {row.name}")
def test_a_compared_method_is_a_choice(row):
    composed(row.overrides)
    for setting in row.grid:
        composed([*row.overrides, *setting])
    for _, more in row.special:
        composed([*row.overrides, *more])
