"""Committed results and those of this machine's runs, side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedexp
from fedexp.reproduce.jobs import checked, jobs_of
from fedexp.reproduce.local import NOTED, note, noted, on_file, our_results
from fedexp.reproduce.request import request
from fedexp.reproduce.results import Result, results_file, write_results


def result(value: float, *, rounds: int = 2, reduced: str = "", method: str = "FedAvg", seed: int = 0) -> Result:
    return Result(
        "tiny/table1", "digits/mlp", method, "aggregation", seed, "", value, "done", reduced, rounds, "last round",
        "run", "command", 1.0, "partition", "versions",
    )  # fmt: skip


@pytest.fixture
def kept(tmp_path):
    """Keeps a result among the committed ones or among those that runs have left."""

    def keep(*results: Result, noted: bool = False) -> None:
        file = results_file(tmp_path / "out" / NOTED if noted else tmp_path, "tiny/table1")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_results(file, results)

    return keep


@pytest.mark.parametrize(
    ("committed", "local", "shown"),
    [
        (result(1.0), result(2.0), 2.0),
        (result(1.0), result(2.0, rounds=1, reduced="1 of 2 rounds"), 1.0),
        (result(1.0, rounds=20, reduced="20 of 90 rounds"), result(2.0, rounds=3, reduced="3 of 90 rounds"), 1.0),
        (result(1.0, rounds=3, reduced="3 of 90 rounds"), result(2.0, rounds=20, reduced="20 of 90 rounds"), 2.0),
    ],
)
def test_a_run_of_this_machine_wins_unless_it_has_less_to_say(kept, tmp_path, committed, local, shown):
    kept(committed)
    kept(local, noted=True)
    assert [r.value for r in on_file("tiny/table1", tmp_path, tmp_path / "out")] == [shown]


def test_the_results_of_an_entry_are_those_of_the_seeds_and_the_length_that_are_asked_for(kept, paper, tmp_path):
    kept(result(1.0), result(2.0, seed=1), result(3.0, method="FedRS"))

    def values(*fresh: Result, **words: str) -> list[float | None]:
        asked = request(paper.TABLE, **{"methods": "FedAvg", "out": str(tmp_path / "out"), **words})
        return [r.value for r in our_results(asked, Path(tmp_path), fresh)]

    assert values() == [1.0, 2.0, 3.0]  # other seeds too, as none is named, and methods that gains may be over
    assert values(seeds="1") == [2.0]
    assert values(result(9.0)) == [9.0, 2.0, 3.0]
    assert values(rounds="1") == []  # the committed ones are not of one round
    assert values(overrides=["local.epochs=9"]) == []
    assert values(overrides=["loop=fabric"]) == [1.0, 2.0, 3.0]
    assert values(rounds="2") == []  # a command leaves rounds out where they are the paper's, see below


def test_rounds_of_the_paper_are_not_fewer(paper):
    asked = [checked(request(paper.TABLE, settings="digits/mlp", methods="FedAvg", rounds=n)) for n in ("1", "2")]
    assert [one.rounds for one in asked] == [1, None]


def test_runs_that_a_figure_varies_are_not_filed_under_tables(paper, tmp_path):
    jobs = jobs_of(request(paper.FIGURE, settings="digits/mlp", out=str(tmp_path)))
    for job in jobs[:1]:
        fedexp.run(job.overrides)
    note(jobs, tmp_path)
    assert [r.tuning for r in noted(tmp_path, "tiny/fig1")] == ["algo.rs.alpha=0.1"]
    assert noted(tmp_path, "tiny/table2") == noted(tmp_path, "tiny/table1") == []
