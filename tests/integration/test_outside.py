"""The folder of a user's own, of README and guide, used from elsewhere: its parts work as ours do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fedexp.config.compose import composed
from fedexp.config.identity import run_id
from fedexp.config.sources import Sources, conf_dir
from fedexp.errors import ConfigError
from tests.integration.test_readme import EXAMPLE, run, write_example

CHOICES = ["algo=mine", "data=ours", "model=small", "partition=theirs", "evaluate=everyone"]
SMALL = ["rounds=2", "cohort.clients=6", "local.epochs=1", "evaluate.all_clients=false"]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Her folder, which is not the current one."""
    home = tmp_path_factory.mktemp("home")
    write_example(home)
    return home


@pytest.fixture(scope="module")
def sources(home) -> Sources:
    return Sources(conf_dir(), home / "my_conf")


@pytest.fixture(scope="module")
def digests(home, tmp_path_factory) -> dict[str, str]:
    """Those of a run in one process."""
    return fedexp(home, tmp_path_factory.mktemp("serial"), "executor=serial")


def fedexp(home: Path, cwd: Path, *more: str) -> dict[str, str]:
    done = run([sys.executable, "-m", "fedexp", "--config-dir", str(home / "my_conf"), *CHOICES, *SMALL, *more], cwd)
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = (cwd / "multirun" / "main").glob("*/result.json")
    found: dict[str, str] = json.loads(path.read_text())["digests"]
    return found


def test_the_example_has_a_file_for_each_part_and_a_test():
    kinds = {Path(name).parent.name for name in EXAMPLE if name.endswith(".yaml")}
    assert kinds == {"algo", "data", "model", "partition", "evaluate"}
    assert sum(name.endswith(".py") for name in EXAMPLE) == len(kinds) + 1


def test_worker_processes_give_the_numbers_of_one_process(home, digests, tmp_path):
    assert fedexp(home, tmp_path, "executor=processes", "executor.workers=2", "loop=fabric") == digests


def test_ray_gives_the_numbers_of_one_process(home, digests, tmp_path):
    pytest.importorskip("ray", reason="executor=ray is an extra: pip install 'fedexp[ray]'")
    assert fedexp(home, tmp_path, "executor=ray", "executor.workers=1") == digests


def test_python_gives_the_numbers_of_the_command_line(home, digests, tmp_path):
    code = f"import fedexp; print(fedexp.run({[*CHOICES, *SMALL]}, config_dir={str(home / 'my_conf')!r}).summary)"
    done = run([sys.executable, "-c", code], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(value in done.stdout for value in digests.values())


def test_jobs_of_a_sweep_in_processes_of_their_own(home, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="an extra: pip install 'fedexp[joblib]'")
    arguments = ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "algo.norm.weight=0,1", *CHOICES, *SMALL]
    done = run([sys.executable, "-m", "fedexp", "--config-dir", str(home / "my_conf"), *arguments], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("multirun/main/*/model.safetensors"))) == 2


def test_the_command_of_a_failed_job_names_her_folder(home, tmp_path):
    arguments = ["-m", "limit=0.00001", "algo=mine", *SMALL]
    done = run([sys.executable, "-m", "fedexp", "--config-dir", str(home / "my_conf"), *arguments], tmp_path)
    assert done.returncode == 1
    assert f"\n  again  fedexp --config-dir {home / 'my_conf'} limit=1e-05 algo=mine rounds=2" in done.stdout


def test_her_method_passes_the_battery_from_her_own_pytest(home, tmp_path):
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(home / "my_conf")], tmp_path)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_battery_catches_her_mistake(tmp_path):
    write_example(tmp_path)
    method = tmp_path / "my_conf" / "mine.py"
    method.write_text(method.read_text().replace("step.h.square()", "step.received.popitem()[1]"))
    done = run([sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", str(method.parent)], tmp_path)
    assert done.returncode == 1, done.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("algo=mien", r"algo=mien: there is no such choice\. Did you mean 'mine'"),
        ("data=oors", r"data=oors: there is no such choice\. Did you mean 'ours'"),
        ("algo.norm.wieght=1", r"algo\.norm\.wieght is not a setting\. Did you mean 'algo\.norm\.weight'"),
        ("algo.norm.weight=-1", r"algo\.norm\.weight must be 0 or more, not -1"),
        ("model.width=few", r"model\.width must be a whole number, not 'few'"),
        ("+model.shape=[3]", r"model\.shape is not a setting of small\.small"),
        ("partition.holdout=2", r"partition\.holdout must be in \(0, 1\), not 2"),
    ],
)
def test_wrong_settings_are_explained(sources, line, message, monkeypatch, home):
    monkeypatch.chdir(home / "my_conf")
    with pytest.raises(ConfigError, match=message):
        composed([*CHOICES, line], sources)


def test_other_folders_of_hers_are_not_taken_for_groups(sources, home):
    (home / "my_conf" / "__pycache__").mkdir(exist_ok=True)
    with pytest.raises(ConfigError, match=r"zzz is not a setting\. Known: algo, ") as caught:
        composed(["zzz=1"], sources)
    assert "__pycache__" not in str(caught.value)


def test_the_run_id_depends_on_her_settings_and_not_on_her_folder(sources, monkeypatch, home, tmp_path):
    monkeypatch.chdir(home / "my_conf")
    before = run_id(composed(CHOICES, sources))
    assert run_id(composed([*CHOICES, "algo.norm.weight=1"], sources)) != before
    write_example(tmp_path)
    assert run_id(composed(CHOICES, Sources(conf_dir(), tmp_path / "my_conf"))) == before


@pytest.mark.parametrize(
    ("file", "right", "wrong", "message"),
    [
        ("small.py", "SplitModel(features, nn.Linear(width, n_classes), width)", "features",
         "ConfigError: model: a network must be a fedexp.models.split.SplitModel, not Sequential."),
        ("small.py", "nn.Linear(prod(shape), width)", "nn.Linear(7, width)",
         "ConfigError: model: small.small cannot be made of these settings ("),
        ("ours.py", "DataSpec((2,), self.classes)", "DataSpec((2,), 2)",
         "DataError: data: train.y must have labels from 0 to 1, not from 0 to 3."),
        ("theirs.py", "owns * (", "0 * owns * (", "ConfigError: partition: client 0 would own 0 samples and needs 2"),
    ],
)  # fmt: skip
def test_parts_that_do_not_do_what_they_should_get_one_sentence(tmp_path, file, right, wrong, message):
    write_example(tmp_path)
    path = tmp_path / "my_conf" / file
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    done = run([sys.executable, "-m", "fedexp", "--config-dir", "my_conf", *CHOICES, *SMALL], tmp_path)
    assert done.returncode == (1 if message.startswith("DataError") else 2)
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "multirun").exists()
