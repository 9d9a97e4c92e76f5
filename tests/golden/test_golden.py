"""Numbers of every algorithm on tiny data, each against a file of its own that ``pytest --regold`` writes anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.make import make
from fedexp.testing import play

FOLDER = Path(__file__).parent
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


def write(path: Path, numbers: dict[str, object]) -> None:
    path.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n")


def read(path: Path) -> dict[str, object]:
    if not path.exists():
        pytest.fail(
            f"algo={path.stem} has no golden numbers yet. If its tests in tests/terms pass, write them with: "
            f"pytest tests/golden -k {path.stem} --regold",
            pytrace=False,
        )
    return json.loads(path.read_text())


@pytest.mark.parametrize("algo", choices_of("algo"))
def test_numbers_have_not_moved(algo, request):
    path, now = FOLDER / f"{algo}.json", measure(algo)
    if request.config.getoption("--regold"):
        write(path, now)
        return
    then = read(path)
    assert now["bytes"] == then["bytes"]
    assert now["terms"] == pytest.approx(then["terms"], rel=TOLERANCE, abs=TOLERANCE)
    assert now["norm"] == pytest.approx(then["norm"], rel=TOLERANCE)


def test_no_golden_numbers_are_left_of_an_algorithm_that_is_gone():
    assert {p.stem for p in FOLDER.glob("*.json")} <= set(choices_of("algo"))


def test_missing_golden_numbers_say_what_to_run(tmp_path):
    with pytest.raises(pytest.fail.Exception, match=r"pytest tests/golden -k fednew --regold"):
        read(tmp_path / "fednew.json")


def test_golden_numbers_are_written_as_they_are_read(tmp_path):
    write(tmp_path / "fednew.json", {"norm": 1.5})
    assert read(tmp_path / "fednew.json") == {"norm": 1.5}
