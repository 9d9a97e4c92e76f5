"""How long runs take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedexp.config.sources import conf_dir
from fedexp.reproduce import published
from fedexp.reproduce.cost import Cost, Costs
from fedexp.reproduce.jobs import jobs_of
from fedexp.reproduce.request import request
from fedexp.reproduce.results import Result


def result(method: str, seconds: float, *, reduced: str = "", rounds: int = 2) -> Result:
    return Result(
        "tiny/table2", "digits/mlp", method, "personalization", 0, "", 50.0, "done", reduced, rounds, "best round",
        f"run of {seconds} s", "command", seconds, "partition", "versions",
    )  # fmt: skip


@pytest.fixture
def cost(paper):
    def cost_of(*results: Result, **words: str) -> Cost:
        (job,) = jobs_of(request(paper.TABLE, **{"settings": "digits/mlp", "methods": "FedRS", **words}))
        return Costs(results).of_job(job)

    return cost_of


def test_the_model_is_used_where_nothing_was_measured(cost):
    assert cost() == Cost(0.001 * 3600 * 2, modelled=1)
    assert cost(rounds="1").seconds == pytest.approx(cost().seconds / 2)


def test_finished_runs_of_any_table_of_the_paper_say_it_better(cost):
    found = [result("FedRS", seconds) for seconds in (10.0, 12.0, 40.0)]
    assert cost(*found) == Cost(12.0, measured=1)
    assert cost(*found, rounds="1") == Cost(6.0, measured=1)
    assert cost(result("FedRS", 5.0, reduced="1 of 2 rounds", rounds=1)) == Cost(10.0, measured=1)
    assert cost(replace(found[0], status="partial")).modelled == 1


def test_other_methods_in_the_scene_are_better_than_the_model(cost):
    assert cost(result("FedAvg", 10.0), result("slow", 30.0)) == Cost(2 * 20.0, measured=1)
    assert cost(result("a method of long ago", 10.0)).modelled == 1


def test_runs_of_other_scenes_with_the_same_network_scale_the_model(cost):
    """Each scene by the median of its methods."""
    other_network = [replace(result("FedAvg", 99.0), setting="digits/again")]
    assert cost(*other_network) == cost()
    same = [
        replace(result(method, seconds), setting="stand-in/digits/mlp")  # of 0.001 hours
        for method, seconds in (("FedAvg", 36.0), ("FedRS", 72.0), ("slow", 999.0))
    ]
    assert cost(*other_network, *same) == Cost(pytest.approx(10 * cost().seconds), scaled=1)
    assert cost(*same, rounds="1").seconds == pytest.approx(5 * cost().seconds)
    assert cost(*same, result("FedRS", 5.0)) == Cost(5.0, measured=1)


def test_shorter_runs_tell_what_an_entry_costs(paper):
    short = result("FedRS", 5.0, reduced="1 of 2 rounds", rounds=1)
    assert Costs([short]).of_run(paper.SCENES[0], paper.METHODS[1]) == Cost(10.0, measured=1)


def test_a_scene_names_its_network():
    networks = {scene.network for paper in published.PAPERS for scene in published.scenes(paper)}
    models = {path.stem for path in (conf_dir() / "model").glob("*.yaml")}
    assert networks - models == {"sacnn", "linear", "mlp"}  # networks that a paper only names


def test_only_what_is_left_counts(cost, paper, tmp_path):
    (job,) = jobs_of(request(paper.TABLE, settings="digits/mlp", methods="FedRS", out=str(tmp_path)))
    (job.path / "checkpoint").mkdir(parents=True)
    (job.path / "checkpoint" / "latest.json").write_text('{"round": 1}')
    assert Costs([]).of_job(job).seconds == pytest.approx(cost().seconds / 2)


def test_an_entry_costs_all_its_runs(paper):
    scenes = paper.SCENES[:1]
    cost = Costs([result("FedRS", 10.0)]).of_entry(replace(paper.TABLE, methods=paper.METHODS[:2], seeds=3), scenes)
    assert cost == Cost(3 * (10.0 / 2 + 10.0), measured=6)
    assert Costs([]).of_entry(paper.FIGURE, scenes).modelled == 2
    assert Costs([]).of_entry(paper.TABLE, [replace(scenes[0], hours=None)]).unknown == 5
