"""A multirun from the command line to its table."""

from __future__ import annotations

import csv
import re
import shlex
import signal
from pathlib import Path

import pytest

from fedexp import cli
from fedexp.runs.__main__ import main as runs
from fedexp.runs.directory import RunDir
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
    """The last line that says how many jobs there are; the first says what is to run."""
    return [line for line in done.out.splitlines() if re.match(r"\d+ jobs?: ", line)][-1]


def test_two_by_two(sweep, tmp_path):
    done = sweep("algo=fedavg,map", "seed=0,1")
    assert (done.code, done.err) == (0, "")
    assert outcome(done) == "4 jobs: 4 finished"
    jobs = rows(tmp_path, "sweep-*[0-9a-f].csv")
    assert [(j["algo"], j["seed"], j["status"]) for j in jobs] == [
        ("fedavg", "0", "finished"), ("fedavg", "1", "finished"), ("map", "0", "finished"), ("map", "1", "finished"),
    ]  # fmt: skip
    assert len({j["aggregation.last"] for j in jobs}) > 1
    groups = rows(tmp_path, "sweep-*-groups.csv")
    assert [(g["algo"], g["seeds"], g["aggregation.last.n"]) for g in groups] == [
        ("fedavg", "2", "2"),
        ("map", "2", "2"),
    ]
    mean = sum(float(j["aggregation.last"]) for j in jobs[:2]) / 2
    assert float(groups[0]["aggregation.last.mean"]) == pytest.approx(mean)
    assert "±" in done.out
    runs = [p for p in (tmp_path / "runs" / "mine").iterdir() if p.is_dir() and not p.name.startswith(".")]
    assert len(runs) == 4
    assert all((p / "result.json").exists() for p in runs)

    lines = [line for line in done.out.splitlines() if re.match(r"job \d of 4", line)]
    assert [re.sub(r"\d+ s left", "? s left", line) for line in lines] == [
        "job 1 of 4, 0 done: algo=fedavg seed=0",
        "job 2 of 4, 1 done, about ? s left: algo=fedavg seed=1",
        "job 3 of 4, 2 done, about ? s left: algo=map seed=0",
        "job 4 of 4, 3 done, about ? s left: algo=map seed=1",
    ]

    again = sweep("algo=fedavg,map", "seed=0,1,2")
    assert again.code == 0
    assert "6 jobs: 2 to run, 4 have their results on file" in again.out
    assert "job 3 of 6, 4 done: algo=fedavg seed=2" in again.out
    assert outcome(again) == "6 jobs: 2 finished, 4 skipped"


def test_a_failed_job_is_shown_and_stops_no_other(sweep, tmp_path):
    done = sweep("cohort.clients=3000,6", "seed=0,1")
    assert done.code == 1
    assert outcome(done) == "4 jobs: 2 finished, 2 failed"
    failure = done.out.split("job 1 failed: ")[1].splitlines()
    assert failure[0].startswith("ConfigError: partition: 1438 samples cannot give 3000 clients")
    jobs = rows(tmp_path, "sweep-*[0-9a-f].csv")
    assert failure[1] == f"  run    {jobs[0]['path']}"
    assert "cohort.clients=3000" in failure[2]  # the command for another try
    assert "Traceback" not in done.out + done.err
    assert [(j["cohort.clients"], j["status"]) for j in jobs] == [
        ("3000", "failed"), ("3000", "failed"), ("6", "finished"), ("6", "finished"),
    ]  # fmt: skip
    assert jobs[0]["error"].startswith("ConfigError: partition")
    again = sweep("cohort.clients=3000,6", "seed=0,1")
    assert again.code == 1
    assert outcome(again) == "4 jobs: 2 skipped, 2 failed"


def test_a_run_that_failed_on_the_way_names_its_traceback(sweep, tmp_path):
    done = sweep("limit=0.00001", "seed=0")
    assert done.code == 1
    (job,) = rows(tmp_path, "sweep-*[0-9a-f].csv")
    assert job["error_file"] == f"{job['path']}/error.txt"
    assert f"  see    {job['error_file']}" in done.out
    assert outcome(done) == "1 job: 1 failed"


def test_a_planned_sweep_leaves_nothing_behind(sweep, tmp_path):
    done = sweep("seed=0,1", "plan=true")
    assert (done.code, done.err) == (0, "")
    assert "2 jobs: 2 missing" in done.out
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
    second = tmp_path / "runs" / "mine" / cli.check(arguments).sweep.jobs[1].path
    with started(arguments, tmp_path / "output") as running:
        running.until((second / "metrics.jsonl").exists)
        running.signal(number)
        done = running.wait()
    assert done.code == 128 + number
    assert outcome(done) == "2 jobs: 1 finished, 1 not ended"
    assert f"Stopped. This runs what is missing:\n  {shlex.join(['fedexp', *arguments])}\n" in done.out
    assert "Traceback" not in done.out + done.err


def test_a_plan_lists_the_jobs_with_their_cost_and_leaves_no_run(sweep, tmp_path):
    assert sweep("algo=fedavg").code == 0
    before = sorted(tmp_path.glob("runs/mine/*/*"))
    done = sweep("algo=fedavg,map", "cohort.clients=6,3000", "plan=true")
    assert (done.code, done.err) == (1, "")
    assert outcome(done) == "4 jobs: 1 done, 2 cannot run, 1 missing"
    lines = [line.split() for line in done.out.splitlines()]
    assert ["1", "fedavg", "6", "done"] in [line[:4] for line in lines]
    (planned,) = [line for line in lines if line[:4] == ["3", "map", "6", "missing"]]
    assert planned[-1] == "timed"
    assert "job 2 cannot run: ConfigError: partition: 1438 samples" in done.out
    assert sorted(tmp_path.glob("runs/mine/*/*")) == before
    assert done.out.count("job 1 of") == 0  # nothing was run


def test_equal_runs_are_run_once(sweep, tmp_path):
    done = sweep("executor=serial,auto", "seed=0,1", "force=true")
    assert (done.code, done.err) == (0, "")
    assert "4 jobs: 2 to run, 2 have the run of an earlier job, which is run once" in done.out
    assert "job 3 of 4, 4 done: executor=auto seed=0 (the same run as job 1)" in done.out
    assert done.out.count("round 1/1") == 2
    assert outcome(done) == "4 jobs: 2 finished, 2 skipped"
    jobs = rows(tmp_path, "sweep-*[0-9a-f].csv")
    assert [j["same_as"] for j in jobs] == ["", "", "1", "2"]
    assert [j["aggregation.last"] for j in jobs[:2]] == [j["aggregation.last"] for j in jobs[2:]]


def test_a_run_is_shown_with_the_means_of_each_window(sweep, tmp_path):
    done = sweep("evaluate.window=2,1,3", "rounds=3")
    assert (done.code, done.err) == (0, "")
    assert "3 jobs: 1 to run, 2 have the run of an earlier job, which is run once" in done.out
    jobs = rows(tmp_path, "sweep-*[0-9a-f].csv")
    accuracies = [r["aggregation"]["accuracy"] for r in RunDir(Path(jobs[0]["path"])).records()]
    assert [(j["evaluate.window"], j["same_as"]) for j in jobs] == [("2", ""), ("1", "1"), ("3", "1")]
    assert [int(j["aggregation.window"]) for j in jobs] == [2, 1, 3]
    means = [sum(accuracies[-n:]) / n for n in (2, 1, 3)]
    assert [float(j["aggregation.mean"]) for j in jobs] == pytest.approx(means)
    assert len(set(means)) == 3


@pytest.mark.parametrize("more", [[], ["plan=true"]])
def test_what_one_run_cannot_have_twice_is_not_swept(sweep, tmp_path, more):
    done = sweep("evaluate.all_clients=false,2", *more)
    assert (done.code, done.out) == (2, "")
    assert "evaluate.all_clients is false in one job and 2 in another" in done.err
    assert not (tmp_path / "runs").exists()
    (advised,) = re.findall("'(name=.*)'", done.err)
    done = sweep("evaluate.all_clients=false,2", advised, *more)
    assert (done.code, done.err) == (0, "")
    names = {p.name for p in (tmp_path / "runs").glob("*")}
    assert names == (set() if more else {"mine-False", "mine-2"})


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
