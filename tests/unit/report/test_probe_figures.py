"""Figures of what probes have seen: their data, worked out again from rows and arrays that a test has made."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import safetensors.numpy

from fedexp.errors import ConfigError, DamagedError
from fedexp.report.figures.kinds import OF_PROBES, kind
from fedexp.report.load import load
from fedexp.runs.array_files import observed_arrays
from tests.unit.report.made import BASE, COUNTS, ROUNDS, before, personal, write_run

SEEDS = (0, 1)
TWO = (0, 3)  # clients that are observed: the first owns classes 0 and 2, the other class 0 alone
VECTORS = np.array([[2.0, 0.0], [0.0, 0.5], [-1.0, -1.0]], dtype=np.float32)
FEATURES = np.array([[4.0, 0.0], [3.0, 1.0], [0.0, 2.0], [-2.0, -2.0]], dtype=np.float32)
LABELS = np.array([0, 0, 1, 2])
SPECTRA = {0: np.array([[3.0, 1.0], [5.0, 3.0]]), 3: np.array([[4.0, 2.0]])}
MATRIX = np.array([[1.0, 0.2, 0.9], [0.2, 1.0, 0.3], [0.9, 0.3, 1.0]])
OPTIONS = {"observed": {"numbers": "classifier.trained.norm_missing"}}


def norm(algo, seed, round_, client):
    return BASE[algo] + seed + 10 * round_ + client


def observed_by(algo, seed):
    """Writes what probes would have seen."""

    def write(rundir):
        for t in range(1, ROUNDS + 1):
            rundir.append_observations(t, list(rows(algo, seed, t)), safetensors.numpy.save(arrays(seed, t)))

    return write


def rows(algo, seed, t):
    if t == 1:
        yield {"round": 1, "client": None, "probe": "classifier", "name": "settings", "values": {"every": 1}}
        for probe, project in (("proxies", "none"), ("sphere", "sphere")):
            yield {"round": 1, "client": None, "probe": probe, "name": "settings", "values": {"project": project}}
    for k in TWO:
        who = {"round": t, "client": k}
        for name, less in (("received", 1.0), ("trained", 0.0)):
            values = {"norm_missing": norm(algo, seed, t, k) - less, "norm_observed": 2.0, "norms": [1.0, 2.0]}
            yield {**who, "probe": "classifier", "name": name, "values": values}
        for epoch in (0, 1):
            values = {"distance_mm": 10.0 * t + epoch, "distance_oo": 7.0}
            yield {**who, "probe": "classifier", "name": "epoch", "epoch": epoch, "phase": "local", "values": values}
        for step in (0, 1, 2):
            values = {"pulling": 1.0 * step, "direct": 2.0, "indirect": float(t)}
            yield {**who, "probe": "forces", "name": "step", "step": step, "phase": "local", "values": values}
        yield {**who, "probe": "class_means", "name": "trained", "values": {"angle": 80.0 + k, "etf": 120.0 + k}}
        yield {**who, "probe": "spectrum", "name": "trained", "values": {"variance": 1.0 + k + seed}}
        cost = {"seconds": 2.0 + (algo == "map") * 1.0, "stored": 1e6 * (1 + (algo == "map"))}
        yield {**who, "probe": "cost", "name": "round", "values": cost}
        for probe in ("proxies", "sphere"):
            yield {**who, "probe": probe, "name": "trained", "values": {"spread": 1.0}}
    server = {"round": t, "client": None}
    yield {
        **server,
        "probe": "classifier",
        "name": "aggregated",
        "values": {"norm_missing": -5.0, "norm_observed": 0.0},
    }
    yield {**server, "probe": "relativity", "name": "matrix", "values": {"contrast": 0.5 / t}}


def arrays(seed, t):
    """Vectors are longer with other seeds, and eigenvalues larger in earlier rounds."""
    found = {}
    plane = {"features": FEATURES, "labels": LABELS, "vectors": (1 + seed) * VECTORS}
    for k in TWO:
        for model in ("received", "trained"):
            found |= {f"proxies/{k}/{model}/{key}": value for key, value in plane.items()}
        found |= {f"sphere/{k}/trained/{key}": value for key, value in plane.items()}
        found[f"spectrum/{k}/trained/eigenvalues"] = SPECTRA[k] + ROUNDS - t
    found |= {f"proxies/server/aggregated/{key}": value for key, value in plane.items()}
    return found | {"relativity/server/matrix": MATRIX, "relativity/server/clients": np.array([0, 1, 3])}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    root = tmp_path_factory.mktemp("watched")
    for algo in ("fedavg", "map"):
        for seed in SEEDS:
            write_run(root, algo, seed, epochs=2, observe=observed_by(algo, seed))
    return load(root)


def drawn(runs, name, **options):
    return kind(name)(runs, options)


# ---------------------------------------------------------------- numbers over rounds, epochs and steps
def test_numbers_are_means_over_clients_and_then_over_seeds(watched):
    figure = drawn(watched, "observed", numbers="classifier.trained.norm_missing")
    row = figure.data.set_index(["method", "x"]).loc["map", 3]
    by_seed = [statistics.fmean(norm("map", seed, 3, k) for k in TWO) for seed in SEEDS]
    assert row["mean"] == pytest.approx(statistics.fmean(by_seed))
    assert row["high"] - row["mean"] == pytest.approx(statistics.stdev(by_seed))
    assert row["panel"] == "norm of vectors, missing, trained"
    assert figure.caption == (
        "Mean ± standard deviation over seeds 0, 1; 4 rounds. A point is a mean over the clients of a round."
    )


def test_epochs_are_counted_over_all_rounds(watched):
    data = drawn(watched, "observed", numbers="classifier.epoch.distance_mm", x="epoch").data
    own = data[data["method"] == "map"].set_index("x")["mean"]
    assert own.to_dict() == {2 * (t - 1) + e + 1: 10 * t + e for t in range(1, ROUNDS + 1) for e in (0, 1)}


def test_steps_are_those_of_one_round(watched):
    numbers = "forces.step.pulling,forces.step.indirect"
    figure = drawn(watched.where({"algo": ["map"]}), "observed", numbers=numbers, x="step", split="lines", round="2")
    assert figure.data.set_index(["method", "x"])["mean"].to_dict() == {
        **{("pulling", step + 1): step for step in (0, 1, 2)},
        **{("indirect pushing", step + 1): 2.0 for step in (0, 1, 2)},
    }
    assert "Round 2." in figure.caption


def test_quantities_have_panels_and_classes_have_lines(watched):
    numbers = "classifier.epoch.distance_oo,classifier.epoch.distance_mm,classifier.trained.norm_missing"
    figure = drawn(watched.where({"algo": ["map"]}), "observed", numbers=numbers, split="quantities")
    assert set(map(tuple, figure.data[["panel", "method"]].to_numpy())) == {
        ("distance of vectors", "observed–observed"),
        ("distance of vectors", "missing–missing"),
        ("norm of vectors", "missing, trained"),
    }
    assert figure.spec()["resolve"]["scale"] == {"y": "independent"}
    both = drawn(watched, "observed", numbers=numbers, split="quantities").data
    assert "fedavg missing–missing" in set(both["method"])


def test_a_level_is_another_number_of_the_same_rows(watched):
    data = drawn(watched, "observed", numbers="class_means.trained.angle", level="etf").data
    level = data[data["method"] == "simplex frame"]
    assert list(level["x"]) == [1, ROUNDS]
    assert set(level["mean"]) == {120.0 + statistics.fmean(TWO)}


# ---------------------------------------------------------------- before and after local training
def test_a_round_leads_from_the_download_up_to_the_trained_model(watched):
    figure = drawn(watched.where({"seed": ["0"]}), "zigzag")
    own = figure.data[figure.data["method"] == "map"].sort_values("order")
    assert list(own["x"])[:4] == [0, 1, 1, 2]
    assert list(own["stage"])[:2] == ["downloaded", "trained"]
    after = 100 * statistics.fmean(personal("map", 0, k) - 0.1 for k in range(6))
    assert list(own["mean"])[:2] == pytest.approx([100 * before("map", 1), after])


def test_numbers_of_a_probe_go_through_the_aggregated_model_too(watched):
    only = watched.where({"algo": ["map"], "seed": ["0"]})
    data = drawn(only, "zigzag", numbers="classifier.norm_missing,classifier.norm_observed").data
    own = data[data["method"] == "missing"].sort_values("order")
    trained = statistics.fmean(norm("map", 0, 1, k) for k in TWO)
    assert list(own["mean"])[:3] == pytest.approx([trained - 1, trained, -5.0])
    assert list(own["x"])[:3] == [0, 1, 1]
    one = drawn(only, "zigzag", numbers="classifier.norm_missing", clients="3").data.sort_values("order")
    assert one["mean"].iloc[1] == pytest.approx(norm("map", 0, 1, 3))


def test_a_private_model_is_what_a_client_has_before_it_trains(tmp_path):
    write_run(tmp_path, "fedavg", 0)
    write_run(tmp_path, "map", 0, private=0.9)
    runs = load(tmp_path)
    for start, expected in (("own", 90.0), ("downloaded", 100 * before("map", 2))):
        figure = drawn(runs, "zigzag", start=start)
        found = figure.data[figure.data["stage"] == "downloaded"].set_index(["method", "round"])["mean"]
        assert found["map", 2] == pytest.approx(expected)
        assert found["map", 1] == pytest.approx(100 * before("map", 1))  # before the first round there is none
        assert found["fedavg", 2] == pytest.approx(100 * before("fedavg", 2))
        assert ("private model" in figure.caption) == (start == "own")


# ---------------------------------------------------------------- the plane
def test_a_plane_has_features_and_vectors_and_knows_who_owns_what(watched):
    figure = drawn(watched.where({"algo": ["map"]}), "proxies", scale="10")
    vectors = figure.data[figure.data["kind"] == "vector"]
    assert set(figure.data["panel"]) == {0, 1, 2}  # downloaded, trained, aggregated
    trained = vectors[vectors["panel"] == 1].set_index("class")
    assert trained[["x", "y"]].to_numpy().tolist() == (10 * VECTORS).tolist()
    assert list(trained["degrees"]) == pytest.approx([0, 90, -135])
    assert trained["norm"].to_list() == pytest.approx([2, 0.5, math.sqrt(2)])
    assert list(trained["owned"]) == [count > 0 for count in COUNTS[0]]
    assert vectors[vectors["panel"] == 2]["owned"].all()  # somebody owns each of them
    features = figure.data[(figure.data["kind"] == "feature") & (figure.data["panel"] == 1)]
    assert features[["class", "x", "y"]].to_numpy().tolist() == [
        [c, *place] for c, place in zip(LABELS.tolist(), FEATURES.tolist(), strict=True)
    ]
    assert figure.caption.startswith("Seed 0, round 4 of 4, map, client 0, 2 of 3 classes. Dots: test features; ")
    assert "10 times as long" in figure.caption


def test_vectors_are_drawn_about_as_long_as_features_reach(watched):
    assert "2 times" not in drawn(watched, "proxies", scale="1").caption
    assert "vectors, 2 times as long" in drawn(watched, "proxies").caption  # features reach 4, the longest vector 2


def test_a_point_per_class_and_degrees_at_the_tips(watched):
    options = {"models": "trained", "clients": "0,3", "points": "1", "labels": "degrees"}
    figure = drawn(watched.where({"algo": ["map"]}), "proxies", **options)
    own = figure.data[figure.data["panel"] == 1]
    assert list(own[own["kind"] == "feature"]["class"]) == [0, 1, 2]
    assert list(own[own["kind"] == "vector"]["label"]) == ["0: 0°", "1: 90°", "2: −135°"]
    assert [view["title"]["text"] for view in figure.spec()["concat"]] == [
        ["client 0", "2 of 3 classes"],
        ["client 3", "1 of 3 classes"],
    ]


def test_a_sphere_is_a_map_of_degrees(watched):
    figure = drawn(watched.where({"algo": ["map"]}), "proxies", probe="sphere", models="trained", scale="10")
    vectors = figure.data[figure.data["kind"] == "vector"]
    assert vectors[["x", "y"]].to_numpy().tolist() == VECTORS.tolist()  # places, not lengths
    (view,) = figure.spec()["concat"]
    assert view["layer"][0]["encoding"]["x"]["scale"]["domain"] == [-180, 180]
    assert view["layer"][0]["encoding"]["y"]["axis"]["title"] == "latitude (°)"


# ---------------------------------------------------------------- spectra, relativity, cost
def test_a_spectrum_is_a_mean_over_classes_and_clients(watched):
    figure = drawn(watched, "spectrum")
    own = figure.data[figure.data["method"] == "map"].set_index("x")["mean"]
    assert own.to_dict() == pytest.approx({1: (3 + 5 + 4) / 3, 2: (1 + 3 + 2) / 3})
    variance = statistics.fmean(1 + k + seed for k in TWO for seed in SEEDS)
    assert f"Variance of the largest: fedavg {variance:.3g}, map {variance:.3g}." in figure.caption


def test_clients_with_the_same_classes_stand_together(watched):
    figure = drawn(watched.where({"algo": ["map"]}), "relativity")
    assert list(figure.data["round"].unique()) == [1, 3, ROUNDS]
    first = figure.data[figure.data["round"] == 1]
    places = dict(zip(first["client"], first["x"], strict=True))
    assert places == {0: 0, 3: 1, 1: 2}  # 0 and 3 own nearly nothing but class 0
    cell = first[(first["client"] == 0) & (first["other"] == 3)].iloc[0]
    assert cell["cosine"] == MATRIX[0, 2]
    assert "round 1: 0.50, round 3: 0.17, round 4: 0.12" in figure.caption


def test_costs_are_multiples_of_the_reference(watched):
    data = drawn(watched, "cost", metric="aggregation.mean").data.set_index("method")
    assert data.loc["map", ["stored", "seconds", "stored_times", "seconds_times"]].to_list() == [2.0, 3.0, 2.0, 1.5]
    assert data.loc["fedavg", "seconds_times"] == 1
    assert data.loc["map", "n"] == len(SEEDS)


# ---------------------------------------------------------------- some classes, or all
def test_classes_alone_and_among_all(tmp_path):
    write_run(tmp_path / "all", "map", 0)
    write_run(tmp_path / "one", "fedavg", 0, counts=[[5, 0, 0]] * 6)
    data = drawn(load(tmp_path), "subsets").data.set_index("method")
    assert data.loc["trained on these", ["x", "mean"]].to_list() == pytest.approx([1, 100 * (BASE["fedavg"] + 0.2)])
    assert data.loc["trained on all", ["x", "mean"]].to_list() == pytest.approx([1, 100 * (BASE["map"] + 0.2)])


def test_methods_that_learn_some_classes_are_told_apart(tmp_path):
    for algo in ("map", "fedavg"):
        write_run(tmp_path / "all", algo, 0)
        write_run(tmp_path / "one", algo, 0, counts=[[5, 0, 0]] * 6)
    data = drawn(load(tmp_path), "subsets", by="algo").data.set_index("method")
    assert set(data["n"]) == {1}
    for algo in ("map", "fedavg"):
        for line in ("on these", "on all"):
            assert data.loc[f"{algo}, trained {line}", "mean"] == pytest.approx(100 * (BASE[algo] + 0.2))
    with pytest.raises(ConfigError, match="2 runs have seed=0; they differ in algo"):
        drawn(load(tmp_path), "subsets")


# ---------------------------------------------------------------- what can be wrong
@pytest.mark.parametrize("name", [make.__name__ for make in OF_PROBES])
def test_every_kind_has_a_specification_and_runs_without_the_probe_are_told_which(name, watched, tmp_path):
    options = {**OPTIONS.get(name, {}), **({"metric": "aggregation.mean"} if name == "cost" else {})}
    figure = drawn(watched, name, **options)
    assert figure.spec()["title"]["subtitle"]  # raises if it is not one
    assert "eed" in figure.caption
    assert "round" in figure.caption
    write_run(tmp_path, "fedavg", 0)
    probe = {"observed": "classifier"}.get(name, name)
    with pytest.raises(
        ConfigError, match=rf"No finished run was observed by the probe {probe}.*Run with probe={probe};"
    ):
        drawn(load(tmp_path), name, **options)


def test_runs_that_other_probes_have_seen_are_told_what_to_add(tmp_path):
    def observe(rundir):
        rundir.append_observations(1, [{"round": 1, "client": 0, "probe": "cost", "name": "round", "values": {}}], None)

    write_run(tmp_path, "fedavg", 0, observe=observe)
    with pytest.raises(
        ConfigError, match=r"They were observed by cost\. Run with 'probe=\[cost,spectrum\]';.*force=true"
    ):
        drawn(load(tmp_path), "spectrum")


def test_runs_that_were_not_observed_are_left_out_and_counted(tmp_path):
    write_run(tmp_path, "fedavg", 0, observe=observed_by("fedavg", 0))
    write_run(tmp_path, "map", 0)
    figure = drawn(load(tmp_path), "observed", **OPTIONS["observed"])
    assert set(figure.data["method"]) == {"fedavg"}
    assert "1 run not observed, left out." in figure.caption


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("observed", {}, "observed needs numbers="),
        ("observed", {"numbers": "classifier.trained.norm_mising"}, "Did you mean 'classifier.trained.norm_missing'"),
        (
            "observed",
            {"numbers": "class_means.trained.angle", "x": "epoch"},
            "is observed once a round, not at each epoch",
        ),
        (
            "observed",
            {"numbers": "forces.step.direct", "x": "step", "round": "9"},
            "round=9: forces.step.direct was not",
        ),
        ("observed", {"numbers": "forces.step.direct", "x": "step", "round": "last"}, "must be the number of a round"),
        ("proxies", {"models": "global"}, "models=global: this must be received or trained"),
        ("proxies", {"clients": "1"}, "clients=1: this client of fedavg was not observed in round 4"),
        ("proxies", {"models": "personal"}, "was not observed"),
        ("proxies", {"round": "9"}, "round=9: fedavg was observed in rounds 1, 2, 3, 4"),
        ("proxies", {"scale": "big"}, "scale=big: this must be a number above 0"),
        ("relativity", {"rounds": "1,7"}, "rounds=7: fedavg was observed in rounds 1, 2, 3, 4"),
        ("cost", {"reference": "fedav", "metric": "aggregation.mean"}, "Did you mean 'fedavg'"),
        ("spectrum", {"model": "received"}, "model=received: this must be trained or aggregated"),
        ("zigzag", {"clients": "77"}, "clients=77: there is no row of this one"),
        ("zigzag", {"clients": "0,77,x"}, "clients=77,x: there is no row of these"),
        ("zigzag", {"start": "late"}, "start=late: this must be own or downloaded"),
        ("subsets", {}, "needs runs whose clients own some classes together"),
    ],
)
def test_wrong_requests_say_what_to_do(watched, name, options, words):
    with pytest.raises(ConfigError) as error:
        drawn(watched, name, **options)
    assert words in str(error.value)


def test_observed_without_numbers_names_those_that_there_are(watched, tmp_path):
    with pytest.raises(ConfigError, match=r"needs numbers=NAME,…\. These runs have .*classifier\.trained\.norm_"):
        kind("observed")(watched, {})
    write_run(tmp_path, "fedavg", 0)
    with pytest.raises(ConfigError, match=r"These runs have none\. Run with a probe, as in probe=classifier"):
        kind("observed")(load(tmp_path), {})


def test_a_damaged_file_of_arrays_is_named(tmp_path):
    path = tmp_path / "probes" / "round-0002.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"no arrays")
    with pytest.raises(DamagedError, match=r"round-0002\.safetensors is damaged"):
        observed_arrays(tmp_path, 2)


def test_two_figures_in_one(watched):
    one, two = drawn(watched, "proxies"), drawn(watched, "zigzag")
    both = one.above(two)
    assert len(both.spec()["vconcat"]) == 2
    assert both.title == one.title
    assert both.caption == f"{one.caption} {two.caption}"
    assert len(both.data) == len(one.data) + len(two.data)
