"""Runs as data frames: what is on file, by dotted names, whatever a neighbour looks like."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedexp
from fedexp.errors import ConfigError, FedexpError
from fedexp.report import frames
from fedexp.report.extra import pandas
from fedexp.report.load import Runs, load, load_paths
from tests.unit.report.made import CLIENTS, ROUNDS, aggregation, personal, write_run


def test_rounds_have_one_row_per_run_and_round(runs):
    assert len(runs.rounds) == 12 * ROUNDS
    row = runs.rounds.set_index(["run", "round"]).loc["map-2-None-5", 3]
    assert row["aggregation.accuracy"] == aggregation("map", 2, 3)
    assert row["seconds.elapsed"] == 8.0
    assert not [name for name in runs.rounds.columns if "per_class" in name or name.endswith("clients")]


def test_settings_are_flat_and_groups_have_their_choice(runs):
    row = runs.config.set_index("run").loc["fedavg-1-None-5"]
    assert (row["algo"], row["data"], row["local.epochs"], row["seed"]) == ("fedavg", "digits", 5, 1)
    assert row["model.hidden"] == "[8, 8]"
    assert row["status"] == "done"


def test_chosen_runs_have_the_settings_of_all(tmp_path):
    write_run(tmp_path, "fedavg", 0)
    write_run(tmp_path, "fedrs", 0, alpha=0.5, done=False)
    found = load(tmp_path)
    assert found.done.setting("algo.rs.alpha") == "algo.rs.alpha"
    assert found.where({"algo": ["fedavg"]}).only(["fedavg-0-None-5"]).config.columns.equals(found.config.columns)
    assert found.done.config["algo.rs.alpha"].map(frames.written).tolist() == ["–"]


def test_other_frames_have_what_is_on_file(runs):
    assert runs.clients.groupby("run").size().eq(ROUNDS * CLIENTS).all()
    assert runs.clients["after"].dtype == float
    assert runs.ledger["bytes"].sum() == 12 * ROUNDS * 100
    assert runs.results.set_index("run").loc["map-0-None-5", "bytes.up"] == 4_000_000
    assert not [name for name in runs.results.columns if name.startswith(("checksums", "digests", "versions"))]
    final = runs.final_clients.set_index(["run", "client"]).loc["map-1-None-5", 4]
    assert final["accuracy"] == personal("map", 1, 4)
    classes = runs.classes.set_index(["run", "round", "goal", "class"])["accuracy"]
    assert classes["map-0-None-5", 2, "aggregation", 1] == aggregation("map", 0, 2) / 2
    assert ("map-0-None-5", 2, "aggregation", 2) not in classes.index  # was not tested


def test_probes_are_empty_until_there_are_some(tmp_path):
    rundir = write_run(tmp_path, "fedavg", 0)
    assert list(load(tmp_path).probes.columns) == ["run", "round", "client", "probe", "name", "values"]
    assert load(tmp_path).probes.empty
    line = '{"round": 1, "client": 2, "probe": "angles", "name": "norm", "values": {"mean": 0.5}}\n'
    (rundir.path / "probes.jsonl").write_text(line)
    (row,) = load(tmp_path).probes.to_dict("records")
    assert row == {
        "run": rundir.path.name,
        "round": 1,
        "client": 2,
        "probe": "angles",
        "name": "norm",
        "values": {"mean": 0.5},
    }


def test_damaged_and_partial_runs_do_not_stop_the_rest(tmp_path):
    write_run(tmp_path, "fedavg", 0)
    write_run(tmp_path, "map", 0, done=False)
    damaged = write_run(tmp_path, "fedrs", 0)
    (damaged.path / "metrics.jsonl").write_text('{"round": 1, "aggregation"')
    found = load(tmp_path)
    states = dict(zip(found.status["run"], found.status["status"], strict=True))
    assert states == {"fedavg-0-None-5": "done", "map-0-None-5": "partial", "fedrs-0-None-5": "damaged"}
    assert set(found.config["status"]) == {"done", "partial", "damaged"}
    assert set(found.rounds["run"]) == {"fedavg-0-None-5", "map-0-None-5"}
    assert "metrics.jsonl" in found.complaints["fedrs-0-None-5"]
    assert list(found.results["run"]) == ["fedavg-0-None-5"]


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    rundir = write_run(tmp_path, "fedavg", 0)
    found = load(tmp_path)
    (rundir.path / "metrics.jsonl").unlink()
    assert len(found.config) == 1  # the frame of rounds would be empty now
    assert found.rounds.empty


def test_load_is_part_of_the_package(folder, tmp_path):
    assert len(fedexp.load(folder).found) == 12
    with pytest.raises(FedexpError, match=r"is not a folder"):
        fedexp.load(tmp_path / "nowhere")


def test_importing_fedexp_imports_no_pandas():
    code = "import sys, fedexp.cli, fedexp.report.load; assert not {'pandas', 'altair'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_runs_by_their_paths_are_the_finished_ones(tmp_path):
    one, two = write_run(tmp_path, "fedavg", 0), write_run(tmp_path, "map", 0, done=False)
    assert [run.path for run in load_paths([one.path, two.path, one.path]).found] == [one.path]


# ---------------------------------------------------------------- choosing
def test_runs_are_chosen_by_settings(runs, swept):
    assert len(runs.where({"algo": ["map", "fedrs"], "seed": ["0", "1"]}).found) == 4
    assert len(load(swept).where({"algo.rs.alpha": ["0.1"]}).found) == 4


@pytest.mark.parametrize(
    ("value", "text"),
    [(20240101.0, "20240101"), (5.0, "5"), (0.1 + 0.2, "0.3"), (1e-5, "1e-05"), (True, "true"), (None, "–")],
)
def test_settings_are_written_with_all_their_digits(value, text):
    assert frames.written(value) == text
    assert frames.same(value, "null" if value is None else text)
    assert not frames.same(value, "1")


def test_runs_are_chosen_by_lists_by_null_and_by_numbers_however_they_are_written(runs, swept):
    for hidden in ("[8, 8]", "[8,8]"):
        assert len(runs.where({"model.hidden": [hidden]}).found) == 12
    assert len(runs.where({"partition.seed": ["null"], "seed": ["0", "2"]}).found) == 8
    assert len(load(swept).where({"algo.rs.alpha": ["null", "1e-1"]}).found) == 8
    with pytest.raises(ConfigError, match=r"algo=: no run has all of these settings"):
        runs.where({"algo": []})
    with pytest.raises(ConfigError, match=r"algo.rs.alpha=7: no run has this value. Known: 0.01, 0.1, 0.9, null\."):
        load(swept).where({"algo.rs.alpha": ["7"]})


def test_wrong_names_get_the_nearest(runs):
    with pytest.raises(ConfigError, match=r"no run has such a setting. Did you mean 'local.epochs'"):
        runs.where({"local.epoch": ["5"]})
    with pytest.raises(ConfigError, match=r"algo=fedravg: no run has this value. Did you mean 'fedavg'"):
        runs.where({"algo": ["fedravg"]})


def test_settings_of_one_choice_do_not_count_as_differences(swept):
    found = load(swept)
    assert set(found.differing(run.name for run in found.found)) == {"algo", "seed", "local.epochs", "algo.rs.alpha"}
    two = [run.name for run in found.found if run.name in ("fedavg-0-None-5", "fedrs-0-0.1-5")]
    assert found.differing(two) == ["algo"]


@pytest.mark.parametrize(
    ("settings", "differing"),
    [
        ({"fedavg": 0, "feddf": 100}, ["algo"]),  # conf/algo/feddf.yaml has public=100
        ({"fedavg": 0, "feddf": 500}, ["algo", "public"]),
        ({"fedavg": 0, "map": 100}, ["algo", "public"]),
        ({"fedavg": 0, "feddf": 100, "map": 100}, ["algo", "public"]),
        ({"fedavg": 0, "../algo/feddf": 100}, ["algo", "public"]),  # a name from a file that is not ours
    ],
)
def test_settings_that_a_method_brings_along_do_not_count_as_differences(settings, differing):
    """Else a sweep of all methods has FedDF in a scene of its own, and compares it with nothing."""
    rows = [{"run": algo, "status": "done", "algo": algo, "public": n} for algo, n in settings.items()]
    runs = Runs(())
    runs.__dict__["config"] = pandas().DataFrame(rows)
    assert runs.differing(settings) == differing


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"algo": "fedrs", "algo.rs.alpha": 0.5}, "fedrs alpha=0.5"),
        ({"algo": "fedavg", "algo.rs.alpha": float("nan")}, "fedavg"),
        ({"local.epochs": 5}, "epochs=5"),
        ({"partition.seed": None}, "–"),
    ],
)
def test_labels_are_short(values, words):
    assert frames.label(values) == words


def test_numbers_in_labels_are_in_the_order_of_their_size():
    assert sorted(["alpha=10", "alpha=0.9", "alpha=2"], key=frames.natural) == ["alpha=0.9", "alpha=2", "alpha=10"]
