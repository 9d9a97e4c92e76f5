"""What a configuration may contain, told from the sources without importing them."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from fedexp.config.compose import composed
from fedexp.config.schema import problems
from fedexp.config.signatures import signature
from fedexp.config.suggest import nearest
from fedexp.config.values import describe, fits
from fedexp.core.ranges import Count, Share, ShareInside
from fedexp.errors import ConfigError

Mode = Literal["a", "b"]


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [0, -3], [1.0, "1", True, None, [1], 10**30]),
        (float, [0, 1.5, -2], ["1.5", True, None, [1.5], float("inf"), float("nan")]),
        (Share, [0, 1, 0.5], [-0.1, 1.1, float("nan"), "x", None]),
        (Share | None, [0, None], [2, "x"]),
        (Sequence[Count], [[], [1, 5]], [[0], [1, -1], [10**30], 3]),
        (bool, [True, False], [0, 1, "true", None]),
        (str, ["", "x", "ä é\u00a0"], [1, None, ["x"], True, "a\tb", "\x1b[31m", "\udcff"]),
        (int | None, [1, None], [1.5, "null", True]),
        (float | None, [1, 1.5, None], ["x"]),
        (Mode, ["a", "b"], ["c", None, 1, ["a"]]),
        (tuple[int, ...], [[], [1], (1, 2)], [1, "12", [1.5], [None], {"a": 1}]),
        (tuple[int, str], [[1, "a"]], [[1], [1, 2], [1, "a", 2]]),
        (tuple[tuple[int, ...], ...], [[[1], []]], [[1], [[1.5]], [["a"]]]),
        (Sequence[float], [[], [1, 2.5]], [1.5, "ab", ["a"]]),
        (Sequence[Sequence[int]], [[[1, 2], [3]]], [[1, 2], "ab"]),
        (tuple[int, ...] | None, [None, [3]], ["x", [1.5]]),
        (list[Count], [[], [1, 5]], [[0], 3, None]),
        (list[int] | None, [None, [3]], ["x", [1.5]]),
        (tuple, [[], [1, "a"]], [1, "ab", None]),
        (dict[str, float], [{}, {"a": 1}], [{"a": "x"}, [1], 1, None]),
        (dict[str, float] | None, [None, {"a": 0.5}], [{"a": None}, 1]),
        (dict, [{}, {"a": [1]}], [1, []]),
        (set[int], [[1], 3], []),
        (list["int"], [[1], ["a"]], [1]),
        (Any, [None, 1, {"a": 1}], []),
    ],
)
def test_fits(hint, good, bad):
    assert [v for v in good if not fits(v, hint)] == []
    assert [v for v in bad if fits(v, hint)] == []


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "a whole number"), (float, "a number"), (bool, "true or false"), (str, "a text"),
        (int | None, "a whole number or null"), (Mode, "one of a, b"),
        (tuple[int, ...], "a list (a whole number each)"), (Sequence[str] | None, "a list (a text each) or null"),
        (list[int], "a list (a whole number each)"), (tuple, "a list"), (dict, "a group of settings"),
        (dict[str, Any], "a group of settings (anything each)"),
    ],
)  # fmt: skip
def test_describe(hint, words):
    assert describe(hint) == words


def test_nearest():
    assert nearest("roudns", ["rounds", "seed"]) == "Did you mean 'rounds'?"
    assert nearest("xyz", ["rounds", "seed"]) == "Known: rounds, seed."
    assert nearest("xyz", []) == "Known: none."


# ---------------------------------------------------------------- signatures from source text
def test_a_component_has_its_own_fields_and_the_inherited_one():
    hints = signature("fedexp.algos.fedrs.RestrictedSoftmax")
    assert hints == {
        "alpha": Share,
        "mode": Literal["indicator", "count_max", "count_sum"],
        "min_count": Count,
        "bias": Literal["kept", "scaled", "dropped"],
        "during": tuple[str, ...],
    }


def test_class_variables_are_not_settings():
    hints = signature("fedexp.algos.fedrs.ClassWeightedAggregation")
    assert set(hints) == {"smoothing", "during"}


def test_a_partition_inherits_from_a_base_in_another_file():
    hints = signature("fedexp.partition.incomplete.Incomplete")
    assert hints["min_classes"] == Count
    assert hints["holdout"] == ShareInside
    assert hints["seed"] == int | None
    assert hints["test"] == Literal["holdout", "mirror", "none"]  # a name for a Literal, defined there


def test_functions_and_constructors():
    assert signature("fedexp.models.mlp.mlpnet")["hidden"] == Sequence[Count]
    assert signature("fedexp.client.loops.TrainerLoop")["number"] is int
    assert signature("fedexp.track.wandb.WandbTracker")["mode"] == Literal["auto", "online", "offline"]


@pytest.mark.parametrize("target", ["nowhere.It", "fedexp.client.loops.No", "math.floor", "torch.nn.Module.x", "x"])
def test_what_has_no_source_is_not_judged(target):
    assert signature(target) is None


def test_a_users_own_package_is_read_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedexp.core.component import Component\n"
        "raise RuntimeError('imported')\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(Component):\n    strength: float = 1.0\n    other: Unknown = 3\n    weight: 'float | None' = None\n"
        "    extra: dict[str, float] | None = None\n    typo: 'float |' = 1\n    later: 'Unknown' = 1\n"
    )
    monkeypatch.chdir(tmp_path)
    hints = signature("theirs.Mine")
    assert hints["strength"] is float
    assert hints["weight"] == float | None
    assert hints["extra"] == dict[str, float] | None
    assert {hints[name] for name in ("other", "typo", "later")} == {Any}
    assert "during" in hints


# ---------------------------------------------------------------- problems
WRONG = [
    ("rounds", 1.5, "rounds must be a whole number, not 1.5"),
    ("seed", "abc", "seed must be a whole number, not 'abc'"),
    ("cohort.fraction", "most", "cohort.fraction must be a number, not 'most'"),
    ("local.clip", "x", "local.clip must be a number or null, not 'x'"),
    ("weighting", "equal", "weighting must be one of uniform, samples, not 'equal'"),
    ("keep", "some", "keep must be one of model, all, not 'some'"),
    ("store", "ram", "store must be one of auto, memory, disk, not 'ram'"),
    ("plan", 3, "plan must be true or false, not 3"),
    ("cohort", 5, "cohort must be a group of settings, not 5"),
    ("algo.rs.alpha", "x", "algo.rs.alpha must be a number, not 'x'"),
    ("algo.rs.mode", "soft", "algo.rs.mode must be one of indicator, count_max, count_sum, not 'soft'"),
    ("algo.rs.during", "local", "algo.rs.during must be a list (a text each), not 'local'"),
    ("algo.rs.min_count", True, "algo.rs.min_count must be a whole number, not True"),
    ("algo.rs", 3, "algo.rs must be a component with a _target_, not 3"),
    ("data.size", "big", "data.size must be a whole number, not 'big'"),
    ("partition.min_classes", "few", "partition.min_classes must be a whole number, not 'few'"),
    ("partition.holdout", "x", "partition.holdout must be a number, not 'x'"),
    ("partition.test", "own", "partition.test must be one of holdout, mirror, none, not 'own'"),
    ("model.hidden", 16, "model.hidden must be a list (a whole number each), not 16"),
    ("model.bias", "maybe", "model.bias must be true or false, not 'maybe'"),
    ("optim.lr", "fast", "optim.lr must be a number, not 'fast'"),
    ("loop.accelerator", 3, "loop.accelerator must be one of auto, cpu, gpu, cuda, mps, not 3"),
    ("executor.threads", "two", "executor.threads must be a whole number, not 'two'"),
    ("tracker.project", "x", "tracker.project must be a component with a _target_, not 'x'"),
    (
        "algo.rs.aplha", 1,
        "algo.rs.aplha is not a setting of fedexp.algos.fedrs.RestrictedSoftmax. Did you mean 'alpha'?",
    ),
    ("algo.new", 3, "algo.new must be a component with a _target_, not 3"),
    ("algo.new", {"x": 3}, "algo.new has no _target_; choose one of the files of its group"),
    ("data", {"size": 8}, "data has no _target_; choose one of the files of its group"),
    ("local.epoch", 3, "local.epoch is not a setting. Did you mean 'epochs'?"),
    ("roundz", 3, "roundz is not a setting. Did you mean 'rounds'?"),
]  # fmt: skip


@pytest.fixture(scope="module")
def default():
    config = composed([])
    config.pop("choices")
    return config


def put(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(config)
    *parents, last = path.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    node[last] = value
    return config


@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_types_and_keys_of_every_group(default, path, value, message):
    assert problems(put(default, path, value)) == [message]


@pytest.mark.parametrize("path", ["rounds", "cohort", "local.clip", "every.evaluate"])
def test_what_is_missing_is_said(default, path):
    config = copy.deepcopy(default)
    *parents, last = path.split(".")
    (config[parents[0]] if parents else config).pop(last)
    assert problems(config) == [f"{path} is missing"]


def test_a_setting_with_a_default_of_its_own_may_be_left_out(default):
    config = copy.deepcopy(default)
    config["data"].pop("size")
    assert problems(config) == []


def test_a_wrong_type_on_the_command_line_is_a_config_error():
    with pytest.raises(ConfigError, match=r"^partition\.min_classes must be a whole number, not 'few'$"):
        composed(["partition.min_classes=few"])


def test_wandb_is_checked_too():
    with pytest.raises(ConfigError, match=r"tracker\.wandb\.mode must be one of auto, online, offline, not 'cloud'"):
        composed(["tracker=wandb", "tracker.wandb.mode=cloud"])


def test_all_problems_at_once(default):
    assert problems(default) == []
    config = copy.deepcopy(default)
    config["rounds"] = "many"
    config["optim"]["lr"] = None
    config["algo"]["rs"]["alpha"] = "x"
    config["partition"]["colour"] = "red"
    config["cohort"]["clients"] = 2.5
    found = problems(config)
    assert len(found) == 5
    for key in ("rounds", "optim.lr", "algo.rs.alpha", "partition.colour", "cohort.clients"):
        assert any(p.startswith(key + " ") for p in found)


def test_checking_does_not_import_torch():
    code = (
        "import sys; from fedexp.config import composed; composed(['data=cifar10', 'algo=scamap', 'tracker=wandb']); "
        "print([m for m in ('torch', 'lightning', 'sklearn', 'wandb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
