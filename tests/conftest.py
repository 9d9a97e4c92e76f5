"""Small runs, and settings that make tests repeat."""

from __future__ import annotations

import copy
import os
import signal
from functools import cache

import hypothesis
import pytest
import torch
import yaml

from fedexp.config.compose import Config, composed
from fedexp.config.sources import conf_dir
from fedexp.runs.directory import RunDir
from fedexp.system.signals import SIGNALS

SMALL = (
    "algo=fedavg", "cohort.clients=6", "cohort.fraction=0.5", "rounds=3", "local.epochs=1", "local.batch_size=32",
    "model.hidden=[16,16]", "evaluate.all_clients=false", "loop=fabric", "executor=serial",
)  # fmt: skip

LONG = {"integration", "bench", "test_style.py"}  # these come first, so that nobody waits for them at the end

hypothesis.settings.register_profile("fedexp", deadline=None, derandomize=True, database=None, max_examples=40)
hypothesis.settings.load_profile("fedexp")


def pytest_addoption(parser):
    parser.addoption("--regold", action="store_true", help="write the golden files anew")
    parser.addoption("--slow", action="store_true", help="also run what is marked slow")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    items.sort(key=lambda item: LONG.isdisjoint(item.path.parts))


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk():
    """What is synced survives a power failure, which no test can see, and takes half of the time of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_terminal():
    """A library for reading lines, which test workers load, says how wide a terminal is that nobody has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        patch.delenv("LINES", raising=False)
        yield


@pytest.fixture(autouse=True)
def one_thread():
    """Sums depend on the number of threads in their last bits."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def signals_as_before():
    """A command that was told to stop ignores further signals, because its process is about to end; ours is not."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def small(tmp_path):
    """Overrides of a run of a second or less, with its directory under ``tmp_path``."""
    return lambda *more: [*SMALL, f"out={tmp_path / 'runs'}", *more]


@pytest.fixture
def configured(small):
    """The configuration of a small run. Composing takes its time, so that only group choices go through Hydra."""
    out = small()[-1].partition("=")[2]

    def configure(*more: str) -> Config:
        pairs = [override.split("=", 1) for override in more]
        groups = {key for key, _ in pairs if (conf_dir() / key).is_dir()}
        config = copy.deepcopy(_composed(*SMALL, *(f"{k}={v}" for k, v in pairs if k in groups)))
        for key, value in [("out", out), *(pair for pair in pairs if pair[0] not in groups)]:
            *parents, last = key.split(".")
            node = config
            for parent in parents:
                node = node[parent]
            assert last in node, key
            node[last] = yaml.safe_load(value)
        return config

    return configure


@cache
def _composed(*overrides: str) -> Config:
    return composed(overrides)


@pytest.fixture
def rundir(tmp_path):
    """An empty run directory, not locked."""
    path = tmp_path / "run"
    path.mkdir()
    return RunDir(path)
