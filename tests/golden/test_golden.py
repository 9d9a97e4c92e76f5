"""Numbers of every algorithm on tiny data, against a file that ``pytest --regold`` writes anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedexp.build import make
from fedexp.config.compose import choices_of, composed
from fedexp.testing import play

FILE = Path(__file__).with_name("golden.json")
TOLERANCE = 2e-4  # of losses: kernels differ between machines; accuracies are counts of few samples


def measure(algo: str) -> dict[str, object]:
    components = {key: make(node) for key, node in composed([f"algo={algo}"])["algo"].items()}
    engine = play(components, rounds=5)
    last = engine.records[-1]
    return {
        "terms": {k: round(v, 6) for k, v in last["terms"].items()},
        "norm": round(sum(float(v.double().square().sum()) for v in engine.progress.state.model.values()), 5),
        "bytes": last["bytes"],
    }


@pytest.mark.parametrize("algo", choices_of("algo"))
def test_numbers_have_not_moved(algo, request):
    now = measure(algo)
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if request.config.getoption("--regold"):
        FILE.write_text(json.dumps({**golden, algo: now}, indent=1, sort_keys=True) + "\n")
        return
    then = golden[algo]
    assert now["bytes"] == then["bytes"]
    assert now["terms"] == pytest.approx(then["terms"], rel=TOLERANCE, abs=TOLERANCE)
    assert now["norm"] == pytest.approx(then["norm"], rel=TOLERANCE)
