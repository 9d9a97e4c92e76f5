"""What is done, and what is missing."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from rich.console import Console

from fedexp import sweep
from fedexp.config.compose import composed, overrides_of
from fedexp.config.identity import run_id, run_path
from fedexp.errors import ClientError, DiskError, FedexpError
from fedexp.runs.__main__ import main
from fedexp.runs.checksums import CHECKED
from fedexp.runs.directory import RunDir
from fedexp.runs.plain import UNWANTED
from fedexp.runs.pointer import Pointer, TensorFile
from fedexp.runs.status import show_status, survey
from fedexp.runs.sweep_manifest import Manifest
from fedexp.system.files import write_json
from tests.conftest import SMALL


@pytest.fixture
def begun(configured):
    """A run directory as it is when a run has begun."""

    def begin(*more: str) -> RunDir:
        config = configured(*more)
        rundir = RunDir(run_path(config))
        rundir.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
        rundir.write("plan.json", {})
        return rundir

    return begin


@pytest.fixture
def finished(begun):
    """A run directory as it is when a run has finished."""

    def finish(*more: str) -> RunDir:
        rundir = begun(*more)
        rundir.append_record({"round": 3})
        for name in ("clients.csv", "ledger.csv", "weights.csv"):
            rundir.append_rows(name, ["round"], [{"round": t} for t in (1, 2, 3)])
        rundir.write_bytes("model.safetensors", b"weights")
        rundir.conclude({"status": "finished", "rounds": 3, "title": f"fedavg {' '.join(more)}"})
        return rundir

    return finish


@pytest.fixture
def manifest(configured):
    """A sweep over five seeds."""
    seeds = [f"seed={seed}" for seed in range(5)]
    announced = Manifest.of([(["algo=fedavg", seed], configured(seed)) for seed in seeds])
    announced.write()
    return announced


def states(folder: Path) -> dict[str, tuple[str, str]]:
    return {run.label: (run.state, run.rounds) for run in survey(folder)}


def keep(rundir: RunDir, round_: int, name: str = "latest.json") -> None:
    """A checkpoint of a run, as far as it can be told without its tensors."""
    server = f"server-{round_:06d}.safetensors"
    rundir.write_text(f"checkpoint/{server}", "tensors")
    pointer = Pointer(round_, TensorFile(server, "0"), {}, 1, {}, rundir.marks)
    rundir.write_bytes(f"checkpoint/{name}", pointer.text("plan"))


def test_every_state_of_a_job(manifest, begun, finished):
    finished("seed=0")
    keep(begun("seed=1"), 2)
    with pytest.raises(ZeroDivisionError), (failed := begun("seed=2")), failed.failures():
        _ = 1 / 0
    sweep.record_job(manifest.reports, 3, overrides=[], status="failed", error="DataError: no such file")
    assert states(manifest.folder) == {
        "seed=0": ("done", "3/3"),
        "seed=1": ("partial", "2/3"),
        "seed=2": ("failed", "0/3"),
        "seed=3": ("failed", "–"),
        "seed=4": ("missing", "–"),
    }
    notes = {run.label: run.note for run in survey(manifest.folder)}
    assert notes["seed=2"] == "ZeroDivisionError: division by zero"
    assert notes["seed=3"] == "DataError: no such file"


def test_a_run_that_is_being_written(manifest, begun):
    rundir = begun("seed=1")
    rundir.append_rows("clients.csv", ["round", "client"], [{"round": t, "client": 0} for t in (1, 2)])
    assert states(manifest.folder)["seed=1"] == ("partial", "0/3")
    with rundir:
        assert states(manifest.folder)["seed=1"] == ("running", "2/3")
        assert rundir.holder().startswith("process ")
    assert states(manifest.folder)["seed=1"] == ("partial", "0/3")
    with rundir:  # a look does not keep the run from being taken up
        pass


def test_a_new_attempt_forgets_why_the_last_one_failed(begun):
    rundir = begun()
    with pytest.raises(ValueError, match="x"), rundir.failures():
        raise ValueError("x\n  y")
    assert rundir.error() == "ValueError: x y"
    assert "Traceback" in (rundir.path / "error.txt").read_text()
    with rundir.failures():
        assert rundir.error() is None
    assert rundir.error() is None


def test_the_traceback_of_a_client_elsewhere_is_the_one_on_file(begun):
    rundir = begun()
    with pytest.raises(ClientError, match=r"^round 1, client 2: bad \(traceback: .*error\.txt\)$"), rundir.failures():
        raise ClientError("round 1, client 2: bad", "in loss, on another machine")
    assert rundir.error() == "ClientError: round 1, client 2: bad"
    assert (rundir.path / "error.txt").read_text().endswith("in loss, on another machine")


def test_a_stop_is_no_failure(begun):
    rundir = begun()
    with pytest.raises(KeyboardInterrupt), rundir.failures():
        raise KeyboardInterrupt
    assert rundir.error() is None


def test_runs_outside_of_sweeps_are_found_too(manifest, begun, finished):
    finished("seed=0")
    begun("seed=77", "algo=map")
    found = {run.path.name: run for run in survey(manifest.folder.parent)}
    assert len(found) == 6
    (other,) = (run for run in found.values() if "seed 77" in run.label)
    assert other.state == "partial"
    _, _, _, *overrides = shlex.split(other.command)
    assert run_path(composed(overrides)) == other.path


def test_a_run_without_any_override_has_a_command_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = composed([])
    rundir = RunDir(run_path(config))
    rundir.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    rundir.write("plan.json", {})
    (run,) = survey(tmp_path)
    assert (run.state, run.command) == ("partial", "python -m fedexp")


def test_exit_codes_and_commands(manifest, finished):
    console = Console(file=io.StringIO(), width=200)
    for seed in range(4):
        finished(f"seed={seed}")
    assert show_status(manifest.folder, console) == 1
    text = console.file.getvalue()
    assert "5 runs: 4 done, 1 missing" in text
    assert text.count("python -m fedexp") == 1
    assert "python -m fedexp algo=fedavg seed=4\n" in text
    finished("seed=4")
    assert show_status(manifest.folder, console) == 0


@pytest.mark.parametrize("announced", [True, False])
def test_a_command_that_goes_on_throws_nothing_away(begun, configured, announced):
    path = begun("seed=1", "force=true").path
    if announced:
        Manifest.of([(["algo=fedavg", "seed=1", "++force=true"], configured("seed=1", "force=true"))]).write()
    (run,) = survey(path.parent)
    assert run.state == "partial"
    assert "seed=1" in run.command
    assert "force" not in run.command


def test_a_moved_folder_is_as_good(manifest, finished, tmp_path):
    finished("seed=0")
    moved = manifest.folder.rename(tmp_path / "moved")
    assert states(moved)["seed=0"] == ("done", "3/3")


def test_the_command_for_a_copied_or_moved_run_leads_to_where_it_is(manifest, begun, tmp_path, monkeypatch):
    begun("seed=1")
    begun("seed=77")
    copy = shutil.copytree(manifest.folder, tmp_path / "with space" / "copy")
    monkeypatch.chdir(copy)
    for folder in (copy, Path()):
        runs = survey(folder)
        assert len(runs) == 6
        for run in runs:
            config = composed([*SMALL, *shlex.split(run.command)[3:]])
            assert run_path(config) == copy / run.path.name
    assert all(str(copy) not in run.command for run in survey(manifest.folder))


@pytest.mark.parametrize("damaged", [True, False])
def test_a_renamed_run_has_no_command(finished, begun, damaged):
    path = (finished if damaged else begun)("seed=0").path
    if damaged:
        (path / "clients.csv").write_text("")
    path.rename(path.with_name("renamed"))
    (run,) = survey(path.parent)
    assert (run.state, run.command) == ("damaged" if damaged else "partial", "")
    assert f"Its settings lead to a directory named {path.name}" in run.note


def test_a_manifest_that_does_not_say_where_it_was_written_has_commands_that_do(manifest):
    content = json.loads(manifest.file(".json").read_text())
    del content["folder"]
    write_json(manifest.file(".json"), content)
    for run in survey(manifest.folder):
        assert run_path(composed([*SMALL, *shlex.split(run.command)[3:]])) == run.path


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("group", ["algo", "mine"])
def test_a_run_with_a_choice_of_the_users_own_needs_their_folder(begun, configured, announced, group):
    config = configured("seed=3")
    config["choices"][group] = "boom"
    rundir = begun("seed=3")
    rundir.write_text("config.yaml", yaml.safe_dump(config))
    if announced:
        Manifest.of([([f"{group}=boom", "seed=3"], config)]).write()
    (run,) = survey(rundir.path.parent)
    assert (run.state, run.command) == ("partial", "")
    assert f"{group}=boom is not a choice of fedexp itself" in run.note
    assert "--config-dir" in run.note
    assert "no longer" not in run.note


def test_a_job_that_never_began_with_a_choice_of_the_users_own_needs_their_folder(configured):
    manifest = Manifest.of([(["algo=boom"], configured())])
    manifest.write()
    (run,) = survey(manifest.folder)
    assert (run.state, run.command) == ("missing", "")
    assert "algo=boom is not a choice of fedexp itself" in run.note


def test_one_run_is_not_many(finished):
    console = Console(file=io.StringIO(), width=200)
    assert show_status(finished().path, console) == 0
    assert console.file.getvalue().startswith("1 run: 1 done\n")


def test_bad_paths_are_explained(tmp_path, capsys):
    with pytest.raises(FedexpError, match="is not a folder"):
        survey(tmp_path / "nowhere")
    with pytest.raises(FedexpError, match="no run and no sweep in"):
        survey(tmp_path)
    assert main(["status", str(tmp_path)]) == 2
    assert "no run and no sweep in" in capsys.readouterr().err


def test_usage(capsys):
    assert main(["--help"]) == 0
    assert "status FOLDER" in capsys.readouterr().out
    for wrong in ([], ["status"], ["status", "a", "b"], ["diff", "a"], ["x"], ["status", "--all", "a"]):
        assert main(wrong) == 2
        assert "status FOLDER" in capsys.readouterr().err


def test_a_manifest_says_what_was_planned(manifest):
    assert Manifest.read(manifest.file(".json")) == manifest
    again = Manifest(manifest.folder, manifest.jobs[::-1])
    assert again.identity == manifest.identity
    sweep.record_job(manifest.reports, 0, overrides=[], status="failed", error="x")
    manifest.write()
    assert sweep.collect(manifest.reports) == []
    assert json.loads(manifest.file(".json").read_text())["jobs"][0]["overrides"] == ["algo=fedavg", "seed=0"]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["algo=scamap", "model.hidden=[8,4]", "name='with space'", "out=/tmp/a-b.c", "local.clip=20", "seed=3"],
        ["sweep=seeds", "algo=fedrs", "algo.rs.alpha=0.25", "data=mnist", "data.root='1'"],
        ["~algo.hpm", "evaluate.all_clients=true", "optim.lr=1e-5"],
    ],
)
def test_overrides_can_be_told_from_a_configuration(overrides):
    config = composed(overrides)
    again = composed(overrides_of(config))
    assert run_id(again) == run_id(config)
    assert {k: v for k, v in again.items() if k != "choices"} == {k: v for k, v in config.items() if k != "choices"}


# ---------------------------------------------------------------- damage
def test_a_damaged_file_of_one_run_hides_no_other(finished):
    good, bad = finished("seed=1"), finished("seed=2")
    (bad.path / "result.json").write_text('{"status"')
    states = {run.path: run for run in survey(good.path.parent)}
    assert [states[r.path].state for r in (good, bad)] == ["done", "damaged"]
    assert "result.json is damaged" in states[bad.path].note


@pytest.mark.parametrize("alone", [True, False])
def test_a_finished_run_whose_files_were_changed_is_damaged_and_has_a_remedy(manifest, finished, configured, alone):
    path = finished("seed=0").path
    if alone:
        manifest.file(".json").unlink()
    with (path / "clients.csv").open("a") as file:
        file.write("4\n")
    (run,) = (run for run in survey(manifest.folder) if run.path == path)
    assert (run.state, run.rounds) == ("damaged", "?")
    assert "clients.csv is damaged" in run.note
    *_, forced = overrides = shlex.split(run.command)[3:]
    assert forced == "force=true"
    assert run_id(composed([*SMALL, *overrides])) == path.name
    assert show_status(manifest.folder, Console(file=io.StringIO())) == 1


@pytest.mark.parametrize("lost", [*CHECKED, "result.json"])
def test_no_file_of_a_finished_run_is_lost_unnoticed(finished, lost):
    path = finished("seed=0").path
    (path / lost).unlink()
    (run,) = survey(path.parent)
    assert (run.state, run.rounds) == (("damaged", "?") if lost != "result.json" else ("partial", "0/3"))


def test_a_damaged_checkpoint_is_told_from_one_that_the_run_can_continue_from(begun):
    rundir = begun("seed=1")
    rundir.append_record({"round": 1})
    keep(rundir, 1, "previous.json")
    rundir.append_record({"round": 2})
    keep(rundir, 2)

    def look():
        (run,) = survey(rundir.path.parent)
        return run.state, run.rounds, run.note

    assert look() == ("partial", "2/3", "")
    metrics = (rundir.path / "metrics.jsonl").read_text()
    (rundir.path / "metrics.jsonl").write_text(metrics.replace("2", "3"))
    state, rounds, note = look()
    assert (state, rounds) == ("partial", "1/3")
    assert "metrics.jsonl is damaged" in note
    (rundir.path / "metrics.jsonl").unlink()
    state, rounds, note = look()
    assert (state, rounds) == ("damaged", "?")
    assert "metrics.jsonl is missing" in note
    (rundir.path / "metrics.jsonl").write_text(metrics)
    (rundir.path / "checkpoint" / "server-000002.safetensors").unlink()
    assert look()[:2] == ("partial", "1/3")


@pytest.mark.parametrize("given", ["runs", "run"])
def test_a_run_behind_a_symbolic_link_is_seen_and_called_so(begun, finished, tmp_path, given):
    done, partial = finished("seed=0").path, begun("seed=1").path
    for path in (done, partial):
        path.symlink_to(path.rename(tmp_path / f"real-{path.name}"))
    found = survey(done.parent) if given == "runs" else [*survey(done), *survey(partial)]
    runs = {run.path: run for run in found}
    assert {path: run.state for path, run in runs.items()} == {done: "done", partial: "damaged"}
    assert f"({done} is a symbolic link" in runs[done].label
    assert f"{partial} is a symbolic link" in runs[partial].note
    assert runs[partial].command == ""


def test_an_announced_run_behind_a_symbolic_link_is_not_missing(manifest, finished, tmp_path):
    path = finished("seed=0").path
    path.symlink_to(path.rename(tmp_path / "real"))
    (run,) = (run for run in survey(manifest.folder) if run.path == path)
    assert (run.state, run.label) == ("done", f"seed=0 ({path} is a symbolic link, to which no run is written)")


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_a_checkpoint_that_is_no_folder_is_damage(begun, tmp_path, kind):
    rundir = begun("seed=1")
    checkpoint = rundir.path / "checkpoint"
    keep(rundir, 2)
    moved = checkpoint.rename(tmp_path / "moved")
    if kind == "file":
        checkpoint.write_text("")
    else:
        checkpoint.symlink_to(moved if kind == "link" else tmp_path / "nowhere")
    (run,) = survey(rundir.path)
    assert (run.state, run.command) == ("damaged", "")
    assert f"{checkpoint} is a {'file' if kind == 'file' else 'symbolic link'}" in run.note
    with pytest.raises(DiskError), rundir:  # which is why
        pass


# ---------------------------------------------------------------- what files may not make us say
@pytest.mark.parametrize(
    "planted",
    [
        {"evil": {"_target_": "os.system", "command": "id"}},
        {"algo": {"evil": [{"_target_": "os.system"}]}},
        {"choices": {"algo": "../../evil", "data": "digits", "partition": "iid", "model": "mlpnet"}},
        {"hydra": {"searchpath": ["elsewhere"]}},
        {"--config-dir": "elsewhere"},
    ],
)
def test_no_command_is_made_of_settings_that_name_code(begun, configured, planted):
    rundir = begun("seed=3")
    config = {**configured("seed=3"), **planted}
    rundir.write_text("config.yaml", yaml.safe_dump(config))
    (run,) = survey(rundir.path.parent)
    assert run.command == ""
    assert run.note
    console = Console(file=io.StringIO(), width=200, soft_wrap=True)
    assert show_status(rundir.path.parent, console) == 1
    assert "python -m fedexp" not in console.file.getvalue()


@pytest.mark.parametrize(
    "override",
    [
        "+x._target_=os.system",
        "--config-dir=/tmp",
        "-cd=x",
        "hydra.searchpath=[/tmp]",
        "a=\x1b[2J",
        "algo=../x",
        "algo=/etc/x",
        "algo=..",
        "algo=[a,b]",
        "experiment=map/../../x",
        "experiment=map/",
        "probe=[",
        "tracker=[wandb,../b]",
        "tracker=[/etc/x]",
    ],
)
def test_no_command_is_made_of_a_manifest_that_names_code(manifest, override):
    jobs = [replace(job, overrides=[*job.overrides, override]) for job in manifest.jobs]
    write_json(manifest.file(".json"), {"jobs": [asdict(job) for job in jobs]})
    assert {run.command for run in survey(manifest.folder)} == {""}
    assert all("might run code" in run.note for run in survey(manifest.folder))


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize(
    "choice",
    ["experiment=fedgela/stand-in_fmnist_mlpnet_dir0.1", "probe=[cost, forces]", "probe=[]", "tracker=[wandb]"],
)
def test_files_in_folders_of_a_group_and_lists_of_files_have_a_command(tmp_path, announced, choice):
    config = composed([choice, f"out={tmp_path}"])
    rundir = RunDir(run_path(config))
    rundir.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    rundir.write("plan.json", {})
    if announced:
        Manifest.of([([choice, f"out={tmp_path}"], config)]).write()
    (run,) = survey(tmp_path)
    assert run.note == ""
    again = composed(shlex.split(run.command)[3:])
    assert [again[key] for key in ("probe", "tracker")] == [config[key] for key in ("probe", "tracker")]
    assert run_path(again) == run.path


@pytest.mark.parametrize("choice", ["tracker=[wandb,boom]", "experiment=map/boom"])
def test_each_file_of_a_choice_must_be_ours(configured, choice):
    manifest = Manifest.of([([choice], configured())])
    manifest.write()
    (run,) = survey(manifest.folder)
    assert run.command == ""
    assert "boom is not a choice of fedexp itself" in run.note


@pytest.mark.parametrize("path", ["a\0b", "\0/../x", "x" * 5000])
def test_a_manifest_with_paths_that_cannot_be_hides_no_run(manifest, finished, path):
    finished("seed=0")
    jobs = [manifest.jobs[0], replace(manifest.jobs[1], path=path)]
    for folder in (str(manifest.folder), "\0"):
        write_json(manifest.file(".json"), {"folder": folder, "jobs": [asdict(job) for job in jobs]})
        assert [run.state for run in survey(manifest.folder)] == ["done", "missing"]


def test_nothing_that_a_terminal_would_obey_is_shown(begun, manifest):
    rundir = begun("seed=1")
    rundir.write_text("error.txt", "ValueError: \x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x9b2J\u202egnp.exe\n")
    sweep.record_job(manifest.reports, 0, overrides=[], status="failed", error="\x1b]0;title\x07 DataError: \x08\x08no")
    text = io.StringIO()
    show_status(manifest.folder, Console(file=text, width=300))
    assert UNWANTED.sub("", text.getvalue().replace("\n", "")) == text.getvalue().replace("\n", "")
    assert "ValueError: red link2Jgnp.exe" in text.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"3", b"\xff\xfe", b"[" * 100_000, b'{"jobs": [1]}', b'{"jobs": [{}]}', b'{"jobs": 1}'],
)
def test_a_manifest_that_no_sweep_has_written_is_named_and_hides_no_run(manifest, finished, data, capsys):
    finished("seed=0")
    (manifest.folder / "sweep-0.json").write_bytes(data)
    assert main(["status", str(manifest.folder)]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert "5 runs: 1 done, 4 missing" in said.out
    (line,) = (line for line in said.out.splitlines() if "is not the manifest of a sweep" in line)
    assert str(manifest.folder / "sweep-0.json") in line
    assert "argument" not in line


def test_reports_of_jobs_that_no_sweep_has_written_are_passed_over(manifest):
    for number, data in enumerate((b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"number": "x"}')):
        (manifest.reports / f"job-{number:04}.json").write_bytes(data)
    (manifest.reports / "job-0099.json").mkdir()
    assert {run.state for run in survey(manifest.folder)} == {"missing"}


def test_a_new_sweep_removes_its_own_reports_only(manifest, tmp_path):
    (manifest.reports / "job-notes.json").write_text("mine")
    (manifest.reports / "job-0001.json").write_text("{}")
    manifest.write()
    assert [p.name for p in manifest.reports.iterdir()] == ["job-notes.json"]
    moved = manifest.reports.rename(tmp_path / "mine")
    manifest.reports.symlink_to(moved)
    (moved / "job-0001.json").write_text("{}")
    with pytest.raises(DiskError, match="symbolic link"):
        manifest.write()
    assert (moved / "job-0001.json").exists()


def test_five_hundred_runs_are_seen_in_three_seconds(begun, finished):
    """Of processor time: how long one waits also depends on who else is using the machine."""
    done, partial = finished("seed=0"), begun("seed=1", "algo=map")
    keep(partial, 2)
    for number in range(250):
        for rundir in (done, partial):
            shutil.copytree(rundir.path, rundir.path.with_name(f"{rundir.path.name}-{number}"))
    began = time.process_time()
    assert len(survey(done.path.parent)) == 502
    assert time.process_time() - began < 3
