"""``python -m fedexp.algos``: what it says of every method, and that the README says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedexp.algos.__main__ import _origins, main, markdown, methods
from fedexp.config.compose import choices_of, composed

ROOT = Path(__file__).parents[3]


def test_the_readme_has_the_table_of_methods():
    assert f"\n{markdown()}\n" in (ROOT / "README.md").read_text(), "python -m fedexp.algos list --markdown"


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
        "FedAvg's with algo.rs.alpha=1.0.", "model to each client 1.20 MB", "hpm.model kept: client 1.20 MB",
    ):  # fmt: skip
        assert part in said, part


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
