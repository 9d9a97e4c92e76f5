"""Every scene of the papers is an experiment, and every method of their tables can be run in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedexp import api
from fedexp.config.compose import Config, composed, composing
from fedexp.config.identity import run_id
from fedexp.config.sources import conf_dir
from fedexp.data.catalog import CATALOG
from fedexp.reproduce.entry import Scene
from fedexp.reproduce.published import PAPERS, entries, method, methods, scenes

FOLDER = conf_dir() / "experiment"
SCENES = [scene for paper in PAPERS for scene in scenes(paper)]
OWN = {"map": "MAP", "fedrs": "FedRS alpha=0.5", "fedrema": "FedReMa", "fedmr": "FedMR", "fedgela": "FedGELA"}
PROTOCOL = {"map": "map", "fedrs": "map", "fedrema": "fedrema", "fedmr": "map", "fedgela": "fedgela"}
WEIGHTING = {"map": "uniform", "fedrs": "uniform", "fedrema": "samples", "fedmr": "samples", "fedgela": "samples"}
CLIP = {"map": 100, "fedrs": 100, "fedrema": 10, "fedmr": 100, "fedgela": 20}
USED = sorted(
    {
        (e.paper, s, m)
        for e in entries().values()
        for s in (*e.scenes, *e.stand_ins)
        for m in e.rows
        if method(e.paper, m).overrides is not None
    }
)

# Scenes as one would write them on the command line, from the papers' text.
WRITTEN_OUT = {
    "map/fmnist_mlpnet": "data=fmnist model=mlpnet partition=incomplete cohort.clients=100 cohort.fraction=0.2 "
    "rounds=150 local.epochs=5 local.batch_size=64 optim.lr=0.03 optim.momentum=0.9 "
    "optim.weight_decay=1e-5 weighting=uniform",
    "map/cinic10_resnet56": "data=cinic10 model=resnet56 partition=incomplete cohort.clients=100 cohort.fraction=0.2 "
    "rounds=150 local.epochs=40 optim.lr=0.05",
    "map/fmnist_lenet_dir0.5": "data=fmnist model=lenet partition=dirichlet partition.beta=0.5 cohort.clients=100 "
    "rounds=150",
    "fedrs/cifar10-100-2_tfcnn": "data=cifar10 model=tfcnn partition=shards partition.per_client=2 cohort.clients=100 "
    "cohort.fraction=0.1 rounds=1000 local.epochs=2 optim.weight_decay=5e-4 evaluate.window=50",
    "fedrema/cifar10_alexnet_s0.4_n100": "data=cifar10_fedrema model=alexnet partition=dominant partition.iid=0.4 "
    "partition.samples_per_client=125 pool=all cohort.clients=20 cohort.fraction=1 rounds=500 local.batch_size=100 "
    "local.clip=10 optim.lr=0.01 optim.weight_decay=0 weighting=samples evaluate=fedrema",
    "fedmr/cifar100_wrn28_10_P50C10": "data=cifar100_fedmr model=wrn28_10 partition=classes partition.classes=10 "
    "cohort.clients=50 cohort.fraction=0.2 rounds=400 local.epochs=10 local.batch_size=128 optim.lr=0.01 "
    "weighting=samples",
    "fedgela/svhn_resnet18_fc_partial_dir0.2": "data=svhn model=resnet18_fc partition=dirichlet partition.beta=0.2 "
    "partition.by=class partition.min_size=100 partition.test=mirror cohort.clients=50 cohort.fraction=0.2 rounds=100 "
    "local.epochs=10 local.batch_size=100 local.clip=20 optim.lr=0.01 optim.weight_decay=1e-4 weighting=samples "
    "evaluate=fedgela",
    "fedgela/stand-in_fmnist_mlpnet_P10C2": "data=fmnist model=mlpnet model.final_relu=false partition=classes "
    "cohort.clients=10 cohort.fraction=1 rounds=30 local.epochs=2 local.batch_size=100 local.clip=20 optim.lr=0.01 "
    "optim.weight_decay=1e-4 weighting=samples evaluate=fedgela",
}


def without_names(config: Config) -> Config:
    return {k: v for k, v in config.items() if k not in ("name", "choices")}


def test_scenes_and_files_are_the_same():
    files = {f"{p.parent.name}/{p.name.removesuffix('.yaml')}" for p in FOLDER.glob("*/*.yaml")}
    assert files == {scene.experiment for scene in SCENES}
    assert {p.stem for p in FOLDER.glob("*.yaml")} == set(PAPERS)
    assert len(SCENES) == 118


@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.experiment)
def test_a_file_says_what_it_is(scene):
    package, first, *_ = (FOLDER / f"{scene.experiment}.yaml").read_text(encoding="utf-8").splitlines()
    assert package == "# @package _global_"
    assert "table" in first or "figure" in first
    assert first.startswith("# A stand-in for ") == scene.stand_in


@pytest.mark.parametrize("paper", PAPERS)
def test_every_scene_composes_to_its_papers_protocol(paper):
    with composing() as made:
        for scene in scenes(paper):
            config = made([f"experiment={scene.experiment}"])
            assert config["name"] == scene.experiment
            assert config["choices"]["evaluate"] == PROTOCOL[paper]
            assert config["weighting"] == WEIGHTING[paper]
            assert config["local"]["clip"] == CLIP[paper]
            assert config["choices"]["optim"] == "sgd"


def test_clients_of_fedmr_train_on_all_of_the_data():
    """It measures the server's model only, so no client holds samples out."""
    with composing() as made:
        for scene in scenes("fedmr"):
            assert made([f"experiment={scene.experiment}"])["partition"].get("test") != "holdout", scene.name


def test_clients_of_fedgela_have_a_batch_where_the_paper_says_so():
    """Section 5.2: with beta 0.2 in partial participation each client has at least one batch of samples."""
    found = [scene for scene in scenes("fedgela") if scene.name.endswith("partial/dir0.2")]
    assert len(found) == 3
    with composing() as made:
        for scene in found:
            config = made([f"experiment={scene.experiment}"])
            assert config["partition"]["min_size"] == config["local"]["batch_size"]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_method_composes_in_a_scene(paper):
    where = {m: s for p, s, m in reversed(USED) if p == paper}
    with composing() as made:
        others = {reading for e in entries().values() if e.paper == paper for reading in e.readings}
        for row in (m for m in (*methods(paper), *others) if m.overrides is not None):
            made(arguments(paper, where.get(row.row, scenes(paper)[0].name), row.name))


def arguments(paper: str, scene: str, name: str) -> list[str]:
    [found] = [s for s in scenes(paper) if s.name == scene]
    return [f"experiment={found.experiment}", *method(paper, name).overrides_in(scene)]


@pytest.mark.slow  # some 150 s
def test_every_method_composes_in_every_scene():
    assert len(USED) > 1000
    with composing() as made:
        for paper, scene, name in USED:
            made(arguments(paper, scene, name))


@pytest.mark.parametrize("experiment", WRITTEN_OUT)
def test_a_scene_is_what_its_settings_written_out_are(experiment):
    short, long = composed([f"experiment={experiment}"]), composed(WRITTEN_OUT[experiment].split())
    assert without_names(short) == without_names(long)
    assert run_id(short) == run_id(long)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_protocol_can_be_used_alone(paper):
    config = composed([f"experiment={paper}", "data=cifar10", "model=vgg8"])
    assert (config["name"], config["choices"]["model"]) == (paper, "vgg8")
    assert config["weighting"] == WEIGHTING[paper]


def planned(scene: Scene, tmp_path: Path) -> api.Result:
    overrides = method(scene.paper, OWN[scene.paper]).overrides_in(scene.name)
    return api.run([f"experiment={scene.experiment}", *overrides, "plan=true", f"out={tmp_path}"])


def test_a_scene_of_generated_data_can_be_planned(tmp_path):
    [scene] = [s for s in SCENES if s.name == "sa/sacnn"]
    assert planned(scene, tmp_path).status == "planned"


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s.experiment)
def test_every_scene_whose_data_are_here_can_be_planned(scene, tmp_path):
    root = os.environ.get("FEDEXP_DATA")
    if root is None:
        pytest.skip("FEDEXP_DATA is not set")
    data = composed([f"experiment={scene.experiment}"])["choices"]["data"]
    known = data if data in CATALOG else data.partition("_")[0]
    if CATALOG[known].find(Path(root)) is None:
        pytest.skip(f"{known} is not in FEDEXP_DATA")
    assert planned(scene, tmp_path).status == "planned"
