"""Composing, explaining what does not compose, and naming runs."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedexp.config import identity, schema, signatures
from fedexp.config import sources as module
from fedexp.config.compose import composed, literal, title
from fedexp.config.hydra_loader import choices_of, parsed_overrides
from fedexp.config.identity import run_id, run_path
from fedexp.config.sources import conf_dir
from fedexp.errors import ConfigError

FILES = sorted(conf_dir().glob("*/*.yaml"))
GROUPS = ("data", "partition", "model", "optim", "schedule", "loop", "executor")
GIVEN = {"shape", "n_classes", "params", "blueprint", "say", "number"}  # what the builder supplies


def named(path: Path) -> str:
    return f"{path.parent.name}={path.stem}"


@cache
def chosen(path: Path) -> dict[str, Any]:
    """The file composed with one of every other group, since composing takes its time; alone, if that fails."""
    group, number = path.parent.name, choices_of(path.parent.name).index(path.stem)
    if group not in ("algo", *GROUPS):
        return composed([named(path)])
    try:
        return _row(number)
    except ConfigError:
        return composed([named(path)])


@cache
def _row(number: int) -> dict[str, Any]:
    choices = {group: choices_of(group) for group in ("algo", *GROUPS)}
    return composed([f"{group}={names[number % len(names)]}" for group, names in choices.items()])


# ---------------------------------------------------------------- every file
def test_there_are_files_to_check():
    assert {p.parent.name for p in FILES} >= {"algo", "experiment", *GROUPS}
    assert len(FILES) > 30


@pytest.mark.parametrize("path", FILES, ids=named)
def test_every_file_composes(path):
    config = chosen(path)
    assert config["choices"][path.parent.name] == path.stem
    assert schema.problems({k: v for k, v in config.items() if k != "choices"}) == []


def targets(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    nodes = {g: config[g] for g in GROUPS}
    return {**nodes, **{f"algo.{k}": node for k, node in config["algo"].items()}}


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name in ("algo", *GROUPS)], ids=named)
def test_the_keys_of_a_file_are_the_settable_names_of_its_target(path):
    """A hyper-parameter that is missing in the yaml cannot be set without a ``+``, and nobody finds it."""
    config = chosen(path)
    for where, node in targets(config).items():
        if where.partition(".")[0] != path.parent.name:
            continue
        name, _, attribute = node["_target_"].rpartition(".")
        target = getattr(importlib.import_module(name), attribute)
        real = set(inspect.signature(target).parameters) - GIVEN
        assert set(signatures.signature(node["_target_"])) - GIVEN == real  # the source text says what Python says
        named = {k for k in node if not k.startswith("_")}
        assert named <= real, where
        assert named == real or not name.startswith("fedexp."), where  # of others' classes, the ones that matter


def test_a_data_set_may_choose_its_network_and_the_user_another():
    assert composed(["data=cifar10"])["choices"]["model"] == "tfcnn"
    assert composed(["data=cifar10", "model=lenet"])["choices"]["model"] == "lenet"
    assert composed([])["choices"]["model"] == "mlpnet"


def test_an_algorithm_inherits_the_files_it_names():
    algo = composed(["algo=scamap", "algo.rs.alpha=0.25"])["algo"]
    assert list(algo) == ["rs", "hpm", "scaffold"]
    assert algo["rs"]["alpha"] == 0.25
    assert algo["hpm"]["during"] == ["personal"]
    assert composed(["algo=map", "~algo.hpm"])["algo"].keys() == {"rs"}
    assert composed(["algo=fedavg"])["algo"] == {}


def test_experiments_override_run_settings_and_the_command_line_overrides_them():
    config = composed(["experiment=map/fmnist_mlpnet", "rounds=7"])
    assert config["cohort"] == {"clients": 100, "fraction": 0.2, "seed": None}
    assert config["rounds"] == 7
    assert config["choices"]["data"] == "fmnist"


def test_a_configuration_is_plain_values():
    def walk(node: Any) -> None:
        assert type(node) in (dict, list, str, int, float, bool, type(None))
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(child)

    config = composed(["data=cifar10"])
    walk(config)
    assert "hydra" not in config
    assert "${" not in config["data"]["root"]
    assert OmegaConf.create(config)["rounds"] == 50


# ---------------------------------------------------------------- explaining
EXPLAINED = {
    "algo=fedrz": ("algo=fedrz: there is no such choice.", "'fedrs'"),
    "partition=dirichelt": ("partition=dirichelt: there is no such choice.", "'dirichlet'"),
    "experiment=nope": ("experiment=nope: there is no such choice.", "fedgela"),
    "roundz=3": ("roundz is not a setting.", "'rounds'"),
    "cohort.cleints=3": ("cohort.cleints is not a setting.", "'cohort.clients'"),
    "algo.rs.alhpa=1": ("algo.rs.alhpa is not a setting.", "'algo.rs.alpha'"),
    "partition.beta=1": ("partition.beta is a setting of partition=dirichlet", "not of the partition that is chosen"),
    "algo.scaffold.server_lr=1": ("algo.scaffold.server_lr is a setting of algo=scaffold, not of the algo that is",),
    "data.augment=[]": ("data.augment is a setting of data=cifar10 or", "not of the data that is chosen"),
    "optim.learning_rate=1": ("optim.learning_rate is not a setting.", "optim.lr"),
    "nonsense.key=1": ("nonsense.key is not a setting.", "Known:", "rounds"),
    "algo=3": ("not the name of a file", "algo=map"),
    "data=null": ("not the name of a file",),
    "algo=[": ("[",),
    "algo": ("algo: ", "key=value"),
    'seed="a': ("seed",),
    "seed=1,2": ("seed=1,2", "--multirun"),
}


@pytest.mark.parametrize("override", EXPLAINED)
def test_what_does_not_compose_is_explained(override):
    with pytest.raises(ConfigError) as error:
        composed([override])
    for part in EXPLAINED[override]:
        assert part in str(error.value)
    assert "Traceback" not in str(error.value)
    assert "struct" not in str(error.value)  # Hydra's words, not ours


def test_a_key_of_another_algorithm():
    with pytest.raises(ConfigError, match=r"algo\.rs\.alpha is a setting of algo=fedrs or .*, not of the algo that is"):
        composed(["algo=fedavg", "algo.rs.alpha=0.3"])


def test_composing_works_inside_a_job_and_again():
    from hydra import initialize_config_dir

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        assert composed(["rounds=4"])["rounds"] == 4
    assert composed(["rounds=5"])["rounds"] == 5


# ---------------------------------------------------------------- identity
def leaves(node: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(node, dict) and node:
        return [leaf for key, value in node.items() for leaf in leaves(value, (*path, key))]
    return [path]


def changed(config: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    other = copy.deepcopy(config)
    node = other
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = f"other than {node[path[-1]]}"
    return other


IRRELEVANT = {
    "out", "name", "plan", "force", "keep", "store", "tracker", "data.root", "data.cache", "data.download",
    "every.checkpoint", "probe", "evaluate.window", "evaluate.all_clients", "evaluate.finetune_epochs",
    "evaluate.missing", "evaluate.missing_clients", "loop.callbacks", "loop.loggers",
}  # fmt: skip


def test_the_id_changes_with_each_relevant_key_and_with_no_other():
    config = composed(["data=cifar10", "algo=scamap", "partition=dirichlet"])
    seen = {run_id(config)}
    for path in leaves(config):
        key, other = ".".join(path), run_id(changed(config, path))
        if key in IRRELEVANT or path[0] == "choices" or key in ("executor._target_", "loop._target_"):
            assert other == run_id(config), key
        else:
            assert other not in seen, key
            seen.add(other)
    assert len(seen) > 40


def test_runs_from_before_a_setting_of_what_is_measured_keep_their_ids():
    config = composed([])
    older = {**config, "evaluate": {k: v for k, v in config["evaluate"].items() if not k.startswith("missing")}}
    assert len(older["evaluate"]) == len(config["evaluate"]) - 2
    assert run_id(older) == run_id(config)


def test_the_id_does_not_depend_on_the_order_of_keys_or_on_what_else_is_composed():
    config = composed(["seed=3"])
    assert run_id(dict(reversed(config.items()))) == run_id(config)
    assert run_id(
        composed(["seed=3", "tracker=[wandb,tensorboard]", "tracker.wandb.tags=[x]", "out=/tmp/y"])
    ) == run_id(config)
    before = copy.deepcopy(config)
    run_id(config)
    assert config == before


def test_the_id_does_not_depend_on_the_loop():
    assert run_id(composed(["loop=fabric"])) == run_id(composed(["loop=trainer"]))
    assert run_id(composed(["loop.accelerator=cpu"])) != run_id(composed([]))


def test_the_id_depends_on_a_loop_that_stacks_clients():
    ids = [run_id(composed(o)) for o in (["loop=fabric"], ["loop=batched"], ["loop=batched", "loop.group=2"])]
    assert len(set(ids)) == 3
    moved = composed(["loop=batched"])
    moved["loop"]["_target_"] = "fedexp.elsewhere.BatchedLoop"
    assert run_id(moved) == ids[1]


@pytest.mark.parametrize("group", ["data", "partition", "model", "optim", "algo"])
def test_a_class_can_be_moved_and_renamed_without_orphaning_its_runs(group, monkeypatch):
    config = composed(["algo=fedrs"])
    moved, other = copy.deepcopy(config), copy.deepcopy(config)
    node, foreign = (c["algo"]["rs"] if group == "algo" else c[group] for c in (moved, other))
    name = node["_target_"].rpartition(".")[2]
    node["_target_"] = f"fedexp.elsewhere.deep.{name}"
    assert run_id(moved) == run_id(config)
    node["_target_"] = "fedexp.elsewhere.BetterName"
    assert run_id(moved) != run_id(config)
    monkeypatch.setitem(identity.RENAMED, "BetterName", name)
    assert run_id(moved) == run_id(config)
    foreign["_target_"] = f"mine.{name}"  # which is somebody else's class
    assert run_id(other) != run_id(config)


def test_no_two_targets_have_the_same_name():
    """By which alone they are known in ids."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        for target in re.findall(r"_target_: fedexp\.(\S+)", path.read_text()):
            found.setdefault(target.rpartition(".")[2], set()).add(target)
    assert [names for names in found.values() if len(names) > 1] == []
    assert found.keys().isdisjoint(identity.RENAMED.values())


@pytest.mark.parametrize("executor", choices_of("executor"))
def test_the_id_does_not_depend_on_where_the_work_runs(executor):
    assert run_id(composed([f"executor={executor}"])) == run_id(composed([]))
    config = composed([f"executor={executor}"])
    config["executor"]["threads"] = 2  # more than some machines have cores
    assert run_id(config) != run_id(composed([]))


def test_where_a_run_lives():
    config = composed(["out=/tmp/somewhere", "name=mine"])
    assert run_path(config) == Path("/tmp/somewhere/mine") / run_id(config)  # noqa: S108
    assert len(run_id(config)) == 10


def test_title():
    assert title(composed(["seed=4"])) == "map · digits · incomplete · mlpnet · seed 4"


def test_conf_dir_beside_the_package_or_inside_it(tmp_path, monkeypatch):
    assert (conf_dir() / "config.yaml").exists()
    package = tmp_path / "site-packages" / "fedexp"
    package.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(package / "config" / "sources.py"))
    assert conf_dir() == tmp_path / "site-packages" / "conf"
    (package / "conf").mkdir()
    assert conf_dir() == package / "conf"


def test_choices_of():
    assert choices_of("loop") == ["batched", "fabric", "trainer"]
    assert choices_of("nothing") == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["executor=processes", "executor.workers=0"], r"\(16 for each core\) or null, not 0$"),
        (["name=[b"], "with quotes around a value with special characters"),
    ],
)
def test_ranges_and_advice_can_be_read(overrides, words):
    with pytest.raises(ConfigError, match=words):
        composed(overrides)


@pytest.mark.parametrize(
    "value",
    ["/home/jörg/runs", "/home/jörg/my data", "Ω", "a b", 'say "ä"', "true", "a\\b", "a\\\\", 'a\\"b', "it's"],
)
def test_a_text_is_read_again_as_it_was(value):
    assert composed(["algo=fedavg", f"out={literal(value)}"])["out"] == value


@pytest.mark.parametrize(
    "value",
    [
        [{"a": 1, "b c": ["x y", None]}, {}], {"a:b": {"c-d": True, "e\\f": "g\\h"}}, [], [[1, 2.5], ["null", "ä"]],
    ],
)  # fmt: skip
def test_groups_and_lists_are_read_again_as_they_were(value):
    (override,) = parsed_overrides([f"+x={literal(value)}"])
    assert OmegaConf.create({"x": override.value()}) == OmegaConf.create({"x": value})


@pytest.mark.parametrize("override", ["+choices.foo=1", "+choices=5", "++choices={}"])
def test_what_was_chosen_is_no_setting(override):
    with pytest.raises(ConfigError, match="choices is not a setting"):
        composed([override])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("mpa/cifar10_tfcnn", "Did you mean 'map/cifar10_tfcnn'"),
        ("cifar10_tfcnn", "Did you mean 'map/cifar10_tfcnn'"),
        ("xyz/q", "Known: fedgela, fedmr, fedrema, fedrs, map."),
    ],
)
def test_a_scene_of_any_paper_may_be_the_nearest(wrong, words):
    with pytest.raises(ConfigError, match=rf"experiment={wrong}: there is no such choice\. {words}"):
        composed([f"experiment={wrong}"])
