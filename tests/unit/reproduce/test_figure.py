"""The papers' figures from our runs: what is said of them in the yaml can be drawn, and only their methods are."""

from __future__ import annotations

import pytest

from fedexp.errors import ConfigError
from fedexp.report.figures.kinds import KINDS, OF_PROBES
from fedexp.report.load import load
from fedexp.reproduce import published
from fedexp.reproduce.figure import _is_of, _made, draw, figure_of
from tests.unit.report.made import write_run
from tests.unit.report.test_probe_figures import observed_by

pytest.importorskip("altair", reason='needs pip install "fedexp[report]"')
FIGURES = {name: dict(entry.figure) for name, entry in published.entries().items() if entry.figure}


@pytest.fixture
def runs(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "fedavg", seed)
        write_run(tmp_path, "map", seed)
        for alpha in (0.1, 0.5):
            write_run(tmp_path, "fedrs", seed, alpha=alpha)
        write_run(tmp_path, "fedrs", seed, alpha=0.77)  # of no paper
    return load(tmp_path)


def test_the_figures_that_matter_are_told():
    assert {"map/fig9", "map/fig10", "map/fig11", "fedrs/fig5", "fedrs/fig7", "fedgela/fig4"} <= FIGURES.keys()


def test_every_figure_that_runs_can_give_is_told():
    wanted = {
        name for name, entry in published.entries().items() if entry.kind in ("train", "probe") and "/fig" in name
    }
    assert wanted - FIGURES.keys() == set()
    assert "fedmr/table7" in FIGURES  # a table of what a probe sees


@pytest.mark.parametrize("name", FIGURES)
def test_what_is_told_is_a_kind_with_options_that_it_has(name):
    told = FIGURES[name]
    for own in (told, told["below"]) if "below" in told else (told,):
        options = {key: value for key, value in own.items() if key not in ("kind", "below")}
        known = KINDS[own["kind"]].options
        assert options.keys() <= known.keys()
        assert [key for key, value in known.items() if value.default is value.empty and key not in options] == []


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_probes_are_of_those_that_their_runs_have(name):
    """``observed`` and ``zigzag`` name numbers; the other kinds are named as their probe is, or name it."""
    told, entry = FIGURES[name], published.entry(name)
    named = {number.partition(".")[0] for number in told.get("numbers", ())}
    kinds = {make.__name__ for make in OF_PROBES} - {"observed"}
    named |= {told.get("probe", told["kind"])} & {"sphere", *kinds}
    assert named <= set(entry.probes)


def test_one_figure_stands_below_another(tmp_path):
    for algo in ("fedavg", "map"):
        write_run(tmp_path, algo, 0, observe=observed_by(algo, 0))
    runs = load(tmp_path)
    with pytest.raises(ConfigError, match=r"round=5: fedavg was observed in rounds 1, 2, 3, 4"):
        figure_of("map/fig8", runs)
    figure = figure_of("fedrs/fig12", runs.where({"algo": ["fedavg"]}))
    assert figure.title.startswith("fedrs/fig12: Two clients")
    made = _made({"kind": "proxies", "below": {"kind": "zigzag", "by": ["algo", "no.such"]}}, runs)
    assert len(made.spec()["vconcat"]) == 2


def test_runs_of_other_methods_are_left_out(runs):
    data = figure_of("fedrs/fig5", runs).data
    assert set(data["method"]) == {"fedavg", "fedrs alpha=0.1", "fedrs alpha=0.5"}


def test_a_method_without_a_part_is_told_by_null():
    assert _is_of({"algo": "moon", "algo.moon.projection": None}, ("algo=moon", "algo.moon.projection=null"))
    assert not _is_of({"algo": "moon", "algo.moon.projection": 8}, ("algo=moon", "algo.moon.projection=null"))


def test_a_method_may_have_other_values_in_some_scenes():
    (moon,) = [m for m in published.entry("fedrema/fig4").methods if m.name == "MOON"]
    assert moon.overrides_in("cifar10/alexnet/s0.2/n600") in moon.all_overrides
    assert _is_of({"algo": "moon", "algo.moon.weight": 5}, ("algo=moon", "algo.moon.weight=1", "algo.moon.weight=5"))


def test_a_figure_says_whose_runs_it_is_of(runs):
    figure = figure_of("map/fig10", runs)
    assert figure.title == "map/fig10: Which clients gain from MAP"
    assert figure.caption.startswith("Our runs: digits with mlpnet. Seeds 0, 1; 4 rounds.")
    assert figure.data["clients"].sum() == 2 * 6


def test_fedavg_stands_at_alpha_one(runs):
    data = figure_of("fedrs/fig7", runs).data
    assert list(data["x"]) == [0.1, 0.5, 1.0]


def test_no_run_of_the_methods_is_said(runs):
    with pytest.raises(ConfigError, match=r"fedrema/fig4: no run is of its methods, Local, FedAvg"):
        figure_of("fedrema/fig4", runs.where({"algo": ["fedrs"]}))
    with pytest.raises(ConfigError, match=r"is no figure that is drawn from runs"):
        figure_of("map/table1", runs)


def test_a_figure_is_drawn_from_the_runs_of_its_entry(runs, tmp_path):
    unfinished = write_run(tmp_path / "more", "map", 3, done=False)
    made = draw("map/fig9", [*(run.path for run in runs.found), unfinished.path], tmp_path / "fig9.svg")
    assert (tmp_path / "fig9.svg").read_text().startswith("<svg")
    assert made.data.set_index("method").loc["map", "n"] == 2
    with pytest.raises(ConfigError, match=r"none of its runs is finished"):
        draw("map/fig9", [unfinished.path], tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()
