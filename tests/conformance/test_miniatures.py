"""The battery over methods in miniature, which use seams that no method of conf/algo uses yet."""

from __future__ import annotations

import pytest

from fedexp.execute.processes import ProcessExecutor
from fedexp.testing import CHECKS, executors_agree, trial_after
from tests.miniatures import MINIATURES


@pytest.mark.parametrize("name", MINIATURES)
@pytest.mark.parametrize("check", CHECKS)
def test_a_miniature_conforms(name, check):
    CHECKS[check](MINIATURES[name])


@pytest.fixture(scope="module")
def two_processes():
    executor = trial_after({}, rounds=0, executor=lambda blueprint: ProcessExecutor(blueprint, workers=2)).executor
    yield executor
    executor.close()


@pytest.mark.parametrize("name", MINIATURES)
def test_two_processes_give_the_same_bits(name, two_processes):
    executors_agree(MINIATURES[name], two_processes)
