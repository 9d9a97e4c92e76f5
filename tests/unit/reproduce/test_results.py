"""The csv files of our own numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedexp.errors import DamagedError, DiskError
from fedexp.reproduce.entry import Entry
from fedexp.reproduce.measure import Measure
from fedexp.reproduce.results import Result, known_results, merged, read_results, results_file, write_results
from tests.unit.reproduce.sweep import method

ENTRY = Entry(
    id="demo/table1",
    kind="train",
    title="Two scenes",
    measures=(
        Measure("PA", "personalization.accuracy", "last round"),
        Measure("GA", "aggregation.accuracy", "last round"),
    ),
    scenes=("mnist/mlp", "cifar10/cnn"),
    methods=(method("FedRS"), method("FedAvg")),
)


def result(**changes) -> Result:
    one = Result(
        entry="demo/table1",
        setting="mnist/mlp",
        method="FedAvg",
        metric="GA",
        seed=0,
        tuning="",
        value=100 / 3,
        status="done",
        reduced="",
        rounds=150,
        rule="last round",
        run="a1b2c3",
        command='fedexp experiment=demo/mnist_mlp "model.hidden=[16,16]"',
        seconds=0.1 + 0.2,
        partition="0efdadb3b583",
        versions="fedexp 0.1.0, torch 2.15.0",
    )
    return replace(one, **changes)


def damaged(path, old: str, new: str) -> str:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DamagedError) as caught:
        read_results(path)
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    path = results_file(tmp_path, "demo/table1")
    write_results(path, [result(), result(seed=1)])
    return path


def test_every_field_comes_back_as_it_was(tmp_path):
    results = [
        result(),
        result(seed=1, value=None, status="failed", seconds=None, rounds=0, error='a "quoted", long\nreason'),
        result(seed=2, tuning="algo.rs.alpha=0.9 optim.lr=0.1", reduced="3 of 150 rounds", method="Z|B & C_%"),
    ]
    write_results(tmp_path / "table.csv", results)
    assert read_results(tmp_path / "table.csv") == results


def test_a_file_is_the_same_in_whatever_order_its_results_came(tmp_path):
    results = [result(setting=s, method=m, seed=n) for s in ENTRY.scenes for m in ENTRY.rows for n in (10, 9)]
    write_results(tmp_path / "a.csv", results, ENTRY)
    write_results(tmp_path / "b.csv", reversed(results), ENTRY)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_the_order_is_that_of_the_entry_and_strangers_come_last(tmp_path):
    cells = [("mnist/mlp", "FedRS", "PA"), ("mnist/mlp", "FedRS", "GA"), ("mnist/mlp", "FedAvg", "GA"),
             ("cifar10/cnn", "FedAvg", "GA"), ("a_new_scene", "FedAvg", "GA")]  # fmt: skip
    results = [result(setting=s, method=m, metric=k) for s, m, k in sorted(cells)]
    write_results(tmp_path / "table.csv", results, ENTRY)
    assert [each.cell for each in read_results(tmp_path / "table.csv")] == cells


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("FedAvg,GA,0,", "FedAvg,GA,zero,", "line 2: seed is 'zero', where a whole number belongs"),
        ("33.333333333333336", "33,3", "line 2: it has 19 fields, 18 belong there"),
        ("33.333333333333336", "much", "line 2: value is 'much', where a number belongs"),
        ("33.333333333333336", "nan", "line 2: value and seconds must be finite"),
        ("33.333333333333336", "", "line 2: status is 'done', but there is no value"),
        (",done,", ",finished,", "line 2: status is 'finished', not one of done, failed, diverged, partial"),
        ("FedAvg,GA,1,", "FedAvg,GA,0,", "line 3: it has the same cell, seed and tuning as line 2"),
        ("entry,setting", "<<<<<<< HEAD\nentry,setting", "line 1: the header is not that of results: it lacks entry"),
        ("seed,tuning,value", "seed,value", "it lacks tuning"),
        ("seed,tuning", "tuning,seed", "its order"),
        (",a1b2c3,", ',"a1b2c3,', "line 2: ',' expected"),
    ],
)
def test_a_damaged_file_says_where_and_what_to_do(file, old, new, said):
    words = damaged(file, old, new)
    assert words.startswith(str(file))
    assert said in words
    assert "git checkout" in words


def test_a_file_of_an_earlier_version_lacks_the_columns_that_came_later(file):
    lines = file.read_text().splitlines()
    assert lines[0].endswith(",error,model")
    file.write_text("\n".join([lines[0].removesuffix(",model"), *(line.removesuffix(",") for line in lines[1:])]))
    assert read_results(file) == [result(), result(seed=1)]


def test_an_empty_file_is_damaged(tmp_path):
    (tmp_path / "table.csv").touch()
    with pytest.raises(DamagedError, match="line 1: the header"):
        read_results(tmp_path / "table.csv")


def test_known_results_are_those_of_the_entry(file, tmp_path):
    assert known_results(tmp_path, "demo/table1") == [result(), result(seed=1)]
    assert known_results(tmp_path, "demo/table2") == []
    file.rename(file.with_name("table2.csv"))
    with pytest.raises(DamagedError, match="it holds results of demo/table1, where those of demo/table2 belong"):
        known_results(tmp_path, "demo/table2")


def test_what_cannot_be_read_back_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="a1b2c3: value and seconds must be finite"):
        write_results(tmp_path / "table.csv", [result(value=float("nan"))])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_the_old_one(file):
    (file.parent / "link.csv").symlink_to(file)
    with pytest.raises(DiskError, match="symbolic link"):
        write_results(file.parent / "link.csv", [])
    assert len(read_results(file)) == 2


@pytest.mark.parametrize(
    ("older", "newer", "kept"),
    [
        ({}, {"value": 2.0}, "newer"),
        ({}, {"status": "failed", "value": None}, "older"),  # a disk that was full takes no number away
        ({}, {"status": "diverged", "value": None}, "newer"),
        ({"status": "failed", "value": None}, {}, "newer"),
        ({"reduced": "3 of 150 rounds", "rounds": 3}, {"reduced": "5 of 150 rounds", "rounds": 5}, "newer"),
        ({"reduced": "5 of 150 rounds", "rounds": 5}, {"reduced": "3 of 150 rounds", "rounds": 3}, "older"),
        ({"reduced": "stand-in"}, {"reduced": "stand-in, optim.lr=0.5"}, "older"),
        ({"reduced": "stand-in, optim.lr=0.5"}, {"reduced": "stand-in"}, "newer"),
        ({"reduced": "5 of 150 rounds", "rounds": 5}, {"status": "partial", "rounds": 7, "value": None}, "older"),
        ({"status": "failed", "value": None, "rounds": 9}, {"reduced": "3 of 150 rounds", "rounds": 3}, "older"),
        ({"status": "partial", "value": None}, {"reduced": "3 of 150 rounds", "rounds": 3}, "newer"),
        ({}, {"reduced": "3 of 150 rounds"}, "older"),
        ({}, {"status": "partial", "rounds": 7, "value": None}, "older"),
        ({}, {"seed": 1}, "both"),
        ({}, {"tuning": "algo.rs.alpha=0.9"}, "both"),
    ],
)
def test_newer_results_win_unless_they_are_less(older, newer, kept):
    older, newer = result(**older), result(**newer)
    assert merged([older], [newer]) == {"newer": [newer], "older": [older], "both": [older, newer]}[kept]
