"""A run's card, records and result, whose numbers a test can work out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedexp.track import RunCard

RUN, ROUNDS = "3f2a91c0", 4
TITLE = "map fmnist map/fmnist_mlpnet lr=0.1 s3"


def card(path: Path) -> RunCard:
    return RunCard(
        run=RUN,
        name="table2",
        config={
            "seed": 3,
            "choices": {"algo": "map", "data": "fmnist", "partition": "incomplete", "experiment": "map/fmnist_mlpnet"},
            "data": {"dataset": "fmnist"},
            "local": {"lr": 0.1},
        },
        plan={"phases": ["rs", "hpm"]},
        path=path,
        rounds=ROUNDS,
        commit="0123456789abcdef0123456789abcdef01234567-dirty",
    )


def record(round_: int) -> dict[str, Any]:
    return {
        "round": round_,
        "aggregation": {"accuracy": round_ / 10, "loss": 1 / round_, "per_class": [0.5, None, round_ / 10]},
        "personalization": {"accuracy": 0.9, "std": 0.05, "worst_decile": None, "clients": [0.05, 0.93, 0.97]},
        "terms": {"ce": 0.3},
        "bytes": {"up": 100 * round_, "down": 11 * round_},
        "seconds": {"elapsed": 2.0 * round_, "train": 1.5 * round_},
    }


def records(last: int = ROUNDS) -> list[dict[str, Any]]:
    return [record(round_) for round_ in range(1, last + 1)]


RESULT = {
    "status": "finished",
    "run": RUN,
    "rounds": ROUNDS,
    "aggregation": {"last": 0.4, "best": 0.45, "window": 5},
    "personalization": {"last": 0.9, "std": 0.01},
}
