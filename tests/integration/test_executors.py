"""The same numbers wherever the work runs, and whatever happens to those who do it."""

from __future__ import annotations

import pytest

from fedexp.build import make
from fedexp.config import choices_of, composed
from fedexp.execute.auto import AutoExecutor
from fedexp.execute.base import Blueprint
from fedexp.execute.processes import ProcessExecutor
from fedexp.testing import executors_agree, trial_after


def blueprint() -> Blueprint:
    """Any will do: what is tested brings its own."""
    found: list[Blueprint] = []

    def catch(given):
        found.append(given)
        return AutoExecutor(given)

    trial_after({}, rounds=0, executor=catch)
    return found[0]


@pytest.fixture(scope="module", params=[1, 2, 5])
def pool(request):
    executor = ProcessExecutor(blueprint(), workers=request.param)
    yield executor
    executor.close()


@pytest.mark.parametrize("algo", choices_of("algo"))
def test_processes_give_the_numbers_of_one_process(pool, algo):
    config = composed([f"algo={algo}"])
    executors_agree({key: make(node) for key, node in config["algo"].items()}, pool)
