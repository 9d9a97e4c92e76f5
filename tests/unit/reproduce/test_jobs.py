"""From what is asked for to runs."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from fedexp.config.compose import composed
from fedexp.config.identity import run_id
from fedexp.errors import ConfigError
from fedexp.reproduce import published
from fedexp.reproduce.jobs import changes_numbers, distinct, jobs_of
from fedexp.reproduce.request import request


@pytest.fixture
def jobs(paper):
    return lambda entry=paper.TABLE, **words: jobs_of(request(entry, **{"methods": "FedAvg", **words}))


def test_the_first_seed_of_everything_comes_first_and_cheap_scenes_before_dear_ones(jobs):
    found = [(job.seed, job.scene.name) for job in jobs(settings="digits/again,digits/mlp", seeds="0,1")]
    assert found == [(0, "digits/mlp"), (0, "digits/again"), (1, "digits/mlp"), (1, "digits/again")]


def test_a_run_has_its_place_by_its_experiment_and_not_by_the_table(jobs, paper, tmp_path):
    (one,), (other,) = (jobs(e, settings="digits/mlp", out=str(tmp_path)) for e in (paper.TABLE, paper.OTHER))
    assert one.path == other.path == tmp_path / "map" / "fmnist_mlpnet" / one.run


def test_figures_of_the_same_runs_ask_for_the_probes_of_each_other():
    figures = [published.entry(f"fedgela/{name}") for name in ("fig2", "fig5")]
    one, other = (jobs_of(request(f, settings="cifar10/resnet18_fc/full/dir0.1", methods="FedAvg"))[0] for f in figures)
    assert one.path == other.path
    assert set(one.config["probe"]) == set(other.config["probe"]) >= {*figures[0].probes, *figures[1].probes}
    (table,) = jobs_of(request(published.entry("fedgela/table2"), settings=one.scene.name, methods="FedAvg"))
    assert table.path == one.path
    assert not table.config["probe"]  # it needs none


@pytest.mark.parametrize("loop", ["loop=batched", "loop.compile=true", "loop.precision=bf16-mixed"])
def test_the_command_of_a_job_starts_the_same_run_without_what_is_of_this_machine(jobs, tmp_path, loop):
    (job,) = jobs(
        settings="digits/mlp",
        rounds="1",
        out=str(tmp_path),
        overrides=["optim.lr=0.5", "store=disk", "executor.threads=2", loop],
    )
    assert str(tmp_path) not in job.command
    assert run_id(composed(shlex.split(job.command)[3:])) == job.run


@pytest.mark.parametrize(
    ("words", "reduced"),
    [
        ({}, ""),
        ({"rounds": "2"}, ""),  # as many as the method has in the paper
        ({"rounds": "1"}, "1 of 2 rounds"),
        ({"overrides": ["local.epochs=3"]}, "local.epochs=3"),
        ({"overrides": ["loop=trainer", "executor=serial", "name=x", "store=disk", "force=true"]}, ""),
        ({"overrides": ["loop.precision=32-true", "loop.compile=true"]}, ""),
        ({"overrides": ["loop.precision=bf16-mixed"]}, "loop.precision=bf16-mixed"),
        ({"overrides": ["evaluate.window=3"]}, ""),
        ({"settings": "stand-in/digits/mlp", "rounds": "1"}, "stand-in, 1 of 2 rounds"),
    ],
)
def test_what_is_less_than_the_papers_is_said(jobs, words, reduced):
    (job,) = jobs(**{"settings": "digits/mlp", **words})
    assert job.reduced == reduced


def test_settings_are_tried_only_if_asked_for_and_only_where_the_paper_did(jobs, paper):
    words = {"settings": "digits/mlp", "methods": "FedRS"}
    assert [job.tuning for job in jobs(**words)] == [()]
    assert [job.tuning for job in jobs(**words, tune="paper")] == [("algo.rs.alpha=0.5",), ("algo.rs.alpha=0.9",)]
    varied = jobs(paper.FIGURE, **words)
    assert [job.config["algo"]["rs"]["alpha"] for job in varied] == [0.1, 0.2]
    assert len(distinct(varied)) == 2
    assert len(distinct([*varied, *varied])) == 2


def test_more_rounds_than_the_paper_has_are_refused(jobs):
    with pytest.raises(ConfigError, match="rounds=3: digits/mlp has 2 rounds in the paper"):
        jobs(settings="digits/mlp", rounds="3")


def test_a_wrong_override_is_explained(jobs):
    with pytest.raises(ConfigError, match="local\\.epoch is not a setting"):
        jobs(settings="digits/mlp", overrides=["local.epoch=3"])


def test_no_published_number_needs_what_is_left_out_after_the_last_round():
    used = {measure.of for entry in published.entries().values() for measure in entry.measures}
    assert "personalization.PA" in used
    assert not any("all_clients" in key for key in used)


def test_what_is_measured_changes_numbers_that_are_taken_after_the_last_round():
    gela, table = published.entry("fedgela/table5"), published.entry("map/table1")
    assert changes_numbers("evaluate.finetune_epochs=3", gela)
    assert not changes_numbers("evaluate.finetune_epochs=3", table)
    assert not changes_numbers("evaluate.missing=false", gela)
    measured = {measure.of for entry in published.entries().values() for measure in entry.measures}
    assert not any(key.startswith("missing") for key in measured)


def test_a_scene_of_one_table_may_stand_in_for_that_of_another():
    asked = request(published.entry("fedrema/table3"), settings="fmnist/cnn/s0.2/n600", seeds="0")
    job = jobs_of(asked)[0]
    assert job.reduced == "stand-in"
    assert replace(job, less=("3 of 500 rounds",)).reduced == "stand-in, 3 of 500 rounds"
    assert replace(job, entry=published.entry("fedrema/table1")).reduced == ""
