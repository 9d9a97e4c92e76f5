"""Sweeps whose jobs run at the same time, through the launchers that are published for Hydra."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.runs.directory import RunDir
from tests.conftest import SMALL
from tests.integration.processes import ROOT, ran, started


def statuses(folder) -> list[tuple[str, str]]:
    (path,) = folder.glob("sweep-*[0-9a-f].csv")
    return [(row["cohort.clients"], row["status"]) for row in csv.DictReader(path.open())]


def test_joblib_divides_the_machine_and_a_failed_job_stops_no_other(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    command = [
        *("-m", "hydra/launcher=joblib", *SMALL, "cohort.clients=3000,6,7,8,9", "rounds=1"),
        *("executor._target_=tests.integration.recording_executor.LookingExecutor", f"out={tmp_path}", "name=mine"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FEDEXP_CORES": "2", "CUDA_VISIBLE_DEVICES": "4,7"}
    done = subprocess.run(
        [sys.executable, "-m", "fedexp", *command], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 1, done.stderr
    assert statuses(tmp_path / "mine") == [("3000", "failed"), *((n, "finished") for n in "6789")]
    seen = [path.read_text() for path in (tmp_path / "mine").glob(".sweep-*/seen-*")]
    assert len(seen) == 4
    assert set(seen) == {"1 core, 1 thread, gpu 4", "1 core, 1 thread, gpu 7"}
    lines = [line for line in done.stdout.splitlines() if "round 1/1" in line]
    assert sorted(line.split(" │ ")[0] for line in lines) == ["job 2", "job 3", "job 4", "job 5"]
    assert re.search(r"job 5 │ job 5 of 5, [34] done, about \d+ s left: cohort.clients=9", done.stdout)
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_jobs_and_the_same_command_continues(tmp_path, number):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    sweep = [*SMALL, "rounds=200", "every.evaluate=50", "every.checkpoint=5", f"out={tmp_path}", "name=mine"]
    command = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1", *sweep]
    paths = [run_path(composed([*sweep, f"seed={seed}"])) for seed in (0, 1)]
    with started(command, tmp_path / "output") as running:
        running.until(lambda: all((p / "checkpoint" / "latest.json").exists() for p in paths))
        running.signal(number)
        done = running.wait()
    assert done.code == 128 + number
    assert f"Stopped. This runs what is missing:\n  {shlex.join(['fedexp', *command])}\n" in done.out
    assert "Traceback" not in done.out + done.err
    assert not any(RunDir(p).result() for p in paths)  # stopped in time, else this shows nothing
    again = ran(["-m", "seed=0,1", *sweep], tmp_path / "again")  # another launcher is the same sweep
    assert again.code == 0, again.err
    assert again.out.count("continues after round") == 2


def test_submitit_puts_a_pre_empted_job_back_and_it_continues(tmp_path):
    """With submitit's executor for one machine, which treats signals as its executor for SLURM does."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    sweep = [*SMALL, "loop=trainer", "rounds=40", "every.checkpoint=1000", f"out={tmp_path}", "name=mine"]
    path = run_path(composed([*sweep, "cohort.clients=6"]))
    command = ["-m", "hydra/launcher=submitit_local", *sweep, "cohort.clients=3000,6"]
    with started(command, tmp_path / "output") as running:
        running.until(lambda: len(RunDir(path).records()) >= 2)
        os.kill(int((path / ".lock").read_text().removeprefix("process ")), signal.SIGUSR2)
        done = running.wait()
    assert done.code == 1, done.err
    assert statuses(tmp_path / "mine") == [("3000", "failed"), ("6", "finished")]
    logs = "".join(p.read_text() for p in (tmp_path / "mine").glob(".submitit/*/*.out"))
    assert "continues after round" in logs
    assert [r["round"] for r in RunDir(path).records()] == list(range(1, 41))
    assert json.loads((path / "result.json").read_text())["rounds"] == 40
