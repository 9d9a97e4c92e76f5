"""Titles, tags and commands by which runs are told apart."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from fedexp.config.compose import composed
from fedexp.config.identity import run_id, run_path
from fedexp.runs.directory import RunDir
from fedexp.runs.sweep_manifest import Manifest
from fedexp.track import RunCard, identity
from tests.unit.track.cards import card


def of(overrides: list[str]) -> RunCard:
    config = composed(overrides)
    return RunCard(run_id(config), config["name"], config, {}, run_path(config), config["rounds"])


def test_a_single_run_is_named_by_what_is_not_the_default(tmp_path: Path):
    out = f"out={tmp_path}"
    assert identity.title(of([out])) == "map s0"
    assert (
        identity.title(of([out, "algo=fedrs", "algo.rs.alpha=0.3", "seed=2", "executor=serial"]))
        == "fedrs alpha=0.3 s2"
    )
    assert identity.title(of([out, "partition=dirichlet", "tracker=tensorboard"])) == "map dirichlet s0"


def test_runs_of_a_sweep_are_named_by_what_it_varies(tmp_path: Path):
    jobs = [
        ["algo=fedrs", f"algo.rs.alpha={alpha}", f"seed={seed}", "local.epochs=2", f"out={tmp_path}"]
        for alpha in (0.1, 0.5)
        for seed in (0, 1)
    ]
    Manifest.of([(job, composed(job)) for job in jobs]).write()
    assert [identity.title(of(job)) for job in jobs] == [f"fedrs alpha={a} s{s}" for a in (0.1, 0.5) for s in (0, 1)]
    alone = [*jobs[0], "rounds=7"]
    assert identity.title(of(alone)) == "fedrs rounds=7 epochs=2 alpha=0.1 s0"  # not one of the sweep


def test_settings_with_the_same_last_name_keep_their_full_names(tmp_path: Path):
    title = identity.title(of([f"out={tmp_path}", "partition.seed=5", "cohort.seed=6"]))
    assert title == "map cohort.seed=6 partition.seed=5 s0"


def test_tags_choose_by_paper_experiment_data_and_partition(tmp_path: Path):
    assert identity.tags(card(tmp_path)) == [
        "paper:map", "experiment:map/fmnist_mlpnet", "data:fmnist", "partition:incomplete",
    ]  # fmt: skip
    assert identity.tags(of([])) == ["data:digits", "partition:incomplete"]


def test_the_command_gives_the_same_run(tmp_path: Path):
    told = of(["algo=fedrs", "local.epochs=2", f"out={tmp_path}", "tracker=wandb", "name=x", "loop=fabric"])
    assert identity.command(told) == "python -m fedexp algo=fedrs local.epochs=2"
    assert run_id(composed(identity.command(told).split()[3:])) == told.run


@pytest.mark.parametrize(
    "more",
    [
        ["loop=batched", "loop.group=7"],
        ["loop.precision=bf16-mixed", "loop.compile=true"],
        ["loop.accelerator=cpu"],
        ["executor=processes", "executor.workers=2", "executor.threads=2"],
        ["loop=fabric", "loop.precision=16-mixed", "executor=serial"],
        ["algo=fedgela", "~algo.etf.projection"],
    ],
)
def test_the_command_gives_the_same_run_however_it_runs(tmp_path: Path, more: list[str]):
    told = of(["local.epochs=2", f"out={tmp_path}", *more])
    command = identity.command(told)
    assert run_id(composed(shlex.split(command)[3:])) == told.run
    for without_effect in ("executor=", "workers", "loop=fabric", "out="):
        assert without_effect not in command


def test_jobs_that_differ_in_how_they_run_are_told_apart_where_their_numbers_differ(tmp_path: Path):
    jobs = [[f"loop={loop}", f"out={tmp_path}"] for loop in ("fabric", "batched")]
    Manifest.of([(job, composed(job)) for job in jobs]).write()
    assert [identity.title(of(job)) for job in jobs] == ["map s0", "map batched s0"]


def test_a_run_with_choices_of_somebody_else_has_no_command(tmp_path: Path):
    config = {**composed([]), "choices": {"algo": "theirs", "data": "digits"}}
    foreign = RunCard("x", "y", config, {}, tmp_path, 3)
    assert identity.command(foreign) == ""
    assert identity.title(foreign) == "theirs s0"


def test_a_run_of_a_version_with_one_tracker_can_still_be_described(tmp_path: Path):
    config = {**composed([f"out={tmp_path}", "rounds=3"]), "tracker": {"_target_": "fedexp.track.base.NoTracker"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    read = RunDir(tmp_path).config()
    assert read is not None
    assert identity.title(RunCard("x", "y", read, {}, tmp_path, 3)) == "map rounds=3 s0"
