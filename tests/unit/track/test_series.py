"""The names that all trackers have in common."""

from __future__ import annotations

from pathlib import Path

from fedexp.data.catalog import CATALOG
from fedexp.track import series
from tests.unit.report.made import CLIENTS, COUNTS, personal, write_run
from tests.unit.track.cards import RESULT, record


def test_a_row_has_the_numbers_of_a_record_by_name():
    row = series.row(record(3), CATALOG["fmnist"].class_names)
    assert row["round"] == 3
    assert row["aggregation/accuracy"] == 0.3
    assert row["terms/ce"] == 0.3
    assert row["bytes/total"] == 333
    assert row["seconds/elapsed"] == 6.0
    assert row["aggregation/class/t-shirt"] == 0.5
    assert row["aggregation/class/pullover"] == 0.3
    assert "aggregation/class/trouser" not in row  # null is absent, not zero
    assert "personalization/worst_decile" not in row


def test_classes_without_names_have_numbers():
    row = series.row({"round": 1, "personalization": {"per_class": [0.1, 0.2]}}, ["an odd/name"])
    assert row == {"round": 1, "personalization/class/an_odd_name": 0.1, "personalization/class/1": 0.2}


def test_every_data_set_with_names_has_one_for_each_class():
    named = {name: entry for name, entry in CATALOG.items() if entry.class_names}
    assert named.keys() >= {"fmnist", "cifar10", "cifar100"}
    for entry in named.values():
        assert len(set(entry.class_names)) == entry.classes


def test_names_of_classes_come_with_the_data_set():
    assert series.class_names({"data": {"dataset": "cifar10"}, "choices": {"data": "cifar10_fedmr"}})[3] == "cat"
    assert series.class_names({"data": {}, "choices": {"data": "isic2019"}})[0] == "MEL"
    assert series.class_names({"data": {}, "choices": {"data": "mine"}}) == ()
    assert series.class_names({}) == ()


def test_distributions_have_no_gaps():
    nested = {"round": 1, "a": {"x": 0.5, "gone": None, "text": "t", "all": [1, None, float("nan")], "empty": [None]}}
    assert dict(series.scalars(nested)) == {"round": 1, "a/x": 0.5}
    assert dict(series.distributions(nested)) == {"a/all": [1.0]}


def test_bins_do_not_move_unless_they_must():
    assert series.edges([0.2, 0.3]).tolist() == series.edges([0.9]).tolist()
    assert (series.edges([0.2])[0], series.edges([0.2])[-1], len(series.edges([0.2]))) == (0, 1, 21)
    assert (series.edges([-3.0, 7.0])[0], series.edges([-3.0, 7.0])[-1]) == (-3, 7)


def test_the_summary_is_the_result_under_names_of_its_own():
    told = series.summary({**RESULT, "checksums": {"x": {"size": 3}}})
    assert told == {
        "status": "finished", "result/rounds": 4, "result/aggregation/last": 0.4, "result/aggregation/best": 0.45,
        "result/aggregation/window": 5, "result/personalization/last": 0.9, "result/personalization/std": 0.01,
    }  # fmt: skip
    assert series.summary(None) == {"status": "stopped"}


def test_the_table_of_clients_has_the_last_row_of_each(tmp_path: Path):
    columns, rows = series.client_table(write_run(tmp_path, "map", 1).path)
    assert columns[:4] == ["round", "client", "status", "n"]
    last = columns.index("after")
    found = [[*row[:4], row[last]] for row in rows]
    assert found == [[4, k, "ok", sum(COUNTS[k]), personal("map", 1, k)] for k in range(CLIENTS)]
    assert series.client_table(tmp_path) == ([], [])
