"""Every method that the papers compare with is a choice."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedexp.config.compose import composed

PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())
ROWS = [(paper, name) for paper, methods in PUBLISHED.items() for name in methods]


def test_all_five_papers_are_there():
    assert set(PUBLISHED) == {"map", "fedrs", "fedrema", "fedmr", "fedgela"}
    assert len(ROWS) > 80


@pytest.mark.parametrize(("paper", "name"), ROWS)
def test_a_compared_method_is_a_choice(paper, name):
    composed(PUBLISHED[paper][name])
