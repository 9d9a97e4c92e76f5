"""Composing many configurations: quickly, and as Hydra does."""

from __future__ import annotations

import os
import pickle
import signal
import time

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.types import RunMode
from omegaconf import OmegaConf

from fedexp import cli
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import Loader, choices_of, loader
from fedexp.config.sources import Sources, conf_dir
from fedexp.errors import ConfigError
from fedexp.system.signals import Stopped, raise_on_signal

OURS = Sources()
LINES = [
    [],
    ["seed=3"],
    ["seed=3", "seed=4"],
    ["algo=scamap", "algo.rs.alpha=0.25", "rounds=7"],
    ["algo.rs.alpha=0.25", "algo=scamap"],
    ["data=cifar10", "model=lenet", "data.augment=[]", "data.mean=[0,0,0]"],
    ["data=cifar10", "optim.lr=1e-3", "optim.nesterov=true"],
    ["experiment=map/fmnist_mlpnet", "rounds=7", "cohort={clients: 7, fraction: 0.5}"],
    ["~algo.hpm", "++algo.rs.alpha=1", "+algo.x={_target_: fedexp.algos.scaffold.Scaffold}"],
    ["partition=dirichlet", "partition.beta=0.1", "partition.seed=null", "name=a/b", "out='x y'"],
    ["local.clip=10", "limit=${rounds}", "local={epochs: 2}"],
    ["tracker=wandb", "tracker.wandb.tags=[a,b]", "hydra.verbose=true"],
    ["hydra/launcher=joblib", "hydra.launcher.n_jobs=3", "seed=1"],
    ["sweep=map", "algo=map"],
    ["model.hidden=[3,4]", "executor=processes", "executor.workers=2", "loop=fabric"],
    *([f"algo={name}", "seed=9"] for name in choices_of("algo")[::5]),
    *([f"data={name}", "seed=9", "rounds=2"] for name in choices_of("data")[::5]),
]


def whole(by: ConfigLoaderImpl, lines: list[str], mode: RunMode) -> dict:
    config = by.load_configuration("config", list(lines), mode)
    return OmegaConf.to_container(config, resolve=False, throw_on_missing=False)


@pytest.fixture(scope="module")
def ours() -> Loader:
    return loader(OURS)


@pytest.fixture(scope="module")
def hydras() -> ConfigLoaderImpl:
    return ConfigLoaderImpl(OURS.search_path())


@pytest.mark.parametrize("mode", [RunMode.RUN, RunMode.MULTIRUN])
@pytest.mark.parametrize("lines", LINES, ids=" ".join)
def test_a_configuration_is_the_one_that_hydra_composes(ours, hydras, lines, mode):
    theirs = whole(hydras, lines, mode)
    for _ in range(2):  # the second time from what is remembered
        assert whole(ours, lines, mode) == theirs
    if mode == RunMode.RUN:
        job, choices = ours.job("config", lines)
        assert dict(choices) == theirs.pop("hydra")["runtime"]["choices"]
        assert {k: v for k, v in OmegaConf.to_container(job).items() if k != "hydra"} == theirs


def test_copies_are_independent(ours):
    first, _ = ours.job("config", ["model.hidden=[1]"])
    first.cohort.clients = 99
    first.model.hidden.append(5)
    again, _ = ours.job("config", ["model.hidden=[1]"])
    assert (again.cohort.clients, list(again.model.hidden)) == (20, [1])


def test_another_process_gets_hydras_own_loader(ours):
    copy = pickle.loads(pickle.dumps(ours))  # noqa: S301
    assert type(copy) is ConfigLoaderImpl
    assert whole(copy, ["seed=3"], RunMode.RUN) == whole(ours, ["seed=3"], RunMode.RUN)


def test_a_file_that_has_changed_is_read_again(tmp_path):
    (tmp_path / "algo").mkdir()
    file = tmp_path / "algo" / "mine.yaml"
    sources = Sources(conf_dir(), tmp_path)
    for alpha in (0.25, 0.75):
        file.write_text(f"defaults: [fedrs, _self_]\nrs: {{alpha: {alpha}}}\n")
        os.utime(file, ns=(0, int(alpha * 100)))  # however coarse the clock
        assert composed(["algo=mine"], sources)["algo"]["rs"]["alpha"] == alpha


def test_a_search_path_adds_groups_of_its_own(tmp_path, ours, hydras):
    (tmp_path / "flavour").mkdir()
    (tmp_path / "flavour" / "mild.yaml").write_text("# @package _global_\nrounds: 7\n")
    lines = [f"hydra.searchpath=[file://{tmp_path}]", "+flavour=mild", "seed=3"]
    assert composed(lines)["rounds"] == 7
    assert whole(ours, lines, RunMode.RUN) == whole(hydras, lines, RunMode.RUN)


def test_settings_of_files_that_are_swept_over_wait_for_the_job(tmp_path, ours):
    (tmp_path / "flavour").mkdir()
    for elsewhere in ([], [f"hydra.searchpath=[file://{tmp_path}]"]):
        lines = [
            "algo=fedgela,fedge", "algo.etf.energy=3", "~algo.etf.projection", "rounds=7", "local.epochs=3", "seed=1,2",
            "name=e${local.epochs}",
        ]  # fmt: skip
        made = whole(ours, [*elsewhere, *lines], RunMode.MULTIRUN)
        assert made["hydra"]["overrides"]["task"] == lines
        assert (made["rounds"], made["local"]["epochs"]) == (7, 3)  # what all files have, for Hydra's folders
    with pytest.raises(ConfigError, match=r"algo\.etf\.energy is a setting of"):
        composed(["algo.etf.energy=3"])


def test_two_thousand_jobs_are_checked_in_seconds():
    """Some 5 s; reading all files for each job took 110 s."""
    started = time.process_time()
    checked = cli.check(["-m", "seed=range(500)", "algo=fedavg,map", "rounds=1,2"])
    assert len(checked.sweep.jobs) == 2000
    assert time.process_time() - started < 20


def test_a_signal_waits_for_the_end_of_composing(monkeypatch):
    """What is raised in the middle of it may be swallowed, or taken for an error in the configuration."""
    from hydra._internal import config_loader_impl

    def create(*args, **kwargs):
        signal.raise_signal(signal.SIGTERM)
        seen.append("went on")
        return real(*args, **kwargs)

    seen: list[str] = []
    real = config_loader_impl.create_defaults_list
    monkeypatch.setattr(config_loader_impl, "create_defaults_list", create)
    with pytest.raises(Stopped), raise_on_signal():
        composed(["algo=fedla", "model=vgg8"])  # a choice that nobody else makes
    assert seen == ["went on"]


@pytest.mark.parametrize(
    "line",
    [
        "hydra.launcher._target_=os.system", "hydra.sweeper._target_=os.getcwd",
        "+hydra.launcher.x._target_=os.system", "+hydra.launcher.x=[{_target_: os.system}]",
        "+hydra.launcher.x='${oc.create:{_target_:os.system}}'", "hydra.searchpath=[pkg://antigravity]",
    ],
)  # fmt: skip
def test_hydra_makes_objects_of_its_own_classes_only(line):
    with pytest.raises(ConfigError, match=r"^hydra\.\S+: .* is not (one of Hydra's own classes|a folder)"):
        composed([line])


@pytest.mark.parametrize(
    "line",
    [
        "+hydra.callbacks.x._target_=os.system", "++hydra.job_logging.handlers.x.class=subprocess.Popen",
        "+hydra.callbacks.x._target_=hydra.experimental.callbacks.LogJobReturnCallback", "hydra/job_logging=default",
        "hydra.run.dir=/tmp", "hydra.sweep.dir=/tmp", "hydra.sweep.subdir=x", "hydra.output_subdir=x",
        "+hydra.job.env_set.LD_PRELOAD=/x.so", "hydra.job.chdir=true", "hydra.job.name=x",
        "hydra={output_subdir: x}",
    ],
)  # fmt: skip
def test_other_settings_of_hydras_cannot_be_changed(line):
    with pytest.raises(ConfigError, match=r"^hydra\.[\w.]+ cannot be set.* Leave it out\.$"):
        composed([line])


def test_launchers_write_beside_the_runs(tmp_path):
    for launcher, key in (("submitit_local", "submitit_folder"), ("joblib", "temp_folder")):
        with pytest.raises(ConfigError, match=rf"^hydra\.launcher\.{key} cannot be set"):
            composed([f"hydra/launcher={launcher}", f"hydra.launcher.{key}={tmp_path}"])


def test_what_is_remembered_knows_the_folder_of_today(ours, tmp_path, monkeypatch):
    whole(ours, [], RunMode.MULTIRUN)
    monkeypatch.chdir(tmp_path)
    assert whole(ours, [], RunMode.MULTIRUN)["hydra"]["runtime"]["cwd"] == str(tmp_path)
