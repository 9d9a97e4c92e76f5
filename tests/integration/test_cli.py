"""The command line: what it answers, how fast, and with which exit code."""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from hydra.errors import HydraException

from fedexp import __main__, cli
from fedexp.config.compose import composed, composed_hydra
from fedexp.config.documented import documented
from fedexp.config.explain import explain
from fedexp.errors import ConfigError, DataError
from tests.conftest import SMALL
from tests.integration.processes import ROOT, Done, ran, started

HEAVY = ("torch", "lightning", "torchvision", "sklearn", "wandb")
PATIENCE = 60  # seconds, for an answer that takes one: a sanity limit, not a benchmark


def light(*arguments: str, **environment: str) -> tuple[Done, list[str]]:
    """Runs a command in a new Python; also returns which of the heavy packages it has imported."""
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('HEAVY', *(m for m in {HEAVY!r} if m in sys.modules), file=sys.__stderr__))\n"
        "from fedexp.cli import main\n"
        "main()\n"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    assert time.monotonic() - started < PATIENCE
    err, _, heavy = done.stderr.rpartition("HEAVY")
    return Done(done.returncode, done.stdout, err), heavy.split()


# ---------------------------------------------------------------- at once, without torch
def test_help_lists_groups_and_settings():
    done, heavy = light("--help")
    assert done.code == 0
    assert heavy == []
    for part in ("python -m fedexp -m", "algo:", "scamap", "partition:", "dirichlet", "rounds: 50", "alpha: 0.9"):
        assert part in done.out
    assert "hydra:" not in done.out


def test_help_has_the_default_and_the_documentation_of_every_run_setting(tmp_path):
    out = ran(["--help"], tmp_path).out
    assert documented() in out
    out = ran(["-m", "--help", "rounds=7", "algo=fedavg", "seed=1,2"], tmp_path).out
    assert documented({**composed([]), "rounds": 7}) in out
    assert "algo: {}" in out
    done = ran(["--help", "roundz=7"], tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "Did you mean 'rounds'?" in done.err


def test_a_misspelt_setting_is_answered_with_the_nearest():
    done, heavy = light("algo=map", "algo.rs.alhpa=0.3")
    assert done.code == 2
    assert heavy == []
    assert "algo.rs.alhpa is not a setting. Did you mean 'algo.rs.alpha'" in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_a_misspelt_option_is_answered():
    done, heavy = light("--hlep")
    assert done.code != 0
    assert heavy == []
    assert "--hlep" in done.err


def test_completion_knows_groups_and_choices():
    done, heavy = light("-sc", "query=bash", COMP_LINE="fedexp algo=fedr", COMP_POINT="16", COMP_TYPE="9")
    assert heavy == []
    assert "algo=fedrs" in done.out.split()


def test_importing_the_package_and_its_interface_is_cheap():
    code = f"import sys, fedexp, fedexp.cli, fedexp.sweep; print([m for m in {HEAVY!r} if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"


def test_the_console_script_exists():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["fedexp"].partition(":")
    assert getattr(importlib.import_module(module), name) is __main__.main


def test_python_dash_m(tmp_path):
    """The one command everybody types, in a fresh interpreter, from start to end."""
    command = [sys.executable, "-m", "fedexp", *SMALL, "rounds=1", "name=mine"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "round 1/1" in done.stdout
    assert "aggregation" in done.stdout
    assert (done.stderr, "Warning" in done.stdout) == ("", False)
    assert [p.name for p in tmp_path.iterdir()] == ["multirun"]
    (run,) = (tmp_path / "multirun" / "mine").iterdir()
    assert str(run.relative_to(tmp_path)) in done.stdout
    assert (run / "result.json").exists()


# ---------------------------------------------------------------- check, before anything else happens
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algo=["], "this cannot be read"),
        (["algo"], "Write key=value"),
        (["seed=0,1"], "--multirun"),
        (["-m", "algo=fedavg,fedrz"], "algo=fedrz: there is no such choice"),
        (["-m", "seed=0,1,x"], "seed must be a whole number, not 'x'"),
        (["-m", "algo.rs.alpha=0.1,high", "seed=0,1"], "algo.rs.alpha must be a number, not 'high'"),
        (["--multirun", "roundz=1,2"], "roundz is not a setting"),
        (["algo=map", "partition.beta=1"], "partition=dirichlet"),
        (["sweep=alpha", "algo=fedavg"], "algo.rs.alpha is a setting of algo=fedrs or map"),
        (["-m", "sweep=alpha", "algo=map,fedavg"], "algo.rs.alpha is a setting of algo=fedrs or map"),
        (["-m", "algo=map,fedavg", "algo.rs.alpha=0.5"], "algo.rs.alpha is a setting of algo=fedrs or map"),
        (["-m", "hydra/launcher=jobli", "seed=0,1"], "hydra/launcher=jobli: there is no such choice"),
    ],
)
def test_check_explains(arguments, message):
    with pytest.raises(ConfigError) as error:
        cli.check(arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "seed"),
    [
        ([], 0), (["seed=3"], 3), (["-m", "seed=4,5"], 4), (["--multirun", "seed=range(2,9)"], 2),
        (["-m", "algo=glob(fedrs*)", "seed=7"], 7),
        (["sweep=seeds", "rounds=1,2"], 0), (["-m", "~algo.hpm", "model.hidden=[8],[16,16]", "++seed=6,7"], 6),
    ],
)  # fmt: skip
def test_check_returns_the_first_job(arguments, seed):
    assert cli.check(arguments).first["seed"] == seed


def test_check_knows_every_job_of_a_sweep():
    checked = cli.check(["sweep=alpha", "algo=fedrs", "seed=0,1", "algo.rs.alpha=0.5,0.9", "out=here"])
    assert [job.overrides for job in checked.sweep.jobs] == [
        [f"algo.rs.alpha={a}", "sweep=alpha", "algo=fedrs", f"seed={s}", "out=here"] for a in (0.5, 0.9) for s in (0, 1)
    ]
    assert len({job.run for job in checked.sweep.jobs}) == 4
    assert checked.sweep.folder == Path("here/main")
    assert cli.check(["-m", "plan=true", "seed=0,1"]).sweep is None


def test_a_setting_that_only_the_swept_choices_have_is_accepted():
    checked = cli.check(["-m", "algo=fedgela,fedge", "algo.etf.energy=1000"])  # the default algorithm has none
    assert [j.overrides for j in checked.sweep.jobs] == [
        ["algo=fedgela", "algo.etf.energy=1000"],
        ["algo=fedge", "algo.etf.energy=1000"],
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["experiment=fedgela,fedmr", "partition.classes=3", "data=digits", "model=mlpnet"],
        ["algo=fedrs,map", "~algo.rs.bias"],
        ["algo=fedgela,fedge", "~algo.etf.energy"],
        ["algo=fedgela,fedge", "partition.seed=null", "algo.etf.energy=${rounds}"],
    ],
)
def test_a_sweep_takes_settings_of_what_its_files_choose(arguments):
    checked = cli.check(["-m", *arguments])
    assert checked.sweep is not None
    assert [job.overrides[1:] for job in checked.sweep.jobs] == [arguments[1:]] * 2
    assert composed_hydra(checked.arguments[1:]).overrides.task == arguments  # what Hydra begins with


@pytest.mark.parametrize(("n_jobs", "at_once"), [(-1, 3), (2, 2), (8, 5)])
def test_jobs_at_once_are_settled_before_the_sweep(n_jobs, at_once, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    monkeypatch.setenv("FEDEXP_CORES", "3")
    checked = cli.check(["-m", "hydra/launcher=joblib", f"hydra.launcher.n_jobs={n_jobs}", "seed=range(5)"])
    assert checked.arguments[-1] == f"hydra.launcher.n_jobs={at_once}"


def test_a_launcher_that_is_not_installed_is_named_with_the_way_to_get_it():
    with pytest.raises(ConfigError, match=r"pip install 'fedexp\[slurm\]'"):
        raise ConfigError(explain(HydraException("Could not find 'hydra/launcher/submitit_slurm'\n")))


def test_slurm_has_sensible_defaults(tmp_path, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    launcher = composed_hydra(["hydra/launcher=slurm", "hydra.launcher.gpus_per_node=1"]).launcher
    assert (launcher.cpus_per_task, launcher.gpus_per_node, launcher.timeout_min) == (4, 1, 240)
    assert launcher.max_num_timeout > 0  # a job that is out of time goes on in another turn
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no SLURM here"):
        cli.check(["-m", "hydra/launcher=slurm", "seed=0,1"])
    (tmp_path / "srun").touch(mode=0o755)
    assert cli.check(["-m", "hydra/launcher=slurm", "seed=0,1"]).stopped.startswith("What was submitted goes on")


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["-sc", "install=bash"], ["rounds=x", "--info"]])
def test_check_leaves_options_to_hydra(arguments):
    assert cli.check(arguments) is None


# ---------------------------------------------------------------- exit codes
@pytest.fixture
def command(tmp_path):
    """Runs a command in a forked process."""
    return lambda *arguments: ran([*SMALL, f"out={tmp_path / 'runs'}", *arguments], tmp_path / "output")


def test_a_run_that_ends_well(command, tmp_path):
    done = command("rounds=2")
    assert (done.code, done.err) == (0, "")
    assert "fedavg · digits · incomplete · mlpnet · seed 0: 2 rounds" in done.out
    again = command("rounds=2")
    assert again.code == 0
    assert "finished already; force=true runs it again" in again.out


def test_all_problems_of_a_configuration_and_code_2(command, tmp_path):
    done = command("algo=fedrs", "algo.rs.alpha=2", "cohort.fraction=0", "partition=classes", "partition.classes=0")
    assert done.code == 2
    for part in ("ConfigError", "algo.rs.alpha must be between 0 and 1, not 2", "cohort.fraction must be in (0, 1]",
                 "partition.classes must be"):  # fmt: skip
        assert part in done.err
    assert "Traceback" not in done.err
    assert list((tmp_path / "runs").rglob("*.json")) == []


def test_missing_data_and_code_1(command, tmp_path):
    (tmp_path / "empty").mkdir()
    done = command("data=cifar10", f"data.root={tmp_path / 'empty'}", "data.download=false", "model=mlpnet")
    assert done.code == 1
    assert DataError.__name__ in done.err
    for part in (str(tmp_path / "empty"), "data.root", "data.download"):
        assert part in done.err
    assert "Traceback" not in done.err


def test_a_plan_trains_nothing_and_leaves_nothing(command, tmp_path):
    done = command("plan=true", "algo=scamap")
    assert (done.code, done.err) == (0, "")
    for part in ("InheritedPrivateModel", "scaffold.ck", "bytes per round", "Training samples, class × client"):
        assert part in done.out
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_held_by_another_process(tmp_path):
    """Code 1, and who holds it."""
    arguments = [*SMALL, f"out={tmp_path / 'runs'}", "rounds=100000"]
    with started(arguments, tmp_path / "first") as first:
        first.until(lambda: bool(list((tmp_path / "runs").rglob("metrics.jsonl"))))
        second = ran(arguments, tmp_path / "second")
        assert second.code == 1
        assert f"is being written by process {first.process.pid}" in second.err
        first.signal(signal.SIGINT)
        assert first.wait().code == 130
    forced = [*arguments, "force=true"]
    with started(forced, tmp_path / "third") as third:
        third.until(lambda: third.says("100,000 rounds"))
        third.signal(signal.SIGINT)
        done = third.wait()
    assert done.code == 130
    assert shlex.join(["fedexp", *arguments]) + "\n" in done.out  # without force=true


def test_a_bug_of_ours_is_not_hidden(command):
    """A component that fails for another reason than the user's input: the cause is shown, and the code is not 0."""
    done = command("++algo.x._target_=tests.integration.broken.Broken")
    assert done.code == 1
    assert "ZeroDivisionError" in done.err + done.out
