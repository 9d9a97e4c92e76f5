"""``python -m fedexp.reproduce`` from the command to the table, on a paper of our own that takes seconds."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import fedexp
from fedexp.config.compose import composed
from fedexp.reproduce import launch as launching
from fedexp.reproduce import published, selection
from fedexp.reproduce.__main__ import main
from fedexp.reproduce.collect import collect
from fedexp.reproduce.jobs import NOT_PRINTED, ReproJob
from fedexp.reproduce.results import Result, known_results, read_results
from fedexp.runs.__main__ import main as runs
from tests.unit.reproduce import tiny


@pytest.fixture
def reproduce(monkeypatch, tmp_path, capsys):
    """Runs the command in a folder of the test; returns its exit code and what it printed."""
    tiny.use(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*argv: str) -> tuple[int, str]:
        code = main(argv)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def cells(said: str) -> dict[str, str]:
    """The rows of a table with one column, by method."""
    return {m.name: line for m in tiny.METHODS for line in said.splitlines() if line.startswith(f"{m.name}  ")}


def holes(said: str) -> list[str]:
    """The commands that fill the holes of a table."""
    _, _, below = said.partition("To fill the holes\n")
    return re.findall(r"python -m fedexp.reproduce (.*)", below.partition("\n\n")[0])


def test_two_runs_make_a_table_once(reproduce, tmp_path, monkeypatch):
    narrow = ("tiny/table1", "settings=digits/mlp", "methods=FedAvg,FedRS")
    code, said = reproduce(*narrow)
    assert code == 0, said
    assert "1 setting × 2 methods × 1 seed: 2 runs, 0 of them done on this machine." in said
    assert "2 runs to do, about " in said
    rows = cells(said)
    ours = {name: float(re.search(r"[\d.]+", line.removeprefix(name))[0]) for name, line in rows.items()}
    assert ours.keys() == {"FedAvg", "FedRS"}
    found = {json.loads(p.read_text())["aggregation"]["last"] for p in tmp_path.glob("multirun/map/*/*/result.json")}
    assert {round(100 * value, 1) for value in found} == set(ours.values())

    def refuse(*_):
        raise AssertionError("nothing is left to run")

    monkeypatch.setattr(launching, "_start", refuse)
    code, again = reproduce(*narrow)
    assert code == 0, again
    assert "2 runs, 2 of them done on this machine." in again
    assert cells(again) == rows
    code, said = reproduce("tiny/table2", *narrow[1:])  # another table of the same runs
    assert code == 0
    assert "2 runs, 2 of them done on this machine." in said


def test_a_plan_trains_nothing_and_leaves_nothing(reproduce, tmp_path):
    for way in ("plan=true", "--dry"):
        code, said = reproduce("tiny/table1", "settings=digits/mlp", "methods=FedAvg", way)
        assert code == 0
        assert "1 run to do, about 4 s one after another (1 by the cost model)" in said
    assert list(tmp_path.iterdir()) == []


def test_a_hole_is_named_filled_and_gone(reproduce):
    reproduce("tiny/table1", "settings=digits/mlp", "methods=FedAvg")
    code, said = reproduce("status", "tiny/table1", "settings=digits/mlp", "methods=FedAvg,FedRS")
    assert code == 1
    assert "missing" in cells(said)["FedRS"]
    (command,) = holes(said)
    code, said = reproduce(*command.split())
    assert code == 0
    assert "1 run, 0 of them done on this machine." in said
    _, said = reproduce("status", "tiny/table1", "settings=digits/mlp", "methods=FedAvg,FedRS")
    assert "missing" not in said
    assert holes(said) == []


def test_seeds_that_were_asked_for_and_not_run_are_holes(reproduce):
    narrow = ("tiny/table1", "settings=digits/mlp", "methods=FedAvg", "rounds=1")
    reproduce(*narrow)
    assert reproduce("status", *narrow)[0] == 0
    code, said = reproduce("status", *narrow, "seeds=0,1")
    assert code == 1
    (command,) = holes(said)
    assert command.split() == ["tiny/table1", "settings=digits/mlp", "methods=FedAvg", "seeds=1", "rounds=1"]


def test_a_sweep_that_goes_on_is_the_same_sweep(reproduce, tmp_path):
    """Also if what was done before is not what it begins with."""
    reproduce("tiny/table1", "settings=digits/again", "methods=FedAvg")
    for _ in range(2):
        _, said = reproduce("tiny/table1", "settings=digits/mlp,digits/again", "methods=FedAvg", "seeds=0,1")
    assert "4 runs, 4 of them done on this machine." in said
    manifests = sorted(p.relative_to(tmp_path / "multirun/map") for p in tmp_path.rglob("sweep-*.json"))
    assert [m.parent.name for m in manifests] == ["fmnist_lenet", "fmnist_mlpnet"]
    assert runs(["status", str(tmp_path / "multirun")]) == 0


def test_failed_and_diverged_cells_say_so_and_stop_no_other(reproduce):
    code, said = reproduce("tiny/table1", "settings=digits/mlp", "methods=slow,wild,FedAvg")
    assert code == 1
    rows = cells(said)
    assert "failed" in rows["slow"]
    assert "failed" in rows["wild"]
    assert "diverged after 0 rounds" in said
    assert "not finite" in said
    assert re.search(r"FedAvg +[\d.]+ ", rows["FedAvg"])
    code, said = reproduce("status", "tiny/table1", "settings=digits/mlp", "methods=slow,wild,FedAvg")
    assert code == 1
    assert "diverged" in said


def test_a_scene_without_data_says_so_before_the_rest_runs(reproduce):
    code, said = reproduce("tiny/table1", "methods=FedAvg", "settings=digits/mlp,digits/nowhere")
    assert code == 1
    assert said.index("digits/nowhere cannot be run") < said.index("1 job: 1 to run")
    assert "data.root" in said
    assert re.search(r"FedAvg +[\d.]+ ", cells(said)["FedAvg"])
    assert "1 missing" in said
    assert said.splitlines()[-1].endswith("data are missing (see above): digits/nowhere")


def test_fewer_rounds_stand_ins_and_other_settings_are_reduced(reproduce):
    code, said = reproduce("tiny/table1", "settings=digits/mlp", "methods=FedAvg", "rounds=1", "optim.lr=0.01")
    assert code == 0
    assert "reduced" in cells(said)["FedAvg"]
    assert "1 of 2 rounds, optim.lr=0.01" in said
    code, said = reproduce("tiny/table1", "standins=true", "methods=FedAvg")
    assert code == 0, said
    assert "stand-in" in said
    assert "reduced" in said


def test_settings_that_the_paper_tried_are_runs_of_their_own(reproduce):
    code, said = reproduce("tiny/table1", "settings=digits/mlp", "methods=FedRS", "tune=paper")
    assert code == 0
    assert "2 runs, 0 of them done on this machine." in said
    assert "tune=paper" in said
    code, said = reproduce("tiny/fig1", "settings=digits/mlp", "plan=true")
    assert "2 runs, 0 of them done on this machine." in said


def test_another_reading_is_told_below_the_table_and_kept(reproduce, tmp_path):
    narrow = ("tiny/table1", "settings=digits/mlp")
    reproduce(*narrow, "methods=FedAvg")
    code, said = reproduce(*narrow, "methods=FedAvg samples")
    assert code == 0, said
    assert "1 of 1 printed number run" in said
    (told,) = [line for line in said.splitlines() if line.startswith("  FedAvg samples, digits/mlp: ")]
    assert "Here clients count by their samples." in told
    assert cells(said).keys() == {"FedAvg"}
    shutil.rmtree(tmp_path / "multirun/.reproduced")  # what is noted there is in the run directories too
    assert told in reproduce("status", *narrow, "methods=FedAvg")[1]
    assert "2 results" in reproduce("export", *narrow)[1]
    rows = read_results(tmp_path / "multirun/results/tiny/table1.csv")
    assert [r.method for r in rows] == ["FedAvg", "FedAvg samples"]
    assert rows[0].model != rows[1].model
    assert "weighting=samples" in rows[1].command
    reproduce("page")
    page = (tmp_path / "multirun/results/README.md").read_text()
    assert "- 2 runs (2 done)" in page
    assert "FedAvg samples, digits/mlp: " in page


def test_launchers_of_sweeps_run_the_list(reproduce, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    code, said = reproduce(
        "tiny/table1", "settings=digits/mlp", "methods=FedAvg,crowded", "seeds=0,1", "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2",
    )  # fmt: skip
    assert code == 1
    assert len(list(tmp_path.glob("multirun/map/*/*/result.json"))) == 2
    assert "failed" in said
    assert "samples cannot give 3000 clients" in said


def test_results_are_exported_listed_and_shown_without_runs(reproduce, tmp_path):
    narrow = ("tiny/table1", "settings=digits/mlp", "methods=FedAvg,FedRS")
    reproduce(*narrow, "seeds=0,1")
    code, said = reproduce("export", *narrow)
    assert code == 0
    assert "4 results" in said
    rows = read_results(tmp_path / "multirun/results/tiny/table1.csv")
    assert [(r.method, r.seed) for r in rows] == [("FedAvg", 0), ("FedAvg", 1), ("FedRS", 0), ("FedRS", 1)]
    assert all(str(tmp_path) not in r.command for r in rows)
    reproduce("tiny/table1", "settings=digits/mlp", "methods=FedAvg", "seeds=2,3", "rounds=1")
    assert "1 result of" in reproduce("export", *narrow, "seeds=3")[1]  # a shorter run, too
    assert [r.seed for r in read_results(tmp_path / "multirun/results/tiny/table1.csv")] == [0, 1, 3, 0, 1]
    assert known_results(tmp_path / "multirun" / ".reproduced", "tiny/table2") != []
    elsewhere = ("out=elsewhere", "results=multirun/results")
    shown = reproduce("status", *narrow, *elsewhere)[1]
    assert cells(shown).keys() == {"FedAvg", "FedRS"}
    assert "missing" not in shown
    listed = " ".join(reproduce("list", *elsewhere)[1].split())
    assert "tiny/table1 train 15 ≈" in listed
    assert "2 done, 14 missing" in listed


def test_ctrl_c_says_how_to_go_on(reproduce, monkeypatch):
    def stop(*_):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(launching, "_start", stop)
    code, said = reproduce("tiny/table1", "settings=digits/mlp", "methods=FedAvg", "rounds=1", "loop=fabric")
    assert code == 130
    assert said.endswith(
        "Stopped; nothing is lost. This runs what is missing:\n"
        "  python -m fedexp.reproduce tiny/table1 settings=digits/mlp methods=FedAvg rounds=1 loop=fabric\n"
    )


def test_a_launcher_that_fails_leaves_the_table(reproduce, monkeypatch):
    def fail(*_):
        raise RuntimeError("no worker is left")

    monkeypatch.setattr(launching, "_start", fail)
    code, said = reproduce("tiny/table1", "settings=digits/mlp", "methods=FedAvg")
    assert code == 1
    assert "missing" in cells(said)["FedAvg"]
    assert "The launcher has failed: RuntimeError: no worker is left" in said


@pytest.mark.parametrize("form", ["markdown", "latex", "csv", "terminal"])
def test_forms_of_a_table_go_to_a_file(reproduce, tmp_path, form):
    code, said = reproduce("status", "tiny/table1", f"format={form}", "to=made/table.txt")
    assert code == 1
    assert "tiny/table1 is in made/table.txt" in said
    assert "FedRS" in (tmp_path / "made/table.txt").read_text()


# ---------------------------------------------------------------- the committed results
COMMITTED = Path(__file__).parents[2] / "multirun" / "results"


def cheapest(count: int, folder: Path = COMMITTED) -> list[Result]:
    """One result of each of the runs that took the least time, of those whose number comes from the rounds of a run."""
    rows = [row for path in folder.glob("*/*.csv") for row in read_results(path)]
    rows = [row for row in rows if row.status == "done" and row.seconds and row.rule in selection.RULES]
    known = {entry.id: {measure.metric for measure in entry.measures} for entry in published.entries().values()}
    by_run = {row.run: row for row in rows if row.metric in known[row.entry]}
    return sorted(by_run.values(), key=lambda row: (row.seconds, row.run))[:count]


def run_again(row: Result, out: Path) -> Result:
    """Runs the command of a committed result."""
    entry = published.entry(row.entry)
    overrides = [*shlex.split(row.command)[3:], NOT_PRINTED, f"out={out}"]
    job = ReproJob(
        entry, published.scene(entry.paper, row.setting), published.method(entry.paper, row.method), row.seed,
        tuple(row.tuning.split()), tuple(overrides), row.command, row.reduced, row.rounds, composed(overrides),
    )  # fmt: skip
    assert job.run == row.run, "the settings of the scene or of the method have changed"
    if lacking := launching.missing_data([job], Console(quiet=True)):
        pytest.skip(lacking[row.setting])
    fedexp.run(overrides)
    (again,) = [found for found in collect([job]) if found.metric == row.metric]
    return again


def assert_same(again: Result, row: Result) -> None:
    """Bit for bit with the same versions, on a processor of the same kind; with other versions, about the same."""
    assert again.partition == row.partition
    if again.versions == row.versions:
        assert again.value == row.value
        assert again.model == row.model or not row.model  # which results of earlier versions lack
    else:
        assert again.value == pytest.approx(row.value, abs=1.5)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("place", range(3))
def test_a_committed_cell_is_the_same_again(place, tmp_path):
    rows = cheapest(place + 1)
    if len(rows) <= place:
        pytest.skip(f"multirun/results has {len(rows)} runs")
    assert_same(run_again(rows[place], tmp_path), rows[place])


def test_what_is_exported_is_enough_to_run_a_cell_again(reproduce, tmp_path):
    """As above, with the runs of a moment ago; every kind of narrowing is in the command."""
    narrow = ("tiny/table1", "settings=digits/mlp", "methods=FedRS")
    reproduce(*narrow, "tune=paper")
    reproduce(*narrow, "rounds=1", "seeds=1", "executor.threads=2", "optim.lr=0.05")
    assert reproduce("export", "tiny/table1", "tune=paper")[0] == 0
    folder = tmp_path / "multirun" / "results"
    rows = cheapest(9, folder)
    assert {(row.tuning, row.reduced) for row in rows} >= {
        ("algo.rs.alpha=0.5", ""),
        ("", "1 of 2 rounds, optim.lr=0.05"),
    }
    assert str(tmp_path) not in (folder / "tiny" / "table1.csv").read_text()
    for row in rows:
        assert_same(run_again(row, tmp_path / "again"), row)
        other = replace(row, model=row.model[::-1])
        with pytest.raises(AssertionError):
            assert_same(run_again(row, tmp_path / "again"), other)
