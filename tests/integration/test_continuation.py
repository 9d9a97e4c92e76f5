"""A longer run continues a finished shorter one, and ends as if it had run alone."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from rich.console import Console

import fedexp
from fedexp.config import composed
from fedexp.config.identity import ids_with_fewer_rounds, run_id
from fedexp.config.make import make
from fedexp.core.component import Component
from fedexp.errors import DiskError
from fedexp.runs.plan import Plan


def said(config, capsys) -> tuple[fedexp.Result, str]:
    result = fedexp.run(config, console=Console(width=400))
    return result, capsys.readouterr().out


def numbers(result: fedexp.Result) -> tuple:
    """All that two equal runs have in common, on file."""
    records = [{k: v for k, v in r.items() if k != "seconds"} for r in result.records]
    rows = [list(csv.reader((result.path / name).open())) for name in ("ledger.csv", "weights.csv")]
    return records, rows, result.summary["digests"], result.summary["bytes"], result.personalization


@pytest.mark.parametrize("algo", ["fedavg", "fedavgm", "scaffold"])
def test_more_rounds_are_those_of_one_run(configured, tmp_path, capsys, algo):
    keep = ["keep=all"] if algo == "scaffold" else []
    first, _ = said(configured(f"algo={algo}", "rounds=2", *keep), capsys)
    before = {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()}
    more, out = said(configured(f"algo={algo}", "rounds=4"), capsys)
    assert f"{first.path} has the first 2 rounds, and is continued" in out
    alone, out = said(configured(f"algo={algo}", "rounds=4", f"out={tmp_path / 'alone'}"), capsys)
    assert "continued" not in out
    assert numbers(more) == numbers(alone)
    assert before == {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()}  # left as it was


def test_the_longest_of_several_is_continued(configured, capsys):
    fedexp.run(configured("algo=fedavg", "rounds=1"))
    longest, _ = said(configured("algo=fedavg", "rounds=3"), capsys)
    _, out = said(configured("algo=fedavg", "rounds=5"), capsys)
    assert f"{longest.path} has the first 3 rounds, and is continued" in out


def test_force_begins_anew(configured, capsys):
    fedexp.run(configured("algo=fedavg", "rounds=1"))
    _, out = said(configured("algo=fedavg", "rounds=2", "force=true"), capsys)
    assert "continued" not in out


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["algo=map", "keep=all"], "algo.hpm: the momentum of private models grows over the whole run"),
        (["algo=fedavg", "schedule=cosine"], "schedule: the learning rate falls over the whole run"),
        (["algo=fedavg", "every.evaluate=4"], "every.evaluate=4 tests round 3 only where it is the last"),
        (["algo=scaffold"], "keep=all leaves it"),
        (["algo=fedavg", "probe=[cost]"], "probe: the last round is observed in any case"),
    ],
)
def test_what_cannot_be_continued_says_why(configured, tmp_path, capsys, settings, why):
    shorter, _ = said(configured(*settings, "rounds=3"), capsys)
    longer, out = said(configured(*settings, "rounds=4"), capsys)
    assert f"{shorter.path} has the first 3 rounds, but this run begins anew" in out
    assert why in out
    assert numbers(longer) == numbers(fedexp.run(configured(*settings, "rounds=4", f"out={tmp_path / 'alone'}")))


def test_a_damaged_beginning_is_left_alone(configured, capsys):
    shorter, _ = said(configured("algo=fedavg", "rounds=1"), capsys)
    (shorter.path / "weights.csv").write_text("other\n")
    longer, out = said(configured("algo=fedavg", "rounds=2"), capsys)
    assert "weights.csv is damaged" in out
    assert [r["round"] for r in longer.records] == [1, 2]


def test_what_was_made_with_other_data_is_not_continued(configured, capsys, monkeypatch):
    fedexp.run(configured("algo=fedavg", "rounds=1"))
    digest = Plan.digest.fget
    monkeypatch.setattr(Plan, "digest", property(lambda plan: digest(plan)[:-4] + "0000"))
    longer, out = said(configured("algo=fedavg", "rounds=2"), capsys)
    assert "but this run begins anew" in out
    assert "was written with other data" in out
    assert [r["round"] for r in longer.records] == [1, 2]


def test_a_copy_that_stops_half_way_does_not_count(configured, monkeypatch):
    """The pointer is copied last; without it the run begins anew."""
    import shutil

    shorter = fedexp.run(configured("algo=fedavg", "rounds=1"))
    real = shutil.copyfile

    def full(source, target):
        if str(source).endswith("latest.json"):
            raise OSError(28, "No space left on device")
        return real(source, target)

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(DiskError):
        fedexp.run(configured("algo=fedavg", "rounds=2"))
    monkeypatch.undo()
    longer = fedexp.run(configured("algo=fedavg", "rounds=2"))
    assert [r["round"] for r in longer.records] == [1, 2]
    assert json.loads((shorter.path / "result.json").read_text())["rounds"] == 1


def test_ids_of_shorter_runs_are_their_own(configured):
    config = configured("algo=fedavg", "rounds=4")
    assert dict(ids_with_fewer_rounds(config)) == {r: run_id({**config, "rounds": r}) for r in (1, 2, 3)}


def test_every_schedule_says_whether_it_depends_on_the_total():
    for name in ("constant", "step", "exponential", "cosine"):
        schedule = make(composed([f"schedule={name}"])["schedule"])
        alike = all(schedule.factor(t, 10) == schedule.factor(t, 20) for t in range(10))
        assert alike == (schedule.total_rounds is None), name


def test_components_are_asked(configured):
    fedproc = make(composed(["algo=fedproc"])["algo"]["proc"])
    assert "falls over the whole run" in fedproc.total_rounds
    assert replace(fedproc, rounds=100).total_rounds is None
    assert Component().total_rounds is None
