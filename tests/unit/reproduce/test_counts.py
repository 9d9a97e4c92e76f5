"""What is counted is what the papers print; where it is not, the paper contradicts itself or the data are others."""

from __future__ import annotations

import os

import pytest

from fedexp.errors import ConfigError
from fedexp.reproduce import counts
from fedexp.reproduce.counts import counted
from fedexp.reproduce.published import entry
from fedexp.reproduce.results import Result


def by_cell(name: str) -> dict[tuple[str, str, str], Result]:
    found = counted(entry(name))
    cells = {r.cell: r for r in found}
    assert len(cells) == len(found)
    assert set(cells) == {n.cell for n in entry(name).numbers}
    return cells


def unlike_print(name: str) -> dict[tuple[str, str, str], float]:
    """Counted numbers that do not round to the printed one."""
    cells = by_cell(name)
    assert all(r.status == "done" and r.value is not None for r in cells.values())
    wrong = (n for n in entry(name).numbers if abs(cells[n.cell].value - n.value) > n.rounding + 1e-9)
    return {n.cell: cells[n.cell].value for n in wrong}


def test_hyper_parameters_are_those_of_fedrs_table_3():
    assert unlike_print("fedrs/table3") == {}


def test_networks_are_those_of_fedrs_table_4():
    assert unlike_print("fedrs/table4") == {}
    cells = by_cell("fedrs/table4")
    assert cells["tfcnn", "", "parameters"].value == 56_320
    assert cells["sacnn", "", "parameters"].reduced == "stand-in"
    assert cells["lenet2d", "", "parameters"].reduced == ""


def test_messages_are_those_of_fedmr_table_3_but_for_its_rounding():
    """0.044 and 0.102 are quotients of rounded millions, cut off; 11.187 is a sum of rounded ones (see the notes)."""
    assert unlike_print("fedmr/table3") == pytest.approx(
        {
            ("fmnist", "with prototypes", "parameters_million"): 11.187560,
            ("fmnist", "prototypes only", "extra_percent"): 0.0458755,
            ("svhn", "prototypes only", "extra_percent"): 0.0458708,
            ("cifar10", "prototypes only", "extra_percent"): 0.0458708,
            ("isic2019", "prototypes only", "extra_percent"): 0.1051988,
        },
        rel=1e-5,
    )
    notes = " ".join(entry("fedmr/table3").notes)
    assert "0.046 %" in notes
    assert "11.188" in notes


def test_prototypes_are_a_vector_and_a_mark_for_each_class():
    cells = by_cell("fedmr/table3")
    for setting, features, classes in (("fmnist", 512, 10), ("cifar100", 640, 100), ("isic2019", 640, 8)):
        with_them, without = (
            cells[setting, f"{w} prototypes", "parameters_million"].value for w in ("with", "without")
        )
        assert round((with_them - without) * 1e6) == classes * (features + 1)


def test_a_setting_without_its_data_fails_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDEXP_DATA", str(tmp_path))
    monkeypatch.setenv("FEDEXP_CACHE", str(tmp_path))
    monkeypatch.setattr(counts, "FEDRS_SCENES", {"femnist": "femnist/fecnn"})
    found = counted(entry("fedrs/table2"))
    assert [r.metric for r in found] == [m.metric for m in entry("fedrs/table2").measures]
    assert {(r.status, r.value) for r in found} == {("failed", None)}
    assert all("FEMNIST" in r.error and "\n" not in r.error for r in found)


def test_data_may_be_in_another_place(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "FEDRS_SCENES", {"mnist-2": "mnist-2/lenet2d"})
    place = str(tmp_path / "elsewhere")
    found = counted(entry("fedrs/table2"), [f"data.root={place}", "data.download=false"])
    assert all(place in r.error and place not in r.command for r in found)


def test_clients_of_the_stand_in_are_counted(monkeypatch):
    monkeypatch.setattr(counts, "FEDRS_SCENES", {"sa": "sa/sacnn"})
    found = {r.metric: r for r in counted(entry("fedrs/table2"))}
    assert (found["clients"].value, found["classes"].value, found["test_samples"].value) == (89, 32, 18_000)
    assert {r.reduced for r in found.values()} == {"stand-in"}


@pytest.mark.slow
@pytest.mark.skipif("FEDEXP_DATA" not in os.environ, reason="FEDEXP_DATA names no folder with the real data sets")
def test_clients_are_those_of_fedrs_table_2():
    cells = by_cell("fedrs/table2")
    off = {
        n.cell: cells[n.cell].value
        for n in entry("fedrs/table2").numbers
        if cells[n.cell].status == "done" and not cells[n.cell].reduced and cells[n.cell].value != n.value
    }
    if cells["mnist-2", "", "clients"].status == "done":
        assert off.pop(("mnist-2", "", "samples_per_client")) == 30_000  # see the notes: 5,000 images are left out
    assert off == {}


def test_what_nothing_counts_is_refused():
    with pytest.raises(ConfigError, match="fedmr/fig4 is not counted"):
        counted(entry("fedmr/fig4"))
