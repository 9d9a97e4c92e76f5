"""Folders of runs."""

from __future__ import annotations

import pytest

from fedexp.report.load import load
from tests.unit.report.made import write_run

pytest.importorskip("pandas", reason='needs pip install "fedexp[report]"')
pytest.importorskip("altair", reason='needs pip install "fedexp[report]"')


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Four methods with three seeds each."""
    root = tmp_path_factory.mktemp("runs")
    for algo in ("fedavg", "map", "fedrs", "scaffold"):
        for seed in (0, 1, 2):
            write_run(root, algo, seed)
    return root


@pytest.fixture(scope="session")
def runs(folder):
    return load(folder)


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """FedRS with three alphas and two numbers of epochs, and FedAvg, with two seeds each."""
    root = tmp_path_factory.mktemp("swept")
    for seed in (0, 1):
        for epochs in (1, 5):
            write_run(root, "fedavg", seed, epochs=epochs)
            for alpha in (0.01, 0.1, 0.9):
                write_run(root, "fedrs", seed, alpha=alpha, epochs=epochs)
    return root
