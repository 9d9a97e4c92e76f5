"""What figures show: the data behind each kind, worked out again."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from fedexp.errors import ConfigError
from fedexp.report.figures import style
from fedexp.report.figures.kinds import OF_RUNS, kind
from fedexp.report.figures.lines import _limits
from fedexp.report.figures.partition import of_counts
from fedexp.report.figures.plane import NAMED, _beaten
from fedexp.report.load import load
from fedexp.report.measure import Metric, shared_title
from tests.unit.report import made
from tests.unit.report.made import COUNTS, ROUNDS, aggregation, personal, write_run

RESULT = made._result
SEEDS = (0, 1, 2)
OPTIONS = {
    "parameter": {"parameter": "algo.rs.alpha", "panels": "local.epochs"},
    "heatmap": {"x": "algo.rs.alpha", "y": "local.epochs"},
}


def drawn(runs, name, **options):
    return kind(name)(runs, options)


# ---------------------------------------------------------------- curves
def test_curves_are_means_with_deviations_over_seeds(runs):
    data = drawn(runs, "curves").data.set_index(["method", "round"])
    values = [100 * aggregation("map", seed, 3) for seed in SEEDS]
    row = data.loc["map", 3]
    assert row["mean"] == pytest.approx(statistics.fmean(values))
    assert row["high"] - row["mean"] == pytest.approx(statistics.stdev(values))
    assert row["x"] == 3


@pytest.mark.parametrize(("x", "at"), [("bytes", 1.5 * 3), ("seconds", 2.0 * 3 + 1)])
def test_curves_over_what_was_sent_and_over_time(runs, x, at):
    data = drawn(runs, "curves", x=x).data.set_index(["method", "round"])
    assert data.loc["map", 3]["x"] == pytest.approx(at)  # megabytes both ways; the mean over seeds


def test_means_over_fewer_seeds_are_told(tmp_path, monkeypatch):
    """The mean of a method rises when its worst run stops having numbers."""
    record = made._record
    monkeypatch.setattr(
        made,
        "_record",
        lambda algo, seed, t, alpha: (
            {**record(algo, seed, t, alpha), "aggregation": {"accuracy": None}}
            if (seed, t) == (0, 3)
            else record(algo, seed, t, alpha)
        ),
    )
    for seed in (0, 1):
        write_run(tmp_path, "fedavg", seed)
    figure = drawn(load(tmp_path), "curves")
    assert figure.data["n"].tolist() == [2, 2, 1, 2]
    assert "Where the run of a seed has no number, the mean is that of the others." in figure.caption
    assert "no number" not in drawn(load(tmp_path), "curves", metric="personalization.accuracy").caption


def test_intervals_are_wider_than_deviations_with_three_seeds(runs):
    std, interval = (drawn(runs, "curves", band=band).data for band in ("std", "interval"))
    ratio = (interval["high"] - interval["mean"]) / (std["high"] - std["mean"])
    assert ratio.to_numpy() == pytest.approx(4.302652729911275 / 3**0.5)


# ---------------------------------------------------------------- the plane
def test_the_front_is_what_no_method_beats_in_both(runs):
    figure = drawn(runs, "plane", x="aggregation.mean", y="aggregation.loss")
    assert list(figure.data[figure.data["front"]]["method"]) == ["map"]  # less loss is better
    clash = drawn(runs, "plane", x="aggregation.mean", y="seconds.train")
    assert list(clash.data[clash.data["front"]]["method"]) == ["map"]
    against = drawn(runs, "plane", x="aggregation.std", y="aggregation.mean")
    assert list(against.data[against.data["front"]]["method"]) == ["map"]


def test_the_runs_of_a_point_may_be_told_apart_by_their_names(runs):
    one, two = (drawn(runs, "plane", x="aggregation.mean", y="aggregation.loss", over=o).data for o in ("run", "seed"))
    assert one.equals(two)


@pytest.mark.parametrize(
    ("more_x", "more_y", "front"),
    [
        (True, True, [(1, 3), (2, 2), (3, 1)]),
        (False, True, [(1, 3)]),
        (True, False, [(3, 1)]),
        (False, False, [(0, 0)]),
    ],
)
def test_the_front_of_points_that_are_each_best_in_something(more_x, more_y, front):
    points = [(more_x, more_y, x, y) for x, y in [(0, 0), (1, 3), (1, 1), (2, 2), (3, 1), (3, 1)]]
    if (more_x, more_y) != (False, False):
        points = points[1:]
    assert list(dict.fromkeys(p[2:] for p in points if not _beaten(p, points))) == front


def test_of_many_methods_those_that_few_others_beat_are_named(tmp_path, monkeypatch):
    names = [f"method{i:02}" for i in range(12)]
    monkeypatch.setattr(made, "BASE", {"fedavg": 0.2, **{name: 0.3 + 0.01 * i for i, name in enumerate(names)}})
    for name in made.BASE:
        write_run(tmp_path, name, 0)
    figure = drawn(load(tmp_path), "plane")
    assert list(figure.data[figure.data["named"]]["method"]) == ["fedavg", *names[-NAMED:]]
    assert list(figure.data[figure.data["front"]]["method"]) == ["method11"]
    assert "Grey: 4 other methods." in figure.caption


def test_a_mean_across_scenes_needs_all_of_them(swept, tmp_path):
    runs = load(swept).where({"algo": ["fedavg"]})
    row = drawn(runs, "plane", across="local.epochs").data.iloc[0]
    assert row["n"] == 2
    assert row["x"] == pytest.approx(100 * statistics.fmean(aggregation("fedavg", s, ROUNDS) for s in (0, 1)))
    for epochs, seeds in ((1, (0, 1)), (5, (0,))):
        for seed in seeds:
            write_run(tmp_path, "map", seed, epochs=epochs)
    assert drawn(load(tmp_path), "plane", across="local.epochs").data.iloc[0]["n"] == 1
    write_run(tmp_path / "apart", "map", 0, epochs=1)
    write_run(tmp_path / "apart", "fedavg", 0, epochs=5)
    with pytest.raises(ConfigError, match=r"No method has both .* in each of epochs=1, epochs=5\. Choose fewer scenes"):
        drawn(load(tmp_path / "apart"), "plane", across="local.epochs")


# ---------------------------------------------------------------- clients
def test_gains_are_clients_of_the_same_seed(runs):
    figure = drawn(runs.where({"algo": ["fedavg", "map"]}), "gains")
    counted = {round(centre): n for centre, n in zip(figure.data["centre"], figure.data["clients"], strict=True)}
    assert counted == {-20: 3, 0: 6, 10: 9}
    assert dict(zip(figure.data["side"], figure.data["clients"], strict=True)) == {
        "loss": 3,
        "about equal": 6,
        "gain": 9,
    }
    assert "map: 9 up, 3 down." in figure.caption
    assert "the grey bar has those of less than 1 points" in figure.caption


def test_clients_are_those_of_their_last_round_if_nothing_was_measured_later(tmp_path):
    for algo in ("fedavg", "map"):
        write_run(tmp_path, algo, 0, final=False)
    figure = drawn(load(tmp_path), "gains")
    assert {round(c): n for c, n in zip(figure.data["centre"], figure.data["clients"], strict=True)} == {
        -20: 1,
        0: 2,
        10: 3,
    }
    assert "when it took part for the last time" in figure.caption


def test_sorted_accuracies_are_quantiles_of_each_run(runs):
    data = drawn(runs, "fairness").data.set_index(["method", "x"])
    worst = [100 * min(personal("map", seed, k) for k in range(6)) for seed in SEEDS]
    middle = [100 * np.quantile([personal("map", seed, k) for k in range(6)], 0.5) for seed in SEEDS]
    assert data.loc["map", 0.0]["mean"] == pytest.approx(statistics.fmean(worst))
    assert data.loc["map", 50.0]["mean"] == pytest.approx(statistics.fmean(middle))


def test_a_distribution_ends_with_all_clients(runs):
    data = drawn(runs, "fairness", form="ecdf").data
    own = data[data["method"] == "map"].sort_values("x")
    assert own["mean"].is_monotonic_increasing
    assert own["mean"].iloc[-1] == 100
    pooled = [100 * personal("map", seed, k) for seed in SEEDS for k in range(6)]
    at = own[own["x"] <= 60.0]["mean"].iloc[-1]
    assert at == pytest.approx(100 * sum(value <= 60.0 for value in pooled) / 18)


def test_classes_of_the_last_round(runs):
    data = drawn(runs, "classes").data.set_index(["method", "x"])
    assert data.loc["map", 1]["mean"] == pytest.approx(
        100 * statistics.fmean(aggregation("map", s, ROUNDS) / 2 for s in SEEDS)
    )
    assert ("map", 2) not in data.index  # never tested
    over_rounds = drawn(runs, "classes", x="round").data.set_index(["method", "round", "class"])
    assert over_rounds.loc["map", 2, 0]["mean"] == pytest.approx(
        100 * statistics.fmean(aggregation("map", s, 2) for s in SEEDS)
    )


# ---------------------------------------------------------------- partitions
def test_ten_classes_have_colours_that_can_be_told_apart(runs):
    spec = drawn(runs, "classes", x="round").spec()
    (scale,) = {str(layer["encoding"]["color"]["scale"]) for layer in spec["spec"]["layer"]}
    assert scale == str({"domain": [0, 1], "range": list(style.CLASSES[:2])})
    assert len(set(style.CLASSES)) == 10


@pytest.mark.parametrize(
    ("order", "clients"), [("none", [0, 1, 2, 3, 4, 5]), ("size", [3, 4, 0, 2, 1, 5]), ("classes", [2, 5, 0, 3, 1, 4])]
)
def test_the_map_has_what_clients_own_in_the_order_that_is_asked_for(order, clients):
    figure = of_counts(COUNTS, order=order)
    assert {(r["client"], r["class"]): r["samples"] for r in figure.data.to_dict("records")} == {
        (k, c): n for k, row in enumerate(COUNTS) for c, n in enumerate(row) if n
    }
    assert f'"domain": {clients}' in str(figure.spec()).replace("'", '"')
    assert "6 clients, 3 classes, 34 training samples" in figure.caption


def test_two_partitions_are_not_drawn_as_one(tmp_path):
    write_run(tmp_path, "fedavg", 0)
    other = write_run(tmp_path, "fedavg", 1, done=False)
    other.write("plan.json", {"partition": {"counts": [[1, 2]]}})
    other.conclude({"status": "finished", "rounds": ROUNDS, "title": "other"})
    with pytest.raises(ConfigError, match=r"These runs have 2 partitions.*they differ in seed"):
        drawn(load(tmp_path), "partition")
    assert drawn(load(tmp_path).where({"seed": ["1"]}), "partition").data["samples"].sum() == 3


# ---------------------------------------------------------------- hyper-parameters
def test_lines_over_a_parameter(swept):
    figure = drawn(
        load(swept).where({"local.epochs": ["5"]}), "parameter", parameter="algo.rs.alpha", metric="aggregation.mean"
    )
    data = figure.data[figure.data["method"] == "fedrs"].set_index("x")
    assert data.loc[0.9]["mean"] == pytest.approx(
        100 * statistics.fmean(aggregation("fedrs", s, ROUNDS, 0.9) for s in (0, 1))
    )
    level = figure.data[figure.data["method"] == "fedavg"]
    assert sorted(level["x"]) == [0.01, 0.9]
    assert level["mean"].nunique() == 1
    assert "Level: fedavg, without alpha." in figure.caption
    assert "'type': 'log'" in str(figure.spec())  # 0.9 is 90 times 0.01


def test_the_axis_of_a_parameter_is_in_words(tmp_path, monkeypatch):
    usual = made._config
    monkeypatch.setattr(made, "_config", lambda *a: {**usual(*a), "partition": {"samples_per_client": 10 * a[3]}})
    for epochs in (1, 5):
        write_run(tmp_path, "fedavg", 0, epochs=epochs)
    spec = drawn(
        load(tmp_path), "parameter", parameter="partition.samples_per_client", metric="aggregation.mean"
    ).spec()
    assert {layer["encoding"]["x"]["title"] for layer in spec["layer"]} == {"samples per client"}


def test_a_value_for_runs_without_the_parameter(swept):
    options = {"parameter": "algo.rs.alpha", "absent": "1", "by": "cohort.fraction", "metric": "aggregation.mean"}
    data = drawn(load(swept).where({"local.epochs": ["5"]}), "parameter", **options).data
    assert list(data["x"]) == [0.01, 0.1, 0.9, 1.0]
    assert data["method"].unique().tolist() == ["fraction=0.5"]


def test_a_map_of_two_parameters(swept):
    data = drawn(load(swept), "heatmap", x="algo.rs.alpha", y="local.epochs").data
    assert len(data) == 6  # runs without alpha are not in it
    cell = data[(data["x"] == "0.1") & (data["y"] == "5")].iloc[0]
    assert cell["mean"] == pytest.approx(100 * statistics.fmean(aggregation("fedrs", s, ROUNDS, 0.1) for s in (0, 1)))


def y_titles(figure):
    """What stands at the vertical axes."""
    spec = figure.chart.to_dict()
    layers = spec.get("layer") or spec["spec"]["layer"]
    return {" ".join(layer["encoding"]["y"]["title"]) for layer in layers}


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("seconds.train,seconds.elapsed", "time (s)"),
        ("bytes.up,bytes.down", "sent (MB)"),
        ("aggregation.mean,personalization.mean", "accuracy (%)"),
        ("seconds.train", "seconds train (s)"),
    ],
)
def test_several_metrics_are_named_by_their_unit(swept, metric, title):
    fedavg = load(swept).where({"algo": ["fedavg"]})
    assert y_titles(drawn(fedavg, "parameter", parameter="local.epochs", metric=metric)) == {title}


def test_what_metrics_without_a_unit_have_in_common_names_them():
    assert shared_title([Metric("aggregation.loss"), Metric("personalization.loss")]) == "loss"
    assert shared_title([Metric("workers"), Metric("rounds")]) == "value"


def test_the_deviation_of_a_round_is_over_clients(tmp_path):
    rundir = write_run(tmp_path, "fedavg", 0, done=False)
    rundir.append_record({"round": ROUNDS + 1, "personalization": {"accuracy": 0.5, "std": 0.1}})
    rundir.conclude({"status": "finished", "rounds": ROUNDS + 1})
    figure = drawn(load(tmp_path), "curves", metric="personalization.std")
    assert y_titles(figure) == {"personalization accuracy, deviation over clients (%)"}


# ---------------------------------------------------------------- looks
@pytest.mark.parametrize("name", [make.__name__ for make in OF_RUNS if make.__name__ != "subsets"])
def test_every_kind_has_a_valid_specification_with_its_data_and_a_caption(name, runs, swept):
    figure = drawn(load(swept) if name in OPTIONS else runs, name, **OPTIONS.get(name, {}))
    spec = figure.spec()  # raises if it is not one
    assert spec["title"]["subtitle"]
    if name != "partition":
        assert "rounds" in figure.caption
        assert "eeds 0, 1" in figure.caption
    assert "'url'" not in str(spec)


def test_methods_keep_their_colours():
    few, many = (
        style.looks(["fedavg", "map", "moon"]),
        style.looks(["ditto", "fedavg", "fedrs", "map", "moon", "scaffold"]),
    )
    assert {few[name] for name in ("fedavg", "map")} == {many[name] for name in ("fedavg", "map")}
    sixteen = style.looks([f"method{i}" for i in range(16)])
    assert len(set(sixteen.values())) == 16
    with pytest.raises(ConfigError, match=r"17 lines cannot be told apart"):
        style.looks([f"method{i}" for i in range(17)])


@pytest.mark.parametrize(("points", "marks"), [([1, 2], [1, 2]), ([1], [1]), ([0, 1, 3], [0, 1, 2, 3])])
def test_nothing_is_marked_between_two_rounds(points, marks):
    """With two rounds Vega would mark 1.5, and with two classes it would write class 1 twice."""
    assert style.whole(points).to_dict() == {"format": "d", "values": marks}
    assert style.whole(range(100)).to_dict() == {"format": "d", "tickMinStep": 1}


def test_a_single_value_is_where_its_axis_says(tmp_path):
    """Around one number Vega has an axis without extent, whose only mark it rounds."""
    write_run(tmp_path, "fedavg", 0)
    shown = drawn(load(tmp_path), "curves").data
    assert _limits(shown) == {}
    assert _limits(shown[:1]) == {"domainMin": shown["mean"][0] - 1, "domainMax": shown["mean"][0] + 1}


def test_letters_have_eight_points_in_a_column():
    sizes = [
        v
        for group in style.configuration().values()
        if isinstance(group, dict)
        for k, v in group.items()
        if "FontSize" in k
    ]
    assert len(sizes) > 5
    assert min(sizes) * 72 / 96 >= 8


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("curves", {"metrics": "x"}, "metrics: curves has no such option. Did you mean 'metric'"),
        ("curves", {"metric": "aggregation.accurac"}, "Did you mean 'aggregation.accuracy'"),
        ("curves", {"by": "alg"}, "alg: no run has such a setting. Did you mean 'algo'"),
        ("curves", {"x": "rounds"}, "x=rounds: this must be round or bytes or seconds"),
        ("gains", {"reference": "fedav"}, "reference=fedav: there is no run of it. Did you mean 'fedavg'"),
        ("parameter", {}, "parameter needs parameter=SETTING. The runs differ in algo, seed."),
        ("parameter", {"parameter": "local.epochs"}, "fewer than two numbers among the finished runs"),
        ("heatmap", {"x": "seed"}, "heatmap needs y=SETTING"),
        ("classes", {"goal": "both"}, "goal=both"),
    ],
)
def test_wrong_requests_say_what_to_do(runs, name, options, words):
    with pytest.raises(ConfigError) as error:
        drawn(runs, name, **options)
    assert words in str(error.value)


def test_two_seeds_are_too_few_for_an_interval(swept):
    runs = load(swept).where({"algo": ["fedavg"], "local.epochs": ["5"]})
    assert drawn(runs, "curves", band="interval").caption == "Mean over seeds 0, 1, too few for an interval; 4 rounds."


def test_runs_without_personal_models_have_lines_of_the_other_goal(swept, tmp_path, monkeypatch):
    monkeypatch.setattr(made, "_result", lambda *a, **k: {**RESULT(*a, **k), "personalization": {}})
    for alpha in (0.1, 0.9):
        write_run(tmp_path, "fedrs", 0, alpha=alpha)
    figure = drawn(load(tmp_path), "parameter", parameter="algo.rs.alpha")
    assert set(figure.data["panel"]) == {""}
    assert figure.data["mean"].tolist() == pytest.approx([100 * aggregation("fedrs", 0, ROUNDS, a) for a in (0.1, 0.9)])


def test_an_unknown_kind_gets_the_nearest():
    with pytest.raises(ConfigError, match=r"Did you mean 'curves'"):
        kind("curve")
