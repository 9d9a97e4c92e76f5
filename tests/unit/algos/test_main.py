"""``python -m fedexp.algos``: what it says of every method, and that the guide says the same."""

from __future__ import annotations

import pytest

from fedexp.algos.__main__ import _origins, description, main, markdown, methods
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.make import make
from tests.documents import GUIDE


def test_the_guide_has_the_table_of_methods():
    assert f"\n{markdown()}\n" in GUIDE["catalogue"], "python -m fedexp.algos list --markdown"


def test_every_method_says_what_it_is():
    found = {name: what for name, what, _ in methods()}
    assert set(found) == set(choices_of("algo"))
    assert {name for name, what in found.items() if len(what) < 20} == set()


def test_show_has_formula_origins_messages_and_neutral_setting(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", "map"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in (
        "algo=map: MAP:", "p_c ∝ exp(a_c · w_c·h)", "Deviations:", "algo.rs.alpha 0.9 MAP sect.",
        "With algo.rs.alpha=1.0 the server's model is as without this component.",
        "algo.hpm.fresh_optimizer false",
        "Tested for aggregation: the server's model; for personalization: a model of the client's own.",
        "model to each client 1.20 MB",
        "hpm.model kept by each client 1.20 MB",
    ):  # fmt: skip
        assert part in said, part


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedrep", "for aggregation: nothing, since the server's model is incomplete; for personalization: a model of"),
        ("fedbabu_ft", "for personalization: the server's model after local training, trained by tune before."),
    ],
)
def test_show_says_which_view_is_absent(name, said, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", name]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("feddc", "g_k <- g_k - g - (w_k - w_t)/(a lr)"),  # in the comment that the file begins with
        ("feddc", "Deviations: the authors divide alpha and g by n_k / mean n"),
        ("fedyogi", "w ← w + lr · m / (√v + tau)"),  # what it shares with Adam and Adagrad
        ("fedyogi", "v ← v - (1 - beta2) · Δ² · sign(v - Δ²)"),
        ("feddf", "public 100 samples that leave the test set; MAP sect. 5.2.2: 500"),  # not a component's setting
        ("fedrema", "heads.head kept by the server for each client"),
    ],
)
def test_show_leaves_nothing_out(name, said, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", name]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_every_component_says_where_it_deviates():
    """From its paper or from public code; "none" is an answer too."""
    components = {
        type(make(node)) for name in choices_of("algo") for node in composed([f"algo={name}"])["algo"].values()
    }
    assert [c.__name__ for c in components if "Deviations:" not in description(c)] == []


def test_a_method_of_other_files_has_their_comments():
    assert _origins("scamap", "rs") == _origins("map", "rs")
    assert _origins("map", "rs")["mode"] == _origins("fedrs", "rs")["mode"]


@pytest.mark.parametrize("name", ["mapp", "fedfoo"])
def test_an_unknown_method_gets_the_nearest_name(name, capsys):
    assert main(["show", name]) == 2
    assert f"algo={name}: there is no such choice." in capsys.readouterr().err


def test_every_setting_of_every_component_has_an_origin():
    """What it is, or where its value comes from; ``during`` speaks for itself."""
    silent = [
        f"{name}: {key}.{setting}"
        for name in choices_of("algo")
        for key, node in composed([f"algo={name}"])["algo"].items()
        for setting in node
        if not setting.startswith("_") and setting != "during" and setting not in _origins(name, key)
    ]
    assert silent == []
