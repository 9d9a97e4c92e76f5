"""Data that changes between two runs of the same command."""

# ruff: noqa: F401, F811 - fixtures are imported

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import fedexp
from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.errors import CheckpointError, DataError
from tests.conftest import SMALL
from tests.integration.test_resume import stopped_at
from tests.unit.data.test_files import written


@pytest.fixture
def command(written, tmp_path):
    """A run on a few files; returns what asks for it, and the file that holds its training images."""
    root = written("mnist")
    settings = (
        *SMALL, "data=mnist", "model=mlpnet", "model.hidden=[8]", f"data.root={root}", f"data.cache={tmp_path}/cache",
        "partition=iid", "cohort.clients=2", f"out={tmp_path}/runs", "every.checkpoint=1",
    )  # fmt: skip
    return lambda *more: [*settings, *more], root / "MNIST" / "raw" / "train-images-idx3-ubyte"


def flip(path: Path) -> None:
    """Changes one bit, and not the file's times: as a failing disk does."""
    times, content = path.stat(), bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def data_digest(command: list[str]) -> str:
    return fedexp.run([*command, "plan=true"]).summary["data_digest"]


def test_a_damaged_file_is_refused_where_no_cache_stands_in(command):
    ask, images = command
    flip(images)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte .* is not the published file"):
        fedexp.run(ask("data.cache=null"))


def test_the_cache_holds_what_was_read_from_a_file_that_is_damaged_since(command):
    ask, images = command
    before = data_digest(ask())
    flip(images)
    assert data_digest(ask()) == before


def test_one_other_bit_is_other_data(command):
    ask, images = command
    unchecked = ask("data.cache=null", "data.verify=false")
    before = data_digest(unchecked)
    assert data_digest(unchecked) == data_digest(ask()) == before
    flip(images)
    assert data_digest(unchecked) != before


def test_a_run_does_not_continue_on_other_data(command):
    ask, images = command
    unchecked = ask("data.cache=null", "data.verify=false")
    path = stopped_at(unchecked, 3)
    began_with = json.loads((path / "plan.json").read_text())["data_digest"]
    flip(images)
    kept = {p.name: p.read_bytes() for p in (path / "checkpoint").iterdir()}
    with pytest.raises(CheckpointError, match=f"was written with other data.*{began_with[:16]}.*data.root.*force=true"):
        fedexp.run(unchecked)
    assert {p.name: p.read_bytes() for p in (path / "checkpoint").iterdir()} == kept
    flip(images)
    assert fedexp.run(unchecked).status == "finished"
    assert path == run_path(composed(unchecked))
