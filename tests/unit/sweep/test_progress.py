"""The line before each job of a sweep: its place, what is done, the time left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedexp.config.identity import run_path
from fedexp.errors import ConfigError
from fedexp.runs.directory import RunDir
from fedexp.runs.sweep_manifest import Manifest, Planned, work, work_left
from fedexp.sweep import announce, heading, record_job
from fedexp.sweep.progress import roughly


def sweep_of(folder: Path, *work: float, paths: str = "") -> Manifest:
    """A sweep whose jobs have this much work each; ``paths`` are letters, equal ones for equal runs."""
    names = paths or "".join(chr(ord("a") + n) for n in range(len(work)))
    same = [None if names.index(p) == n else names.index(p) for n, p in enumerate(names)]
    jobs = [Planned(["rounds=5", f"seed={n}"], p, p, work[n], same[n]) for n, p in enumerate(names)]
    manifest = Manifest(folder, jobs)
    manifest.write()
    return manifest


def ended(manifest: Manifest, number: int, seconds: float, status: str = "finished") -> None:
    record_job(manifest.reports, number, overrides=[], status=status, seconds=seconds)


def line(manifest: Manifest, number: int, at_once: int | None = 1) -> str:
    return heading(number, manifest, manifest.reports, at_once)


def test_there_is_no_estimate_before_a_job_has_finished(tmp_path: Path) -> None:
    manifest = sweep_of(tmp_path, 1, 1, 1)
    assert line(manifest, 0) == "job 1 of 3, 0 done: seed=0"
    ended(manifest, 0, 30.0, status="failed")
    assert line(manifest, 1) == "job 2 of 3, 1 done: seed=1"


def test_time_left_comes_from_finished_jobs(tmp_path: Path) -> None:
    manifest = sweep_of(tmp_path, 1, 1, 1, 1)
    ended(manifest, 0, 20.0)
    ended(manifest, 1, 40.0)
    assert line(manifest, 2) == "job 3 of 4, 2 done, about 60 s left: seed=2"


def test_jobs_are_weighed_by_their_work(tmp_path: Path) -> None:
    manifest = sweep_of(tmp_path, 1, 10, 100)
    ended(manifest, 0, 6.0)
    assert line(manifest, 1) == "job 2 of 3, 1 done, about 11 min left: seed=1"


def test_results_on_file_are_done_beforehand_and_take_no_time(tmp_path: Path) -> None:
    manifest = sweep_of(tmp_path, 0, 0, 0, 1, 1)
    assert announce(manifest) == "5 jobs: 2 to run, 3 have their results on file"
    assert line(manifest, 0) == "job 1 of 5, 3 done: seed=0"
    ended(manifest, 0, 0.01, status="skipped")
    ended(manifest, 3, 60.0)
    assert line(manifest, 4) == "job 5 of 5, 4 done, about 60 s left: seed=4"


def test_jobs_at_the_same_time_share_the_rest(tmp_path: Path) -> None:
    manifest = sweep_of(tmp_path, *[1] * 9)
    ended(manifest, 0, 60.0)
    assert "about 4 min left" in line(manifest, 2, at_once=2)  # eight minutes by two
    for number in range(1, 8):
        ended(manifest, number, 60.0)
    assert "about 60 s left" in line(manifest, 8, at_once=2)  # nobody helps the last one
    assert "left" not in line(manifest, 8, at_once=None)


def test_a_repeated_run_is_done_when_the_first_is(tmp_path: Path) -> None:
    manifest = sweep_of(tmp_path, 1, 1, 1, paths="aba")
    assert announce(manifest) == "3 jobs: 2 to run, 1 has the run of an earlier job, which is run once"
    assert line(manifest, 2) == "job 3 of 3, 0 done: seed=2 (the same run as job 1)"
    ended(manifest, 0, 60.0)
    assert line(manifest, 1) == "job 2 of 3, 2 done, about 60 s left: seed=1"


def test_a_single_job_is_one_job(tmp_path: Path) -> None:
    assert announce(sweep_of(tmp_path, 0)) == "1 job: 0 to run, 1 has its result on file"
    assert line(sweep_of(tmp_path, 1), 0) == "job 1 of 1, 0 done: rounds=5 seed=0"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (89, "89 s"), (95, "2 min"), (3600, "60 min"), (5400, "1 h 30 min"), (7200, "2 h"),
     (200_000, "2 days 8 h"), (172_800, "2 days"), (1_000_000, "12 days"), (40_000_000, "463 days"),
     (64e6, "2 years"), (1e11, "3,169 years")],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert roughly(seconds) == words


# ---------------------------------------------------------------- the manifest behind it
def test_work_grows_with_rounds_cohort_and_epochs(configured) -> None:
    usual = work(configured())
    assert work(configured("rounds=6")) == 2 * usual
    assert work(configured("cohort.fraction=1.0")) == 2 * usual
    assert work(configured("local.epochs=3")) == 3 * usual
    assert work(configured("evaluate.all_clients=true")) > usual
    assert work(configured("cohort.clients=0")) > 0  # which the run itself refuses


def test_what_is_on_file_is_no_work(configured) -> None:
    configs = [configured(f"seed={seed}") for seed in range(3)]
    RunDir(run_path(configs[0])).write("result.json", {"status": "finished"})
    (run_path(configs[1]) / "checkpoint").mkdir(parents=True)
    RunDir(run_path(configs[1])).write("checkpoint/latest.json", {"round": 2})
    done, partial, missing = (job.work for job in Manifest.of([([], c) for c in configs]).jobs)
    assert done == 0
    assert partial == pytest.approx(missing / 3)  # one round of three
    (again,) = Manifest.of([([], {**configs[0], "force": True})]).jobs
    assert again.work == missing


def test_the_manifest_is_found_by_its_reports(tmp_path: Path) -> None:
    manifest = sweep_of(tmp_path, 1, 2)
    assert Manifest.behind(manifest.reports) == manifest
    assert Manifest.behind(tmp_path / "elsewhere") is None


def test_a_manifest_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    manifest = sweep_of(tmp_path, 1)
    file = manifest.file(".json")
    file.write_text(re.sub(r',\s*"work": 1,\s*"same_as": null', "", file.read_text()))
    assert "work" not in file.read_text()
    assert Manifest.read(file) == manifest


def test_equal_runs_are_found_by_their_folder(configured) -> None:
    configs = [configured("seed=0"), configured("seed=1"), configured("seed=0"), configured("seed=0", "name=other")]
    assert [job.same_as for job in Manifest.of([([], c) for c in configs]).jobs] == [None, None, 0, None]


def test_one_run_serves_every_window(configured) -> None:
    configs = [configured("evaluate.window=3"), configured("evaluate.window=5"), configured("evaluate.window=3")]
    assert [job.same_as for job in Manifest.of([([], c) for c in configs]).jobs] == [None, 0, 0]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("all_clients", ("false", "2")),
        ("all_clients", ("1", "true")),
        ("finetune_epochs", ("1", "2")),
        ("missing", ("100", "false")),
    ],
)
def test_jobs_that_ask_different_things_of_one_run_are_refused(configured, key: str, values: tuple[str, str]) -> None:
    def manifest(*names: str) -> Manifest:
        pairs = zip(names, values, strict=True)
        return Manifest.of(
            [([], configured(f"name={name}", "evaluate=fedgela", f"evaluate.{key}={value}")) for name, value in pairs]
        )

    with pytest.raises(ConfigError, match=rf"^evaluate\.{key} is {values[0]} in one job and {values[1]} in another"):
        manifest("a", "a")
    assert [job.same_as for job in manifest("a", "b").jobs] == [None, None]


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"status": "trained"}'])
def test_what_is_not_a_result_is_work(configured, content: str) -> None:
    path = run_path(configured())
    path.mkdir(parents=True)
    (path / "result.json").write_text(content)
    assert work_left(configured()) == work(configured())
