"""Every number that a run writes has its line in the guide's glossary, and the other way round."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator

import pytest

import fedexp
from fedexp.sweep.results import METRICS
from tests.conftest import SMALL
from tests.documents import GUIDE

SECTION = GUIDE["files"].partition("\n## Metrics\n")[2].partition("\n## ")[0]
LINES = re.findall(r"^\| (`.*?) \| .+ \|$", SECTION, re.MULTILINE)  # not those of the headings
GLOSSARY = {name for line in LINES for name in re.findall(r"`(.*?)`", line)}
BLOCKS = ("aggregation", "personalization", "missing")
MEASURE_MOST = (
    "evaluate=fedgela", "evaluate.all_clients=2", "evaluate.finetune_epochs=1", "partition=explicit",
    "partition.classes=[[0,1],[1,2],[2,3,4],[3,4,5,6],[5,6,7,8],[7,8,1,2]]", "partition.test=holdout",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[fedexp.Result]:
    """Runs of different kinds of methods, with classes that are rare and the protocol that measures most."""
    out = tmp_path_factory.mktemp("runs")
    methods = ("fedavg", "map", "fedbabu_ft", "fedper", "fedrema")
    return [fedexp.run([*SMALL, *MEASURE_MOST, f"algo={algo}", f"out={out}"]) for algo in methods]


def names(block: str, keys: Iterable[str]) -> set[str]:
    return {f"{block}.{key}" for key in keys}


def of_records(run: fedexp.Result) -> Iterator[str]:
    for record in run.records:
        yield from (key for key in record if key not in BLOCKS)
        for block in BLOCKS:
            yield from names(block, record.get(block, ()))


def of_rows(run: fedexp.Result) -> Iterator[str]:
    with (run.path / "clients.csv").open() as file:
        for column in next(csv.reader(file)):
            block, _, name = column.partition("/")
            yield from {"missing": ["missing/…", f"missing.{name}"], "loss": ["loss/<phase>/<term>"]}.get(
                block, [column]
            )


def of_result(run: fedexp.Result) -> Iterator[str]:
    for block in BLOCKS:
        yield from names(block, run.summary.get(block, ()))
    detail = run.personalization["all_clients_detail"]
    yield from names("personalization", detail.keys() - {"asked", "of", "failed", "missing"})
    yield from names("missing", detail["missing"])


def test_every_number_is_in_the_glossary_and_nothing_else_is(runs):
    written = {name for run in runs for found in (of_records, of_rows, of_result) for name in found(run)}
    assert written - GLOSSARY == set()
    assert GLOSSARY - written == set()
    assert all(f"`{key}`" in SECTION for key in ("asked", "of", "failed"))


def test_every_number_of_a_sweep_is_in_the_glossary():
    assert {".".join(key.split(".")[:2]) for key in METRICS} <= GLOSSARY
