"""Run directories with numbers that a test can work out again, written in a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedexp.runs.directory import RunDir

BASE = {"fedavg": 0.4, "map": 0.5, "fedrs": 0.3, "scaffold": 0.45}
ROUNDS, CLIENTS, CLASSES = 4, 6, 3
COUNTS = [[5, 0, 1], [0, 4, 0], [2, 2, 2], [9, 0, 0], [0, 0, 7], [1, 1, 0]]


def aggregation(algo: str, seed: int, round_: int, alpha: float = 0.0) -> float:
    return BASE[algo] + 0.02 * seed + 0.05 * round_ + 0.1 * alpha


def personal(algo: str, seed: int, client: int) -> float:
    """MAP is better for even clients, worse for client 1, equal for the others."""
    gain = {0: 0.1, 2: 0.1, 4: 0.1, 1: -0.2}.get(client, 0.0) if algo == "map" else 0.0
    return 0.5 + 0.05 * client + 0.01 * seed + gain


def before(algo: str, round_: int) -> float:
    return BASE[algo] + 0.01 * round_


def write_run(
    folder: Path,
    algo: str,
    seed: int,
    *,
    alpha: float | None = None,
    epochs: int = 5,
    done: bool = True,
    final: bool = True,
    counts: Sequence[Sequence[int]] = COUNTS,
    observe: Callable[[RunDir], None] | None = None,
    private: float | None = None,
) -> RunDir:
    """Writes a run as fedexp does; without ``done`` it has stopped after the rounds."""
    rundir = RunDir(folder / f"{algo}-{seed}-{alpha}-{epochs}")
    rundir.path.mkdir(parents=True)
    rundir.write_text("config.yaml", yaml.safe_dump(_config(algo, seed, alpha, epochs)))
    rundir.write("plan.json", {"partition": {"counts": counts}})
    for t in range(1, ROUNDS + 1):
        rundir.append_record(_record(algo, seed, t, alpha or 0.0))
    columns = ["round", "client", "status", "n", "before", "personal_before", "after"]
    rows = [
        {
            "round": t,
            "client": k,
            "status": "ok",
            "n": sum(COUNTS[k]),
            "before": before(algo, t),
            "personal_before": private if t > 1 else None,
            "after": personal(algo, seed, k) - 0.1 * (t < ROUNDS),
        }
        for t in range(1, ROUNDS + 1)
        for k in range(CLIENTS)
    ]
    rundir.append_rows("clients.csv", columns, rows)
    sent = [{"round": t, "client": 0, "direction": "up", "name": "model", "bytes": 100} for t in range(1, ROUNDS + 1)]
    rundir.append_rows("ledger.csv", ["round", "client", "direction", "name", "bytes"], sent)
    rundir.append_rows("weights.csv", ["round"], [{"round": 1}])
    rundir.write_bytes("model.safetensors", b"weights")
    if observe:
        observe(rundir)
    if done:
        rundir.conclude(_result(algo, seed, alpha or 0.0, final=final))
    return rundir


def _config(algo: str, seed: int, alpha: float | None, epochs: int) -> dict[str, Any]:
    own = {} if alpha is None else {"rs": {"_target_": "fedexp.algos.rs.RestrictedSoftmax", "alpha": alpha}}
    return {
        "seed": seed, "rounds": ROUNDS, "local": {"epochs": epochs}, "cohort": {"fraction": 0.5},
        "out": "x", "name": "y",
        "algo": own, "model": {"hidden": [8, 8]}, "data": {"size": 8}, "partition": {"seed": None},
        "choices": {"algo": algo, "data": "digits", "model": "mlpnet", "partition": "incomplete"},
    }  # fmt: skip


def _record(algo: str, seed: int, t: int, alpha: float) -> dict[str, Any]:
    accuracy = aggregation(algo, seed, t, alpha)
    return {
        "round": t,
        "aggregation": {"accuracy": accuracy, "loss": 1 - accuracy, "per_class": [accuracy, accuracy / 2, None]},
        "personalization": {"accuracy": accuracy + 0.05, "clients": [0.1, 0.2], "per_class": [1.0, 0.5, 0.25]},
        "missing": {"absent": accuracy / 4, "forgotten": accuracy / 8},
        "bytes": {"up": 1_000_000 * t, "down": 500_000 * t},
        "seconds": {"elapsed": 2.0 * t + seed},
    }  # fmt: skip


def _result(algo: str, seed: int, alpha: float, *, final: bool) -> dict[str, Any]:
    last = aggregation(algo, seed, ROUNDS, alpha)
    detail = {
        "clients": [personal(algo, seed, k) for k in range(CLIENTS)], "asked": list(range(CLIENTS)), "failed": {},
    }  # fmt: skip
    both = {"mean": last + 0.05, "last": last + 0.05}
    return {
        "status": "finished", "rounds": ROUNDS, "title": f"{algo} seed {seed}", "run": "id",
        "aggregation": {"mean": last, "last": last, "std": 0.01, "window": 10},
        "personalization": {**both, "all_clients_detail": detail} if final else both,
        "missing": {"absent": last / 4, "forgotten": last / 8, "window": 10},
        "bytes": {"up": 4_000_000, "down": 2_000_000}, "seconds": {"train": 1.5, "elapsed": 2.0},
        "versions": {"fedexp": "0.1.0"}, "digests": {"model": "0"},
    }  # fmt: skip
