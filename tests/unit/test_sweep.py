"""The table over the jobs of a multirun, against numbers worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedexp.sweep import Job, Spread, collect, record_job, show, table, write_csv


def result(last: float | None, personal: float | None = None) -> dict[str, Any]:
    blocks: dict[str, Any] = {"status": "finished"}
    if last is not None:
        blocks["aggregation"] = {"last": last, "best": last + 0.01}
    if personal is not None:
        blocks["personalization"] = {"last": personal, "best": personal}
    return blocks


def job(number: int, overrides: str, outcome: dict[str, Any] | None) -> Job:
    if outcome is None:
        return Job(number, overrides.split(), "failed", error="DataError: no such file")
    return Job(number, overrides.split(), "finished", path=f"multirun/x/{number}", result=outcome)


# 0.1, 0.2, 0.6: mean 0.3, squares 0.04 + 0.01 + 0.09 = 0.14, over n - 1 = 2: std sqrt(0.07) = 0.2645751311
SWEEP = [
    job(0, "rounds=5 algo=map seed=0", result(0.1, 0.9)),
    job(1, "rounds=5 algo=map seed=1", result(0.2, 0.9)),
    job(2, "rounds=5 algo=map seed=2", result(0.6, 0.9)),
    job(3, "rounds=5 algo=fedper seed=0", result(None, 0.8)),
    job(4, "rounds=5 algo=fedper seed=1", None),
]


def screen(jobs: list[Job], width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    show(jobs, console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_mean_and_sample_deviation_over_seeds() -> None:
    row, _ = table(SWEEP)
    spread = row.metrics["aggregation", "last"]
    assert spread.mean == pytest.approx(0.3)
    assert spread.std == pytest.approx(0.2645751311)
    assert spread.n == row.seeds == 3
    assert row.metrics["aggregation", "best"].mean == pytest.approx(0.31)
    assert row.metrics["personalization", "last"].std == pytest.approx(0.0)


def test_only_varying_overrides_are_columns() -> None:
    assert [row.settings for row in table(SWEEP)] == [{"algo": "map"}, {"algo": "fedper"}]


def test_one_seed_has_no_deviation_and_failed_jobs_do_not_count_as_one() -> None:
    _, row = table(SWEEP)
    assert row.metrics["personalization", "last"] == Spread(0.8, None, 1)
    assert row.seeds == 1
    assert row.status == "1 finished, 1 failed"


def test_absent_metrics_stay_absent() -> None:
    _, row = table(SWEEP)
    assert ("aggregation", "last") not in row.metrics
    line = next(line for line in screen(SWEEP) if line.startswith("fedper"))
    assert line.split() == ["fedper", "1/2", "–", "–", "80.0", "80.0"]


def test_the_screen_shows_percents() -> None:
    lines = screen(SWEEP)
    assert lines[1] == "5 jobs: 4 finished, 1 failed"
    assert lines[2].split() == ["aggregation,", "%", "personalization,", "%"]
    assert lines[3].split() == ["algo", "seeds", "last", "best", "last", "best"]
    assert " ".join(lines[4].split()) == "map 3 30.0 ± 26.5 31.0 ± 26.5 90.0 ± 0.0 90.0 ± 0.0"


@pytest.mark.parametrize("width", [40, 80])
def test_a_failed_job_is_named_with_its_error_and_command(width: int) -> None:
    lines = screen(SWEEP, width)
    at = lines.index("job 4 failed: DataError: no such file")
    assert lines[at + 1] == "  fedexp rounds=5 algo=fedper seed=1"


def test_a_group_that_only_failed_has_its_row() -> None:
    lines = screen([*SWEEP, job(5, "rounds=5 algo=moon seed=0", None)])
    (line,) = [line for line in lines if line.startswith("moon")]
    assert line.split() == ["moon", "0/1", "–", "–", "–", "–"]


def test_a_job_without_a_file_is_missed() -> None:
    assert any(line.startswith("no record of job 2:") for line in screen([j for j in SWEEP if j.number != 2]))
    assert not any("no record" in line for line in screen(SWEEP))


def test_commands_survive_the_shell() -> None:
    overrides = ["name=my table", "local.betas=[0.9,0.99]", "+algo.extra={a: 1}"]
    assert shlex.split(Job(0, overrides, "failed").command) == ["fedexp", *overrides]


def test_the_same_seed_twice_is_one_sample() -> None:
    (row,) = table([job(0, "seed=0", result(0.2)), job(1, "seed=1", result(0.4)), job(2, "seed=1", result(0.4))])
    assert row.metrics["aggregation", "last"].n == row.seeds == 2
    assert row.metrics["aggregation", "last"].mean == pytest.approx(0.3)


def test_groups_ignore_the_order_and_the_marks_of_overrides() -> None:
    jobs = [job(0, "algo=map ++lr=1 seed=0", result(0.2)), job(1, "seed=1 lr=1 algo=map", result(0.4))]
    (row,) = table(jobs)
    assert row.seeds == 2
    assert row.settings == {}


def test_only_the_runs_own_seed_is_set_aside() -> None:
    jobs = [job(0, "partition.seed=0", result(0.2)), job(1, "partition.seed=1", result(0.4))]
    assert [row.settings for row in table(jobs)] == [{"partition.seed": "0"}, {"partition.seed": "1"}]


def test_an_override_that_some_jobs_lack_is_a_dash() -> None:
    jobs = [job(0, "algo=fedavg", result(0.2)), job(1, "algo=map algo.mu=2", result(0.4))]
    assert [line.split()[:2] for line in screen(jobs)[4:6]] == [["fedavg", "–"], ["map", "2"]]


def test_headings_are_short_where_that_is_clear() -> None:
    jobs = [
        job(0, "data.size=1 model.size=1 partition.classes_per_client=2", result(0.2)),
        job(1, "data.size=2 model.size=2 partition.classes_per_client=5", result(0.4)),
    ]
    heading = " ".join(screen(jobs)[2:4])
    assert "data.size" in heading
    assert "model.size" in heading
    assert "classes_per_" in heading
    assert "partition" not in heading


def test_the_highest_mean_is_bold() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    show([job(0, "algo=a", result(0.2)), job(1, "algo=b", result(0.4))], console)
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[1m40.0\x1b[0m" in console.file.getvalue()
    assert "\x1b[1m20.0" not in console.file.getvalue()


def test_no_jobs() -> None:
    assert screen([]) == ["", "0 jobs: none ended"]


def test_jobs_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    record_job(folder, 11, overrides=["seed=1"], status="skipped", path=Path("a/b"), result=result(0.5))
    record_job(folder, 2, overrides=["seed=0"], status="failed", error="ValueError: bad\n  File x\n")
    assert collect(folder) == [
        Job(2, ["seed=0"], "failed", error="ValueError: bad"),
        Job(11, ["seed=1"], "skipped", path="a/b", result=result(0.5)),
    ]


def test_a_repeated_job_replaces_its_file_and_leaves_no_draft(tmp_path: Path) -> None:
    record_job(tmp_path, 0, overrides=[], status="failed", error="x")
    record_job(tmp_path, 0, overrides=[], status="finished", result=result(0.5))
    assert [j.status for j in collect(tmp_path)] == ["finished"]
    assert [file.name for file in tmp_path.iterdir()] == ["job-0000.json"]


def test_a_damaged_file_makes_a_job_without_a_record(tmp_path: Path) -> None:
    for number in (0, 1):
        record_job(tmp_path, number, overrides=[f"seed={number}"], status="finished")
    (tmp_path / "job-0000.json").write_text('{"number": 0, "over')
    assert [job.number for job in collect(tmp_path)] == [1]


def test_who_is_reading_a_file_never_sees_half_of_the_next(tmp_path: Path) -> None:
    with record_job(tmp_path, 0, overrides=[], status="finished").open() as reader:
        record_job(tmp_path, 0, overrides=[], status="failed", error="x")
        assert json.load(reader)["status"] == "finished"


def test_csv_has_every_job_and_every_group_in_full_precision(tmp_path: Path) -> None:
    third = job(5, "rounds=5 algo=fedavg lr=0.1 seed=0", result(1 / 3))
    every, grouped = write_csv([*SWEEP, third], tmp_path / "out" / "sweep.csv")
    assert (every.name, grouped.name) == ("sweep.csv", "sweep-groups.csv")
    with every.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["job"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert float(rows[5]["aggregation_last"]) == 1 / 3
    assert (rows[5]["lr"], rows[0]["lr"], rows[0]["seed"]) == ("0.1", "", "0")
    assert rows[3]["aggregation_last"] == ""
    assert (rows[4]["status"], rows[4]["error"]) == ("failed", "DataError: no such file")
    with grouped.open(newline="") as file:
        groups = list(csv.DictReader(file))
    assert [group["algo"] for group in groups] == ["map", "fedper", "fedavg"]
    assert float(groups[0]["aggregation_last_std"]) == pytest.approx(0.2645751311, abs=1e-10)
    assert (groups[1]["aggregation_last_mean"], groups[1]["personalization_last_std"]) == ("", "")
    assert groups[1]["status"] == "1 finished, 1 failed"
