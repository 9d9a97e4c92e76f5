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

from fedexp.evaluate.missing import MEASURES
from fedexp.sweep import SeedSpread, SweepJob, collect, record_job, show, table, write_csv
from fedexp.sweep.jobs import folded, listed


def result(last: float | None, personal: float | None = None, **more: Any) -> dict[str, Any]:
    blocks: dict[str, Any] = {"status": "finished"}
    if last is not None:
        blocks["aggregation"] = {"last": last, "best": last + 0.01, "mean": last - 0.1, "std": 0.02, "window": 10}
    if personal is not None:
        blocks["personalization"] = {"last": personal, "best": personal, **more}
    return blocks


def job(number: int, overrides: str, outcome: dict[str, Any] | None) -> SweepJob:
    path = f"multirun/x/{number}"
    if outcome is None:
        return SweepJob(number, overrides.split(), "failed", path=path, error="DataError: no such file")
    return SweepJob(number, overrides.split(), "finished", path=path, result=outcome)


# 0.1, 0.2, 0.6: mean 0.3, squares 0.04 + 0.01 + 0.09 = 0.14, over n - 1 = 2: std sqrt(0.07) = 0.2645751311
SWEEP = [
    job(0, "rounds=5 algo=map seed=0", result(0.1, 0.9)),
    job(1, "rounds=5 algo=map seed=1", result(0.2, 0.9)),
    job(2, "rounds=5 algo=map seed=2", result(0.6, 0.9)),
    job(3, "rounds=5 algo=fedper seed=0", result(None, 0.8)),
    job(4, "rounds=5 algo=fedper seed=1", None),
]


def screen(jobs: list[SweepJob], width: int = 80, total: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    show(jobs, console, total)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_mean_and_sample_deviation_over_seeds() -> None:
    row, _ = table(SWEEP)
    spread = row.metrics["aggregation.last"]
    assert spread.mean == pytest.approx(0.3)
    assert spread.std == pytest.approx(0.2645751311)
    assert spread.n == row.seeds == 3
    assert row.metrics["aggregation.best"].mean == pytest.approx(0.31)
    assert row.metrics["personalization.last"].std == pytest.approx(0.0)


def test_only_varying_overrides_are_columns() -> None:
    assert [row.settings for row in table(SWEEP)] == [{"algo": "map"}, {"algo": "fedper"}]


def test_one_seed_has_no_deviation_and_failed_jobs_do_not_count_as_one() -> None:
    _, row = table(SWEEP)
    assert row.metrics["personalization.last"] == SeedSpread(0.8, None, 1)
    assert row.seeds == 1
    assert row.status == "1 finished, 1 failed"


def row_of(jobs: list[SweepJob], title: str, first: str) -> str:
    """The row that begins with a word, in the table with this title."""
    lines = screen(jobs)
    below = lines[lines.index(f"{title}, %") :]
    return " ".join(next(line for line in below if line.startswith(f"{first} ")).split())


def test_absent_metrics_stay_absent() -> None:
    _, row = table(SWEEP)
    assert "aggregation.last" not in row.metrics
    assert row_of(SWEEP, "aggregation", "fedper") == "fedper 1/2 – – –"
    assert row_of(SWEEP, "personalization", "fedper") == "fedper 1/2 80.0 80.0"


def test_the_screen_shows_percents_of_both_goals() -> None:
    lines = screen(SWEEP)
    assert lines[1] == "5 jobs: 4 finished, 1 failed"
    assert [line.split() for line in lines[4:6]] == [["mean", "of"], ["algo", "seeds", "last", "best", "last", "10"]]
    assert row_of(SWEEP, "aggregation", "map") == "map 3 30.0 ± 26.5 31.0 ± 26.5 20.0 ± 26.5"
    assert row_of(SWEEP, "personalization", "map") == "map 3 90.0 ± 0.0 90.0 ± 0.0"


def test_the_papers_numbers_have_columns() -> None:
    more = {"mean": 0.7, "std": 0.03, "window": 10, "before": 0.4, "worst_decile": 0.3, "all_clients": 0.8}
    jobs = [job(n, f"algo={algo} seed=0", result(None, 0.9, **more)) for n, algo in enumerate(("map", "fedphp"))]
    lines = screen(jobs)
    heading = lines.index("personalization, %") + 1
    assert " ".join(lines[heading].split()) == "mean of all worst"
    assert " ".join(lines[heading + 1].split()) == "algo seeds last best last 10 clients decile before"
    assert row_of(jobs, "personalization", "map") == "map 1 90.0 90.0 70.0 ± 3.0 80.0 30.0 40.0"
    assert "aggregation, %" not in lines


def test_the_deviation_of_one_seed_is_over_rounds_and_of_several_over_seeds() -> None:
    one = [job(0, "seed=0", result(0.5))]
    assert table(one)[0].shown("aggregation.mean") == SeedSpread(0.4, 0.02, 1)
    assert table(one)[0].shown("aggregation.last") == SeedSpread(0.5, None, 1)
    two = table([*one, job(1, "seed=1", result(0.7))])[0].shown("aggregation.mean")
    assert two is not None
    assert two.std == pytest.approx(0.2 / 2**0.5)


def test_windows_of_different_lengths_are_both_named() -> None:
    short = result(0.5)
    short["aggregation"]["window"] = 3
    lines = screen([job(0, "rounds=3", short), job(1, "rounds=50", result(0.6))])
    assert lines[lines.index("aggregation, %") + 2].split()[-2:] == ["last", "3–10"]


def test_ga_and_pa_are_shown_where_the_protocol_has_them() -> None:
    outcome = result(0.5, 0.6, PA=0.77)
    outcome["aggregation"]["GA"] = 0.55
    jobs = [job(0, "algo=fedgela", outcome), job(1, "algo=map", result(0.4, 0.5))]
    assert row_of(jobs, "aggregation", "fedgela").endswith(" 55.0")
    assert row_of(jobs, "personalization", "map").endswith(" –")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_fit_the_screen_and_lose_nothing(width: int) -> None:
    more = {"mean": 0.7, "std": 0.03, "window": 10, "before": 0.4, "worst_decile": 0.3, "all_clients": 0.8}
    keys = "algo.rs.alpha={0} algo.hpm.weight={0} seed={1}"
    jobs = [job(2 * a + s, keys.format(a, s), result(0.5, 0.9 + s / 100, **more)) for a in (0, 1) for s in (0, 1)]
    lines = screen(jobs, width)
    assert max(len(line) for line in lines) <= width
    shown = lines[lines.index("personalization, %") :]
    assert sum(line.count("90.5") for line in shown) == 4
    assert sum(line.count("± 0.7") for line in shown) == 4
    assert sum(line.count("± 0.0") for line in shown) == 8


@pytest.mark.parametrize("width", [40, 50, 60, 70])
@pytest.mark.parametrize("keys", ["optim.lr={0} seed={1}", "optim.lr={0} partition.classes_per_client={0} seed={1}"])
def test_narrow_screens_break_headings_between_words_and_lose_nothing(width: int, keys: str) -> None:
    more = {"mean": 0.7, "std": 0.03, "window": 10, "before": 0.4, "worst_decile": 0.3, "all_clients": 0.8}
    jobs = [job(2 * a + s, keys.format(a, s), result(0.5, 0.9 + s / 100, **more)) for a in (0, 1) for s in (0, 1)]
    lines = screen(jobs, width)
    assert max(len(line) for line in lines) <= width
    tables = lines[lines.index("personalization, %") : next(n for n, line in enumerate(lines) if line.startswith("±"))]
    words = " ".join(tables).split()
    assert "…" not in "".join(words)
    assert {"clients", "decile", "before", "seeds"} <= set(words)
    assert "optim.lr" in words or {"optim.", "lr"} <= set(words)
    assert [words.count(number) for number in ("90.5", "70.0", "80.0", "30.0", "40.0")] == [4, 2, 2, 2, 2]


@pytest.mark.parametrize("width", [40, 80])
def test_a_failed_job_is_named_with_its_error_run_and_command(width: int) -> None:
    lines = screen(SWEEP, width)
    at = lines.index("job 5 failed: DataError: no such file")
    assert lines[at + 1] == "  run    multirun/x/4"
    assert lines[at + 2] == "  again  fedexp rounds=5 algo=fedper seed=1"


def test_the_traceback_of_a_failed_job_is_named(tmp_path: Path) -> None:
    (tmp_path / "error.txt").write_text("DataError: gone")
    failed = SweepJob(0, ["seed=0"], "failed", path=str(tmp_path), error="DataError: gone")
    assert f"  see    {tmp_path / 'error.txt'}" in screen([failed])
    (row,) = csv.DictReader(write_csv([failed], tmp_path / "sweep.csv")[0].open())
    assert (row["path"], row["error_file"]) == (str(tmp_path), str(tmp_path / "error.txt"))


def test_a_group_that_only_failed_has_its_row() -> None:
    jobs = [*SWEEP, job(5, "rounds=5 algo=moon seed=0", None)]
    assert row_of(jobs, "aggregation", "moon") == "moon 0/1 – – –"


def test_a_sweep_that_only_failed_has_a_table_too() -> None:
    lines = screen([job(0, "algo=map", None), job(1, "algo=moon", None)])
    assert ["moon", "0/1"] in [line.split() for line in lines]


def test_jobs_without_a_file_are_missed() -> None:
    lines = screen([j for j in SWEEP if j.number != 2])
    assert lines[1] == "5 jobs: 3 finished, 1 failed, 1 not ended"
    assert "job 3: not ended; it was stopped or killed, or still running" in lines
    lines = screen(SWEEP, total=9)
    assert lines[1] == "9 jobs: 4 finished, 1 failed, 4 not ended"
    assert "jobs 6 to 9: not ended; they were stopped or killed, or still running" in lines
    assert not any("not ended" in line for line in screen(SWEEP))


def test_one_job_is_not_many() -> None:
    assert screen(SWEEP[:1])[1] == "1 job: 1 finished"


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([2], "job 3"), ([0, 1], "jobs 1 and 2"), ([0, 1, 2], "jobs 1 to 3"), ([5, 0, 2, 3, 4], "jobs 1 and 3 to 6"),
        ([0, 2, 3, 7], "jobs 1, 3, 4 and 8"),
    ],
)  # fmt: skip
def test_lists_of_jobs(numbers: list[int], words: str) -> None:
    assert listed(numbers) == words


def test_commands_survive_the_shell() -> None:
    overrides = ["name=my table", "local.betas=[0.9,0.99]", "+algo.extra={a: 1}"]
    assert shlex.split(SweepJob(0, overrides, "failed").command) == ["fedexp", *overrides]


def test_the_command_of_a_job_keeps_what_is_on_file_and_reads_the_same_configurations(tmp_path: Path) -> None:
    record_job(
        tmp_path,
        0,
        overrides=["algo=mine", "++force=true"],
        status="failed",
        error="x",
        options=["--config-dir", "/my conf"],
    )
    (failed,) = collect(tmp_path)
    assert failed.command == "fedexp --config-dir '/my conf' algo=mine"


def test_the_same_seed_twice_is_one_sample() -> None:
    (row,) = table([job(0, "seed=0", result(0.2)), job(1, "seed=1", result(0.4)), job(2, "seed=1", result(0.4))])
    assert row.metrics["aggregation.last"].n == row.seeds == 2
    assert row.metrics["aggregation.last"].mean == pytest.approx(0.3)


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
    assert row_of(jobs, "aggregation", "fedavg").split()[1] == "–"
    assert row_of(jobs, "aggregation", "map").split()[1] == "2"


def test_headings_are_whole_keys_folded_where_they_are_wide() -> None:
    jobs = [
        job(0, "seed=1 algo.hpm.weight=1 partition.classes_per_client=2", result(0.2)),
        job(1, "seed=1 algo.hpm.weight=2 partition.classes_per_client=5", result(0.4)),
    ]
    lines = screen(jobs)
    first = lines.index("aggregation, %") + 1
    columns = [(line[:11].strip(), line[11:25].strip()) for line in lines[first : first + 3]]
    assert columns == [("", "partition."), ("algo.hpm.", "classes_per_"), ("weight", "client")]


def test_a_heading_in_the_narrowest_column_has_no_empty_line() -> None:
    assert folded("partition.classes_per_client", width=0).split("\n") == ["partition.", "classes_", "per_", "client"]
    assert folded("optim.lr", width=0) == "optim.\nlr"


def test_the_highest_mean_is_bold() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    show([job(0, "algo=a", result(0.2)), job(1, "algo=b", result(0.4))], console)
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[1m40.0\x1b[0m" in console.file.getvalue()
    assert "\x1b[1m20.0" not in console.file.getvalue()


def with_missing(n: int) -> dict[str, Any]:
    return {**result(0.5), "missing": {**dict.fromkeys(MEASURES, n / 10), "window": 4}}


def test_missing_classes_have_a_table_where_they_were_measured() -> None:
    lines = screen([job(n, f"algo={'ab'[n]}", with_missing(n + 1)) for n in (0, 1)], width=120)
    assert lines[lines.index("missing classes, %") + 1].split() == ["algo", "seeds", "absent", "forgotten"]
    assert ["b", "1", "20.0", "20.0"] in [line.split() for line in lines]
    assert any(line.startswith("forgotten: ") for line in lines)
    older = screen(SWEEP)
    assert not any("missing classes" in line or line.startswith("absent: ") for line in older)


def test_what_is_forgotten_has_no_best() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    show([job(0, "algo=a", with_missing(1)), job(1, "algo=b", with_missing(4))], console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("\x1b[1m40.0\x1b[0m") == 1  # absent


def test_csv_has_every_measure_of_missing_classes(tmp_path: Path) -> None:
    every, groups = write_csv([job(0, "algo=a", with_missing(3)), *SWEEP], tmp_path / "sweep.csv")
    rows, of_groups = list(csv.DictReader(every.open())), list(csv.DictReader(groups.open()))
    assert {rows[0][f"missing.{name}"] for name in MEASURES} == {"0.3"}
    assert {rows[1][f"missing.{name}"] for name in MEASURES} == {""}
    assert (rows[0]["missing.window"], of_groups[0]["missing.window"], of_groups[1]["missing.window"]) == ("4", "4", "")


def test_no_jobs() -> None:
    assert screen([]) == ["", "0 jobs: none ended"]


def test_jobs_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    record_job(folder, 11, overrides=["seed=1"], status="skipped", path=Path("a/b"), result=result(0.5))
    record_job(folder, 2, overrides=["seed=0"], status="failed", error="ValueError: bad\n  File x\n")
    assert collect(folder) == [
        SweepJob(2, ["seed=0"], "failed", error="ValueError: bad"),
        SweepJob(11, ["seed=1"], "skipped", path="a/b", result=result(0.5)),
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
    assert [row["job"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert float(rows[5]["aggregation.last"]) == 1 / 3
    assert (rows[5]["lr"], rows[0]["lr"], rows[0]["seed"]) == ("0.1", "", "0")
    assert rows[3]["aggregation.last"] == ""
    assert (rows[4]["status"], rows[4]["error"]) == ("failed", "DataError: no such file")
    assert (rows[4]["path"], rows[4]["error_file"]) == ("multirun/x/4", "")
    with grouped.open(newline="") as file:
        groups = list(csv.DictReader(file))
    assert [group["algo"] for group in groups] == ["map", "fedper", "fedavg"]
    assert float(groups[0]["aggregation.last.std"]) == pytest.approx(0.2645751311, abs=1e-10)
    assert (groups[1]["aggregation.last.mean"], groups[1]["personalization.last.std"]) == ("", "")
    assert groups[1]["status"] == "1 finished, 1 failed"


def test_csv_has_the_papers_numbers(tmp_path: Path) -> None:
    detail = {"before": 0.1, "worst_decile": 1 / 3, "std": 0.2, "owned": 0.9, "clients": [0.5, 0.7]}
    more = {"mean": 0.7, "std": 0.03, "window": 10, "before": 0.4, "worst_decile": 0.3, "all_clients": 0.8}
    jobs = [job(n, f"algo.hpm.weight={n}", result(0.5, 0.6, **more, all_clients_detail=detail)) for n in (0, 1)]
    every, groups = write_csv(jobs, tmp_path / "sweep.csv")
    row = next(csv.DictReader(every.open()))
    numbers = {key.removeprefix("personalization."): value for key, value in row.items() if value}
    expected = {**{k: str(v) for k, v in more.items()}, **{f"all_clients_detail.{k}": str(detail[k]) for k in
                ("before", "worst_decile", "std", "owned")}}  # fmt: skip
    assert numbers.items() >= expected.items()
    assert row["algo.hpm.weight"] == "0"
    group = next(csv.DictReader(groups.open()))
    assert float(group["personalization.all_clients_detail.worst_decile.mean"]) == 1 / 3
    assert (group["algo.hpm.weight"], group["personalization.window"]) == ("0", "10")


def test_jobs_with_the_same_run_share_its_outcome(tmp_path: Path) -> None:
    record_job(tmp_path, 0, overrides=["executor=serial"], status="finished", path="a/b", result=result(0.5))
    record_job(tmp_path, 1, overrides=["executor=processes"], status="skipped", same_as=0)
    record_job(tmp_path, 2, overrides=["executor=ray"], status="skipped", same_as=3)  # which has not ended
    first, second = collect(tmp_path)
    assert (second.status, second.path, second.result) == ("skipped", "a/b", first.result)
    assert [row.metrics["aggregation.last"].mean for row in table([first, second])] == [0.5, 0.5]


def test_a_failure_of_a_shared_run_is_told_once(tmp_path: Path) -> None:
    record_job(tmp_path, 0, overrides=["executor=serial"], status="failed", path="a/b", error="DataError: gone")
    record_job(tmp_path, 1, overrides=["executor=processes"], status="skipped", same_as=0)
    jobs = collect(tmp_path)
    assert [j.error for j in jobs] == ["DataError: gone"] * 2
    lines = screen(jobs)
    assert lines[1] == "2 jobs: 2 failed"
    assert sum("failed: DataError" in line for line in lines) == 1
