"""Memory that does not grow: over clients trained one after another, and what the scale benchmark makes of it."""

from __future__ import annotations

import gc
import json
from itertools import pairwise

import pytest
import torch

import fedexp
from fedexp.bench import scale
from fedexp.bench.scale import Case, main, observe
from fedexp.build import build
from fedexp.display import SilentDisplay
from fedexp.evaluate import protocol
from fedexp.runs.directory import RunDir


# ---------------------------------------------------------------- fits
def living() -> tuple[int, int]:
    """Objects that Python's collector knows of after it has collected, and how many of them are tensors."""
    gc.collect()
    objects = gc.get_objects()
    return len(objects), sum(issubclass(type(o), torch.Tensor) for o in objects)


@pytest.fixture
def only_new_objects():
    """Hides what is there already from Python's collector: modules, and what other tests have left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("loop", ["fabric", "trainer"])
def test_a_client_leaves_nothing_behind(configured, tmp_path, loop, only_new_objects):
    """Fits leave no objects behind; a window of them without growth shows it, as threads of other tests make some."""
    engine = build(configured("algo=scamap", f"loop={loop}")).engine(RunDir(tmp_path), SilentDisplay())
    engine.open()

    def fits(number: int) -> tuple[int, int]:
        for index in range(number):
            (result,) = engine.measurement.train_once_more([index % 6]).values()
            assert result.terms
        return living()

    fits(4)  # what is made once
    windows = [fits(8) for _ in range(4)]
    growth = [(more - objects, still - tensors) for (objects, tensors), (more, still) in pairwise(windows)]
    assert min(objects for objects, _ in growth) < 8  # not even one per fit
    assert min(tensors for _, tensors in growth) <= 0


def test_a_round_leaves_only_its_record(configured, tmp_path, only_new_objects):
    """Rows, messages, results and old slots are gone when the next round begins."""
    engine = build(configured("algo=scamap", "store=disk", "cohort.fraction=1.0")).engine(
        RunDir(tmp_path), SilentDisplay()
    )
    engine.open()
    tensors = []
    for t in range(5):
        engine.play(t + 1)
        engine._save_checkpoint()
        tensors.append(living()[1])
    assert len(set(tensors[1:])) == 1
    assert not engine.ledger._rows


def test_training_every_client_at_the_end_holds_no_models(configured, tmp_path, monkeypatch):
    seen = {}
    whole = protocol._all_clients
    monkeypatch.setattr(protocol, "_all_clients", lambda results: (seen.update(results), whole(results))[1])
    fedexp.run(configured("algo=scamap", "rounds=1", "evaluate.all_clients=true"))
    assert len(seen) == 6
    assert not any(r.private for r in seen.values())


# ---------------------------------------------------------------- the benchmark
def test_a_case_is_observed(tmp_path):
    found = observe(Case(clients=30, fraction=0.1, rounds=4, loop="fabric", store="disk"))
    assert (found["fits"], found["clients"]) == (12, 30)
    assert found["kept"] == 30  # everybody, though fewer have taken part
    assert found["kept"] * found["slots"] < found["disk"] < 3 * found["kept"] * found["slots"]
    assert 0 < found["start"] <= found["peak"] + 1
    assert 0 < found["beside"] < found["per_client"]


@pytest.mark.parametrize(
    ("peaks", "growth", "code"), [((100, 110, 119), 1.04, 0), ((100, 110, 121), 1.0, 1), ((100, 99, 98), 1.06, 1)]
)
def test_the_benchmark_ends_with_whether_memory_is_flat(tmp_path, monkeypatch, capsys, peaks, growth, code):
    left = list(zip([*peaks] * 3, [0.09] * 3 + [0.02] * 3 + [0.03] * 3, strict=True))  # a slow turn, a fast, a middling

    def played(case):
        peak, per_client = left.pop(0) if case.fraction == scale.FRACTION else (100, 0.02)
        return {
            "clients": case.clients, "rounds": case.rounds, "loop": case.loop, "store": case.store, "fits": 600,
            "setup": 1.0, "marks": {100: 50.0, 500: 50.0 * growth}, "start": 90.0, "peak": peak,
            "per_client": per_client, "beside": 0.01, "disk": 10**6, "kept": 100, "slots": 10**5, "data": 10**6,
        }  # fmt: skip

    monkeypatch.setattr(scale, "_fresh", played)
    assert main(["--json", str(tmp_path / "found.json")]) == code
    assert "10,000" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert [len(found[k]) for k in ("clients", "fits")] == [3, 2]
    assert [r["per_client"] for r in found["clients"]] == [0.03] * 3
