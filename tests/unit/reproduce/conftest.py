from __future__ import annotations

import pytest

from tests.unit.reproduce import tiny


@pytest.fixture
def paper(monkeypatch):
    """The tiny paper, in the place of the five."""
    tiny.use(monkeypatch)
    return tiny
