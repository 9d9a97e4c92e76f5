"""A paper of our own with a table whose runs take a second: the digits in the place of a real scene's data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedexp.reproduce import published
from fedexp.reproduce.entry import Entry, Method, Number, Scene
from fedexp.reproduce.measure import Measure
from fedexp.reproduce.published_files import Paper

SMALL = (
    "data=digits", "cohort.clients=6", "cohort.fraction=0.5", "rounds=2", "local.epochs=1", "local.batch_size=32",
    "model.hidden=[16,16]", "loop=fabric", "executor=serial",
)  # fmt: skip
SCENES = (
    Scene("tiny", "digits/mlp", "map/fmnist_mlpnet", hours=0.001),
    Scene("tiny", "digits/again", "map/fmnist_lenet", hours=0.01),
    Scene("tiny", "digits/nowhere", "map/cifar10_vgg8", hours=0.01),
    Scene("tiny", "stand-in/digits/mlp", "map/cifar10_tfcnn", stand_in=True, hours=0.001),
)
METHODS = (
    Method(
        "tiny", "FedAvg", ("algo=fedavg", *SMALL), "nothing",
        special=(
            ("digits/again", ("model=mlpnet", "model.hidden=[8]")), ("stand-in/*", ("model=mlpnet",)),
            ("digits/nowhere", ("model=mlpnet", "data=cifar100", "data.root=nowhere", "data.download=false")),
        ),
    ),
    Method(
        "tiny", "FedRS", ("algo=fedrs", *SMALL), "alpha", grid=(("algo.rs.alpha=0.5",), ("algo.rs.alpha=0.9",)), cost=2,
    ),
    Method("tiny", "slow", ("algo=fedavg", *SMALL, "limit=0.00001"), "fails on the way"),
    Method("tiny", "crowded", ("algo=fedavg", *SMALL, "cohort.clients=3000"), "cannot begin"),
    Method("tiny", "wild", ("algo=fedavg", *SMALL, "optim.lr=1e30", "local.clip=null"), "diverges"),
    Method("tiny", "best baseline", None, "not a method"),
)  # fmt: skip
READING = replace(
    METHODS[0], name="FedAvg samples", overrides=(*METHODS[0].overrides, "weighting=samples"),
    stated="clients count by their samples", reading_of="FedAvg",
)  # fmt: skip
TABLE = Entry(
    "tiny/table1", "train", "A table", tuned=True,
    measures=(Measure("aggregation", "aggregation.accuracy", "last round"),),
    scenes=("digits/mlp", "digits/again", "digits/nowhere"), stand_ins=("stand-in/digits/mlp",),
    methods=METHODS, readings=(READING,),
    aggregates=(("avg", "*"),),
    numbers=tuple(
        Number("tiny/table1", "", setting, method, "aggregation", "50.0", None)
        for setting in ("digits/mlp", "digits/again", "digits/nowhere", "avg")
        for method in ("FedAvg", "FedRS", "slow", "wild")
    ),
)  # fmt: skip
OTHER = replace(
    TABLE, id="tiny/table2", title="Another table of the same runs", numbers=(), readings=(), aggregates=(),
    measures=(Measure("personalization", "personalization.accuracy", "best round"),),
)  # fmt: skip
FIGURE = replace(OTHER, id="tiny/fig1", varied=(("algo.rs.alpha", ("0.1", "0.2")),), methods=METHODS[1:2], tuned=False)
NOTHING = Entry("tiny/fig2", "text", "A drawing")


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this is the only paper."""
    parts = (TABLE, OTHER, FIGURE, NOTHING)
    paper = Paper(
        {entry.id.partition("/")[2]: entry for entry in parts},
        {scene.name: scene for scene in SCENES},
        {method.name: method for method in (*METHODS, READING)},
    )
    monkeypatch.setattr(published, "PAPERS", ("tiny",))
    monkeypatch.setattr(published, "_paper", {"tiny": paper}.__getitem__)
