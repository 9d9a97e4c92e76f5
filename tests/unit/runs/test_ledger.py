"""Bytes by message and direction."""

from __future__ import annotations

from fedexp.runs.ledger import COLUMNS, Ledger


def test_rows_and_totals():
    ledger = Ledger()
    ledger.count(1, 4, "down", {"model": 48})
    ledger.count(1, 4, "up", {"model": 48, "a.v": 24})
    ledger.count(1, 2, "down", {"model": 48})
    assert (ledger.up, ledger.down) == (0, 0)  # a round counts when it is complete
    ledger.count(2, 3, "down", {"model": 48})  # of a round that has begun already
    rows = ledger.close_round(1)
    assert [tuple(r[c] for c in COLUMNS) for r in rows] == [
        (1, 2, "down", "model", 48), (1, 4, "down", "model", 48), (1, 4, "up", "model", 48), (1, 4, "up", "a.v", 24),
    ]  # fmt: skip
    assert (ledger.up, ledger.down) == (72, 96)
    assert ledger.close_round(1) == []
    ledger.count(2, 3, "up", {"a.v": 24})
    assert [(r["round"], r["direction"]) for r in ledger.close_round(2)] == [(2, "down"), (2, "up")]
    assert (ledger.up, ledger.down) == (96, 144)


def test_a_failed_round_does_not_count():
    ledger = Ledger()
    ledger.count(1, 0, "down", {"model": 48})
    ledger.drop()
    assert ledger.close_round(1) == []
    assert (ledger.up, ledger.down) == (0, 0)


def test_totals_come_back_from_the_rows_on_file(rundir):
    ledger = Ledger()
    for round_ in (1, 2):
        ledger.count(round_, 7, "down", {"model": 48})
        ledger.count(round_, 7, "up", {"a.v": 24})
        rundir.append_rows("ledger.csv", COLUMNS, ledger.close_round(round_))
    again = Ledger.from_rows(rundir.rows("ledger.csv"))
    assert (again.up, again.down) == (ledger.up, ledger.down) == (48, 96)
    assert Ledger.from_rows([]) == Ledger()
