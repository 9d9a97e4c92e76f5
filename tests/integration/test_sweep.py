"""A multirun from the command line to its table."""

from __future__ import annotations

import csv
import shlex
import signal

import pytest

from fedexp import cli
from fedexp.rundir import RunDir
from fedexp.runs.__main__ import main as runs
from tests.conftest import SMALL
from tests.integration.processes import Done, ran, started


@pytest.fixture
def sweep(tmp_path):
    arguments = ["-m", *SMALL, f"out={tmp_path / 'runs'}", "name=mine", "rounds=1"]
    return lambda *more: ran([*arguments, *more], tmp_path / "output")


def rows(tmp_path, pattern: str) -> list[dict[str, str]]:
    (path,) = (tmp_path / "runs" / "mine").glob(pattern)
    return list(csv.DictReader(path.open()))


def outcome(done: Done) -> str:
    return next(line for line in done.out.splitlines() if " jobs: " in line)


def test_two_by_two(sweep, tmp_path):
    done = sweep("algo=fedavg,map", "seed=0,1")
    assert (done.code, done.err) == (0, "")
    assert outcome(done) == "4 jobs: 4 finished"
    jobs = rows(tmp_path, "sweep-*[0-9a-f].csv")
    assert [(j["algo"], j["seed"], j["status"]) for j in jobs] == [
        ("fedavg", "0", "finished"), ("fedavg", "1", "finished"), ("map", "0", "finished"), ("map", "1", "finished"),
    ]  # fmt: skip
    assert len({j["aggregation_last"] for j in jobs}) > 1
    groups = rows(tmp_path, "sweep-*-groups.csv")
    assert [(g["algo"], g["seeds"], g["aggregation_last_n"]) for g in groups] == [
        ("fedavg", "2", "2"),
        ("map", "2", "2"),
    ]
    mean = sum(float(j["aggregation_last"]) for j in jobs[:2]) / 2
    assert float(groups[0]["aggregation_last_mean"]) == pytest.approx(mean)
    assert "±" in done.out
    runs = [p for p in (tmp_path / "runs" / "mine").iterdir() if p.is_dir() and not p.name.startswith(".")]
    assert len(runs) == 4
    assert all((p / "result.json").exists() for p in runs)

    again = sweep("algo=fedavg,map", "seed=0,1,2")
    assert again.code == 0
    assert outcome(again) == "6 jobs: 2 finished, 4 skipped"


def test_a_failed_job_is_shown_and_stops_no_other(sweep, tmp_path):
    done = sweep("partition=classes", "partition.classes=99,2", "seed=0,1")
    assert done.code == 1
    assert outcome(done) == "4 jobs: 2 finished, 2 failed"
    assert "job 0 failed: ConfigError: partition: partition.classes=99 has to lie between 1 and 10" in done.out
    assert "partition.classes=99" in done.out.split("job 0 failed")[1].splitlines()[1]  # the command for another try
    assert "Traceback" not in done.out + done.err
    jobs = rows(tmp_path, "sweep-*[0-9a-f].csv")
    assert [(j["partition.classes"], j["status"]) for j in jobs] == [
        ("99", "failed"), ("99", "failed"), ("2", "finished"), ("2", "finished"),
    ]  # fmt: skip
    assert jobs[0]["error"].startswith("ConfigError: partition: partition.classes=99")
    again = sweep("partition=classes", "partition.classes=99,2", "seed=0,1")
    assert again.code == 1
    assert outcome(again) == "4 jobs: 2 skipped, 2 failed"


def test_a_planned_sweep_leaves_nothing_behind(sweep, tmp_path):
    done = sweep("seed=0,1", "plan=true")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("bytes per round") == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("arguments", [["seed=0,1"], ["seed=0,1", "hydra/launcher=joblib"]], ids=" ".join)
def test_a_sweep_where_nothing_can_be_written(sweep, arguments):
    done = sweep(*arguments, "out=/dev/null/runs")
    assert done.code == 1
    assert done.err.startswith("DiskError: /dev/null/runs")
    assert "Traceback" not in done.out + done.err


def test_a_misspelt_value_stops_the_sweep_before_it_begins(sweep, tmp_path):
    done = sweep("algo=fedavg,fedrz")
    assert done.code == 2
    assert "algo=fedrz: there is no such choice" in done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_sweep_and_shows_what_is_done(tmp_path, number):
    arguments = ["-m", *SMALL, f"out={tmp_path / 'runs'}", "name=mine", "rounds=1,100000"]
    with started(arguments, tmp_path / "output") as running:
        running.until(lambda: running.says("100000 rounds"))
        running.signal(number)
        done = running.wait()
    assert done.code == 128 + number
    assert outcome(done) == "1 jobs: 1 finished"
    assert f"Stopped. This runs what is missing:\n  {shlex.join(['fedexp', *arguments])}\n" in done.out
    assert "Traceback" not in done.out + done.err


def test_plans_of_a_sweep_leave_no_table(sweep, tmp_path):
    done = sweep("plan=true", "algo=fedavg,fedrs")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("bytes per round") == 2
    assert list((tmp_path / "runs").rglob("*.csv")) == []


def test_a_killed_sweep_runs_only_what_is_missing(tmp_path, capsys):
    arguments = ["-m", *SMALL, f"out={tmp_path / 'runs'}", "name=mine", "seed=0,1,2", "rounds=30", "every.checkpoint=5"]
    folder = tmp_path / "runs" / "mine"
    second = folder / cli.check(arguments).sweep.jobs[1].path
    with started(arguments, tmp_path / "output") as running:
        running.until((second / "checkpoint" / "latest.json").exists)
        assert runs(["status", str(folder)]) == 1
        assert "running" in capsys.readouterr().out
        running.signal(signal.SIGKILL)
        running.wait()
    assert RunDir(second).result() is None  # killed in time, else this shows nothing
    assert runs(["status", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "3 runs: 1 done, 1 partial, 1 missing" in out
    assert out.count("python -m fedexp") == 2
    done = ran(arguments, tmp_path / "again")
    assert done.code == 0, done.err
    assert outcome(done) == "3 jobs: 2 finished, 1 skipped"
    assert done.out.count("continues after round") == 1
    assert runs(["status", str(folder)]) == 0
    assert "3 runs: 3 done" in capsys.readouterr().out
