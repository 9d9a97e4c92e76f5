"""The jobs that the arguments of a sweep stand for."""

from __future__ import annotations

import pytest

from fedexp.config.sources import Sources
from fedexp.errors import ConfigError
from fedexp.sweep import expand
from fedexp.sweep.expand import combinations, parsed

SOURCES = Sources()


def test_all_combinations_in_the_order_of_the_arguments():
    jobs = combinations(parsed(["rounds=1,2", "algo=glob(ditto*)", "out=here", "seed=range(3,5)"]), SOURCES)
    assert jobs[0] == ["rounds=1", "algo=ditto", "out=here", "seed=3"]
    assert jobs == [
        [f"rounds={r}", f"algo={a}", "out=here", f"seed={s}"]
        for r in (1, 2)
        for a in ("ditto", "ditto_rs")
        for s in (3, 4)
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["algo=glob(none*)"], "sweeps over nothing"),
        (["seed=range(0,1e9)"], "too many values"),
        (["seed=range(0,3,0)"], "a step other than 0"),
        (["seed=1,2,3", "rounds=1,2"], "The sweep has 6 jobs; 5 are the most"),
    ],
)
def test_no_jobs_and_too_many_are_refused(lines, words, monkeypatch):
    monkeypatch.setattr(expand, "MOST_JOBS", 5)
    with pytest.raises(ConfigError, match=words):
        combinations(parsed(lines), SOURCES)
