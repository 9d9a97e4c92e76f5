"""Small runs, and settings that make tests repeat."""

from __future__ import annotations

import copy
from functools import cache

import hypothesis
import pytest
import torch

from fedexp.config import Config, composed
from fedexp.rundir import RunDir

SMALL = (
    "algo=fedavg", "cohort.clients=6", "cohort.fraction=0.5", "rounds=3", "local.epochs=1", "local.batch_size=32",
    "model.hidden=[16,16]", "evaluate.all_clients=false", "loop=fabric",
)  # fmt: skip

hypothesis.settings.register_profile("fedexp", deadline=None, derandomize=True, database=None, max_examples=60)
hypothesis.settings.load_profile("fedexp")


def pytest_addoption(parser):
    parser.addoption("--regold", action="store_true", help="write the golden files anew")


@pytest.fixture(autouse=True)
def one_thread():
    """Sums depend on the number of threads in their last bits."""
    torch.set_num_threads(1)


@pytest.fixture
def small(tmp_path):
    """Overrides of a run of a second or less, with its directory under ``tmp_path``."""
    return lambda *more: [*SMALL, f"out={tmp_path / 'runs'}", *more]


@pytest.fixture
def configured(small):
    """The configuration of a small run."""
    out = small()[-1].partition("=")[2]
    return lambda *more: {**copy.deepcopy(_composed(*SMALL, *more)), "out": out}


@cache
def _composed(*overrides: str) -> Config:
    return composed(overrides)


@pytest.fixture
def rundir(tmp_path):
    """An empty run directory, not locked."""
    path = tmp_path / "run"
    path.mkdir()
    return RunDir(path)
