"""The papers' numbers as data: complete, numeric, known by name, and in agreement with each other or listed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from statistics import mean

import pytest
import yaml

from fedexp.config.compose import composing
from fedexp.config.sources import conf_dir
from fedexp.errors import ConfigError
from fedexp.reproduce.entry import REPRODUCIBLE, Entry
from fedexp.reproduce.measure import COMPUTED, Cell
from fedexp.reproduce.published import PAPERS, entries, entry, method, methods, scene, scenes

TABLES = {"map": 3, "fedrs": 5, "fedrema": 5, "fedmr": 8, "fedgela": 6}
FIGURES = {"map": 12, "fedrs": 13, "fedrema": 4, "fedmr": 4, "fedgela": 5}
ALL = list(entries().values())
TABLE_ENTRIES = [e for e in ALL if e.numbers]
ACCURACIES = ("aggregation", "personalization", "GA", "PA")
NOT_SELECTED = {"result", "count", "rounds to FedAvg's best", *COMPUTED}
by_id = pytest.mark.parametrize("table", TABLE_ENTRIES, ids=lambda e: e.id)


def cells(table: Entry) -> dict[Cell, float]:
    return {n.cell: n.value for n in table.numbers}


def mean_over(known: dict[Cell, float], members: tuple[str, ...], name: str, metric: str) -> float | None:
    """The mean over scenes that a table prints as one number; None if a scene is missing."""
    values = [known.get((scene_, name, metric)) for scene_ in members]
    return None if None in values or not values else mean(values)


def siblings(table: Entry) -> list[Entry]:
    return [e for e in TABLE_ENTRIES if e.paper == table.paper and e.id != table.id]


def listed(table: Entry, unlike: set[str]) -> dict[Cell, float]:
    return {m.cell: m.value for m in table.misprints if m.unlike in unlike}


# ---------------------------------------------------------------- what is there
def test_every_table_and_figure_is_an_entry():
    expected = [f"{p}/table{i}" for p, n in TABLES.items() for i in range(1, n + 1)]
    expected += [f"{p}/fig{i}" for p, n in FIGURES.items() for i in range(1, n + 1)]
    assert sorted(entries()) == sorted(expected)
    assert len(ALL) == 65
    assert {e.id for e in TABLE_ENTRIES} == {i for i in entries() if "/table" in i}


def test_no_number_is_lost():
    assert sum(len(e.numbers) for e in ALL) == 1738
    assert Counter(e.paper for e in ALL for _ in e.numbers) == {
        "map": 418, "fedrs": 167, "fedrema": 101, "fedmr": 470, "fedgela": 582
    }  # fmt: skip


@by_id
def test_a_table_has_no_hole_and_no_cell_twice(table):
    known = Counter(n.cell for n in table.numbers)
    assert max(known.values()) == 1
    for metric in {m for _, _, m in known}:
        rows = {s for s, _, m in known if m == metric}
        columns = {n for _, n, m in known if m == metric}
        assert sum(m == metric for _, _, m in known) == len(rows) * len(columns)


@by_id
def test_every_number_is_one(table):
    for number in table.numbers:
        assert number.value >= 0 or "gap" in number.metric or "gain" in number.metric
        assert number.spread is None or (number.spread >= 0 and (table.spread or "±" in " ".join(table.notes)))
        if number.metric in ACCURACIES or number.metric.startswith("accuracy"):
            assert 1 <= number.value <= 100


@by_id
def test_names_in_a_table_are_known(table):
    means = dict(table.aggregates)
    for number in table.numbers:
        assert number.entry == table.id
        assert number.method in (*table.rows, "")
        if table.kind in ("train", "probe"):
            assert number.setting in (*table.scenes, *means)
            assert number.metric in {m.metric for m in table.measures}
    for name in means:
        assert table.members(name)


@pytest.mark.parametrize("one", ALL, ids=lambda e: e.id)
def test_names_in_an_entry_are_known(one):
    assert one.kind in (*REPRODUCIBLE, "text")
    assert one.title
    for name in (*one.scenes, *one.stand_ins):
        assert scene(one.paper, name).name == name
    assert all(method(one.paper, row.name) is row for row in one.methods)
    assert all(other in entries() for other in one.depends_on)
    metrics = {measure.metric for measure in one.measures}
    assert all(name in one.scenes and metric in metrics for name, metric in one.lacks)
    assert one.spread in (None, "seeds", "rounds", "settings")
    if one.kind == "train":
        assert one.measures
        assert one.scenes or one.depends_on
        assert one.methods
    if one.tuned:
        assert any(method.grid for method in one.methods)


def test_every_scene_and_method_is_used():
    for paper in PAPERS:
        mine = [e for e in ALL if e.paper == paper]
        assert {s.name for s in scenes(paper)} == {s for e in mine for s in (*e.scenes, *e.stand_ins)}
        assert set(methods(paper)) == {m for e in mine for m in e.methods}


def test_stand_ins_are_not_among_the_papers_scenes():
    for e in ALL:
        assert not set(e.scenes) & set(e.stand_ins)
    marked = {s.name for paper in PAPERS for s in scenes(paper) if s.stand_in}
    assert all(scene(p, n).instead for p in PAPERS for n in marked if n in {s.name for s in scenes(p)})
    assert {n for n in marked if not n.startswith("stand-in/")} == {"sa/sacnn"}


def test_rules_of_the_papers():
    def rule(name: str, metric: str) -> tuple[str, str]:
        measure = next(m for m in entry(name).measures if m.metric == metric)
        return measure.of, measure.rule

    assert rule("map/table1", "aggregation") == ("aggregation.accuracy", "last round")
    assert rule("map/table2", "personalization") == ("personalization.accuracy", "last round")
    assert rule("fedrs/table1", "accuracy") == ("aggregation.accuracy", "mean of the last 50 rounds")
    assert rule("fedrema/table1", "accuracy") == ("personalization.accuracy", "best round")
    assert rule("fedrema/table3", "accuracy_final") == ("personalization.accuracy", "mean of the last 5 rounds")
    assert rule("fedrema/table3", "ccp_rounds") == ("numbers.heads.rounds", "last round")
    assert rule("fedmr/table1", "GA") == ("aggregation.accuracy", "best round")
    assert rule("fedgela/table2", "PA") == ("personalization.PA", "result")
    selected = {m.rule for e in ALL for m in e.measures} - NOT_SELECTED
    windows = {"mean of the last 50 rounds", "mean of the last 5 rounds"}
    assert selected == {"first round", "round 5", "last round", "best round", *windows}


def test_maps_grid_is_the_printed_one():
    grid = method("map", "MAP").grid
    assert len(grid) == len(set(grid)) == 20
    assert ("algo.rs.alpha=0.9", "algo.hpm.transfer=kd", "algo.hpm.weight=0.01") in grid
    assert [m.name for paper in PAPERS for m in methods(paper) if m.grid_printed] == ["MAP"]


@pytest.mark.parametrize(("preset", "paper", "name"), [("map", "map", "MAP"), ("energy", "fedgela", "FedGELA")])
def test_a_grid_is_that_of_the_sweep_for_it(preset, paper, name):
    file = conf_dir() / "sweep" / f"{preset}.yaml"
    axes = yaml.safe_load(file.read_text(encoding="utf-8"))["hydra"]["sweeper"]["params"]
    swept = product(*([(key, value) for value in values.split(",")] for key, values in axes.items()))
    with composing() as made:
        expected = [made([f"algo={paper}", *map("=".join, job)])["algo"] for job in swept]
        assert [made([f"algo={paper}", *job])["algo"] for job in method(paper, name).grid] == expected


def test_a_method_may_have_other_values_in_some_scenes():
    moon = method("fedrema", "MOON")
    assert moon.overrides_in("mnist/cnn/s0.2/n600") == ("algo=moon", "algo.moon.weight=1")
    assert moon.overrides_in("cifar10/alexnet/s0.2/n600")[-1] == "algo.moon.weight=5"
    with pytest.raises(ConfigError, match="best baseline is not a method that can be run"):
        method("fedgela", "best baseline").overrides_in("cifar10/resnet18_fc/P10C2")


def test_another_reading_of_a_method_has_more_overrides_and_says_what_they_mean():
    found = entry("map/table1").readings
    assert {m.name for m in found} > {"FedNova samples", "FedNova shrink", "MAP one_stage"}
    assert {m.name for m in entry("map/table2").readings} - {m.name for m in found} == {
        "FedProto head",
        "FedProto samples",
        "FedRep long_body",
    }
    for other in found:
        read = method("map", other.reading_of)
        assert other.overrides[: len(read.overrides)] == read.overrides != other.overrides
        assert other.name.startswith(f"{read.name} ")
        assert other.row == read.name
        assert other.stated != read.stated
        assert not other.grid
        assert other not in methods("map")
    assert entry("map/fig11").readings == ()  # without numbers there is nothing to compare with


def test_how_many_samples_an_accuracy_is_over():
    assert entry("map/table1").tested("fmnist/mlpnet", "aggregation") == 10_000
    assert entry("map/table2").tested("fmnist/mlpnet", "personalization") == 20 * 120
    table = entry("map/table3")
    assert [table.tested("fmnist/lenet/dir0.5", m) for m in ("aggregation", "personalization")] == [10_000, 2_400]
    assert entry("fedgela/table2").tested("svhn/resnet18_fc/full/iid", "PA") == 26_032
    assert entry("fedmr/table1").tested("fmnist/avg", "GA") is None
    assert entry("fedmr/table1").tested("fmnist/resnet18/P5C2", "gain_over_best") == 10_000
    assert entry("fedrs/table4").tested("tfcnn", "parameters") is None
    assert entry("fedrema/table2").tested("cifar10/alexnet/s0.2/n100", "accuracy") == 20 * 25


def test_notes_say_what_is_assumed_and_what_contradicts():
    notes = entry("fedmr/table1").notes
    assert any(n.startswith("Not stated: clients of the iid column. Here: 10.") for n in notes)
    assert any("83.45" in n for n in notes)
    assert any(n.startswith("Stand-ins: ") for n in notes)


# ---------------------------------------------------------------- what can be recomputed
@by_id
def test_printed_means_are_means_or_listed(table):
    off: dict[Cell, float] = {}
    for number in table.numbers:
        members = table.members(number.setting)
        if not members or number.metric not in ACCURACIES:
            continue
        candidates = (mean_over(cells(e), members, number.method, number.metric) for e in (table, *siblings(table)))
        exact = next((value for value in candidates if value is not None), None)
        if exact is not None and abs(exact - number.value) > number.rounding + 1e-9:
            off[number.cell] = exact
    assert listed(table, {"mean"}) == pytest.approx(off, abs=6e-4)


@by_id
def test_printed_gains_follow_from_the_cells_or_are_listed(table):
    off: dict[Cell, float] = {}
    computed = {m.metric: m for m in table.measures if m.computed}
    for number in (n for n in table.numbers if n.metric in computed):
        exact = computed[number.metric].computed_from(cells(table), number.setting, number.method)
        assert exact is not None
        if abs(exact - number.value) > number.rounding + 1e-9:
            off[number.cell] = exact
    assert listed(table, {"gain"}) == pytest.approx(off, abs=6e-4)


@by_id
def test_a_number_that_is_printed_twice_is_the_same_or_listed(table):
    for other in siblings(table):
        if other.id < table.id:
            there = cells(other)
            off = {c: there[c] for c, v in cells(table).items() if c[2] in ACCURACIES and there.get(c, v) != v}
            assert listed(table, {other.id.partition("/")[2]}) == off


def test_so_much_was_recomputed():
    """114 means, 102 gains, gaps and speed-ups, as the papers print them; an empty loop would pass too."""
    gains = sum(n.metric in {m.metric for m in e.measures if m.computed} for e in ALL for n in e.numbers)
    means = sum(
        any(mean_over(cells(t), e.members(n.setting), n.method, n.metric) is not None for t in (e, *siblings(e)))
        for e in TABLE_ENTRIES for n in e.numbers if n.metric in ACCURACIES and e.members(n.setting)
    )  # fmt: skip
    assert (means, gains) == (114, 102)


def test_a_changed_number_is_found():
    table = entry("fedmr/table1")
    number = next(n for n in table.numbers if n.cell == ("cifar10/avg", "FedProx", "GA"))
    changed = replace(number, printed=f"{number.value + 0.02:.2f}")
    broken = replace(table, numbers=tuple(changed if n is number else n for n in table.numbers))
    with pytest.raises(AssertionError):
        test_printed_means_are_means_or_listed(broken)


def test_a_gain_is_not_computed_from_cells_that_are_missing():
    gain = next(m for m in entry("fedmr/table1").measures if m.metric == "gain_over_best")
    own = {("fmnist/resnet18/iid", "FedMR", "GA"): 90.0}
    assert gain.computed_from(own, "fmnist/resnet18/iid", "FedMR") is None
    others = {("fmnist/resnet18/iid", name, "GA"): value for name, value in {"FedAvg": 88.5, "MOON": 89.0}.items()}
    assert gain.computed_from(own | others, "fmnist/resnet18/iid", "FedMR") == 1.0


# ---------------------------------------------------------------- names
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entry("map/tabel1"), "map/tabel1: there is no such table or figure. Did you mean 'map/table1'"),
        (lambda: entry("mpa/table1"), "mpa/table1: there is no such table or figure. Did you mean 'map/table1'"),
        (lambda: scene("map", "fmnist/mlp"), "map: there is no setting fmnist/mlp. Did you mean 'fmnist/mlpnet'"),
        (lambda: scene("fedrs2", "x"), "fedrs2: there is no such paper. Did you mean 'fedrs'"),
        (lambda: method("map", "ScaMap"), "map: there is no method ScaMap. Did you mean 'ScaMAP'"),
    ],
)
def test_a_wrong_name_gets_the_nearest(call, message):
    with pytest.raises(ConfigError) as error:
        call()
    assert str(error.value).startswith(message)


def test_a_scene_is_also_known_by_its_experiment():
    assert scene("map", "map/fmnist_mlpnet") is scene("map", "fmnist_mlpnet") is scene("map", "fmnist/mlpnet")


def test_reading_does_not_import_torch():
    code = "import sys; from fedexp.reproduce.published import entries; entries(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
