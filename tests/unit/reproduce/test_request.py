"""What is asked for, in the words of the command line."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from fedexp.errors import ConfigError
from fedexp.reproduce.request import request
from tests.unit.reproduce.fakes import result

pytestmark = pytest.mark.usefixtures("paper")


def names(parts):
    return [part.name for part in parts]


def test_without_more_it_is_the_papers_scenes_and_seeds_and_all_that_can_be_run(paper):
    asked = request(replace(paper.TABLE, seeds=2))
    assert names(asked.scenes) == ["digits/mlp", "digits/again", "digits/nowhere"]
    assert names(asked.methods) == ["FedAvg", "FedRS", "slow", "crowded", "wild"]
    assert (asked.seeds, asked.rounds, asked.tune, asked.out) == ((0, 1), None, "none", Path("multirun"))


def test_names_patterns_and_experiments_narrow_it_in_the_entrys_order(paper):
    asked = request(paper.TABLE, settings="map/fmnist_lenet,digits/m*", methods="FedRS,FedAvg", seeds="2,0,2")
    assert names(asked.scenes) == ["digits/mlp", "digits/again"]
    assert names(asked.methods) == ["FedAvg", "FedRS"]
    assert asked.seeds == (2, 0)
    assert names(request(paper.TABLE, settings="stand-in/digits/mlp").scenes) == ["stand-in/digits/mlp"]
    assert names(request(paper.TABLE, stand_ins=True).scenes) == ["stand-in/digits/mlp"]


def test_what_is_shown_has_a_mean_only_with_all_its_scenes(paper):
    whole = request(paper.TABLE, methods="FedAvg").shown
    assert {n.setting for n in whole.numbers} == {"digits/mlp", "digits/again", "digits/nowhere", "avg"}
    part = request(paper.TABLE, settings="digits/mlp", methods="FedAvg").shown
    assert [n.setting for n in part.numbers] == ["digits/mlp"]
    assert (part.scenes, part.stand_ins, part.rows, part.aggregates) == (("digits/mlp",), (), ("FedAvg",), ())


def test_what_cannot_be_run_is_shown_beside_all_that_can(paper):
    assert request(paper.TABLE, settings="digits/mlp").shown.rows == paper.TABLE.rows
    assert "best baseline" not in request(paper.TABLE, methods="FedAvg,FedRS").shown.rows


def test_another_reading_is_run_if_it_is_named_and_shown_with_its_method(paper):
    asked = request(paper.TABLE, methods="FedAvg samples")
    assert names(asked.methods) == ["FedAvg samples"]
    assert asked.command == "python -m fedexp.reproduce tiny/table1 'methods=FedAvg samples'"
    assert asked.shown.rows == ("FedAvg",)
    assert {n.method for n in asked.shown.numbers} == {"FedAvg"}
    of_reading, of_method = (result(50.0, setting="digits/mlp", method=name) for name in ("FedAvg samples", "FedAvg"))
    for methods, reading, method in [("FedAvg samples", 1, 1), ("FedAvg", 1, 1), ("FedRS", 0, 0), ("", 1, 1)]:
        wanted = request(paper.TABLE, methods=methods)
        assert (wanted.includes(of_reading), wanted.includes(of_method)) == (reading, method)
    with pytest.raises(ConfigError, match="no method of this name"):
        request(paper.OTHER, methods="FedAvg samples")  # there is no number that it could be compared with


def test_the_command_asks_for_the_same(paper):
    options = {
        "settings": "digits/mlp", "methods": "FedAvg", "seeds": "1", "rounds": "3", "tune": "paper", "out": "a b",
    }  # fmt: skip
    asked = request(paper.TABLE, **options, overrides=["loop=fabric", "force=true", "hydra/launcher=joblib"])
    _, _, program, entry, *words = shlex.split(asked.command)
    assert (program, entry) == ("fedexp.reproduce", "tiny/table1")
    given = dict(word.split("=", 1) for word in words)
    assert given == {**options, "loop": "fabric", "hydra/launcher": "joblib"}
    assert request(paper.TABLE).command == "python -m fedexp.reproduce tiny/table1"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"settings": "digits/mpl"},
            "settings=digits/mpl: tiny/table1 has no setting of this name. Did you mean 'digits",
        ),
        ({"methods": "FedAvgg"}, "methods=FedAvgg: tiny/table1 has no method of this name. Did you mean 'FedAvg'"),
        ({"methods": "best baseline"}, "is not a method that can be run"),
        ({"seeds": "0,x"}, "seeds=x: this must be a whole number, 0 or more"),
        ({"rounds": "0"}, "rounds=0: this must be a whole number, 1 or more"),
        ({"tune": "papr"}, "tune=papr: this is not known. Did you mean 'paper'"),
        ({"overrides": ["algo=map"]}, "algo: this is set by the table that is asked for; methods="),
        ({"overrides": ["+seed=1"]}, "seed: this is set by the table that is asked for; seeds=0,1,2"),
    ],
)
def test_wrong_words_are_answered_in_a_sentence(paper, wrong, words):
    with pytest.raises(ConfigError) as error:
        request(paper.TABLE, **wrong)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_entry_without_stand_ins_says_so(paper):
    with pytest.raises(ConfigError, match="has no stand-in scenes"):
        request(replace(paper.TABLE, stand_ins=()), stand_ins=True)
