"""A small published table with every kind of cell, and the results of a sweep in ``golden/sweep.csv`` beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedexp.reproduce.entry import Entry, Method, Number, Scene
from fedexp.reproduce.measure import Measure
from fedexp.reproduce.request import Request
from fedexp.reproduce.results import Result, read_results
from fedexp.reproduce.tables.making import make_table
from fedexp.reproduce.tables.table import ReproTable
from fedexp.reproduce.tolerance import Tolerance
from fedexp.reproduce.verdict import Verdict

GOLDEN = Path(__file__).parent / "golden"
ODD = "A&B_50%|x"  # a name with signs that LaTeX and Markdown read as their own
TOLERANCE = "Tolerance: 1 point, for this test."
PRINTED = {
    "mnist/mlp": {
        "FedAvg": "90.0", "FedRS alpha=0.5": "92.0", "Scaffold": "91.0", "MAP": "93.0", "FedProx": "92.5", ODD: "93.0",
        "Ditto": "90.5",
    },
    "cifar10/cnn": {"FedAvg": "60.0", "FedRS alpha=0.5": "62.5", "MAP": "64.0"},
    "svhn/cnn": {"FedAvg": "80.1"},
}  # fmt: skip
WORDS = {
    ("mnist/mlp", "FedAvg"): "reproduced",
    ("mnist/mlp", "FedRS alpha=0.5"): "compatible",
    ("mnist/mlp", "Scaffold"): "below",
    ("mnist/mlp", "MAP"): "above",
    ("mnist/mlp", "FedProx"): "failed",
    ("mnist/mlp", ODD): "unjudged",
    ("cifar10/cnn", "FedAvg"): "reduced",
    ("cifar10/cnn", "FedRS alpha=0.5"): "failed",
}


def method(name: str, **changes) -> Method:
    return Method(**{"paper": "demo", "name": name, "overrides": ("algo=fedavg",), "stated": "nothing", **changes})


def entry(**changes) -> Entry:
    numbers = tuple(
        Number("demo/table1", "", setting, method, "accuracy", printed, 0.5 if setting == "mnist/mlp" else None)
        for setting, row in PRINTED.items()
        for method, printed in row.items()
    )
    usual = {
        "id": "demo/table1",
        "kind": "train",
        "title": "Accuracy of seven methods",
        "measures": (Measure("accuracy", "aggregation.accuracy", "last round"),),
        "scenes": tuple(PRINTED),
        "methods": tuple(map(method, PRINTED["mnist/mlp"])),
        "spread": "seeds",
        "seeds": 3,
        "notes": ("Not stated: batch size. Here: 64.", "FedAvg's 60.0 is 61.0 in table 2."),
        "numbers": numbers,
    }
    return Entry(**{**usual, **changes})


def verdict(number: Number, results: list[Result]) -> Verdict:
    """A verdict with a word of our choice; the numbers are those of the results."""
    by_seed = {r.seed: r.value for r in results if r.cell == number.cell and r.value is not None}
    values = list(by_seed.values())
    ours = sum(values) / len(values) if values else None
    return Verdict(
        word=WORDS.get(number.cell[:2], "missing"),
        ours=ours,
        by_seed=by_seed,
        interval=(min(values), max(values)) if len(values) > 2 else None,
        published=number,
        difference=None if ours is None else ours - number.value,
        tolerance=Tolerance(1.0, TOLERANCE),
        why="as chosen",
    )


def asked(one: Entry, **changes) -> Request:
    """All of an entry."""
    scenes = tuple(
        Scene(
            "demo", name, f"demo/{name}", assumed=() if name == "svhn/cnn" else ("batch",),
            stand_in=name in one.stand_ins,
        )
        for name in (*one.scenes, *one.stand_ins)
    )  # fmt: skip
    return Request(
        **{"entry": one, "scenes": scenes, "methods": one.runnable, "seeds": (0,), "any_seed": True, **changes}
    )


def table(*more: Result, readings: Iterable[Method] = (), **changes) -> ReproTable:
    """The table of the sweep, and of further results."""
    one, results = entry(readings=tuple(readings)), [*read_results(GOLDEN / "sweep.csv"), *more]
    verdicts = {number.cell: verdict(number, results) for number in one.numbers}
    return make_table(asked(one, **{"seeds": (0, 1, 2), "any_seed": False, **changes}), verdicts, results)
