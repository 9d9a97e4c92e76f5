"""Run settings are declared once: what the configuration file, the checks, the ids and the engine have is that."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from typing import Any, get_type_hints

import pytest
import yaml

from fedexp.client.messages import Local
from fedexp.config import __main__ as command
from fedexp.config import identity, settings
from fedexp.config.compose import composed
from fedexp.config.documented import BEGIN, documented, rewritten
from fedexp.config.identity import run_id
from fedexp.config.schema import problems
from fedexp.config.settings import LocalSettings, MishapSettings, Settings, leaves, setting, without_influence
from fedexp.config.sources import conf_dir
from fedexp.config.targets import KINDS
from fedexp.config.values import wanted
from fedexp.server.sampler import ClientDropouts

FILE = conf_dir() / "config.yaml"


def hint_of(key: str) -> Any:
    *groups, last = key.split(".")
    owner: Any = Settings
    for name in groups:
        owner = get_type_hints(owner)[name]
    return get_type_hints(owner, include_extras=True)[last]


def test_the_configuration_file_is_what_is_declared():
    text = FILE.read_text()
    assert rewritten(text) == text, "Call `python -m fedexp.config`."
    keys = yaml.safe_load(text).keys() - {"defaults", "hydra", "probe", "tracker"}  # of which there may be none
    assert keys == {each.name for each in fields(Settings)}


def test_the_defaults_are_those_of_a_composed_configuration():
    config = composed([])
    assert asdict(Settings()) == {k: v for k, v in config.items() if k not in KINDS and k != "choices"}


@pytest.mark.parametrize(("key", "declared"), list(leaves()), ids=lambda v: v if isinstance(v, str) else "")
def test_every_setting_has_a_line_of_documentation_and_a_default_that_it_allows(key, declared):
    assert declared.metadata["doc"].strip()
    assert "\n" not in declared.metadata["doc"]
    assert wanted(declared.default, hint_of(key)) is None


def test_every_group_is_documented_and_no_line_is_too_long_to_read():
    groups = [each for each in fields(Settings) if is_dataclass(each.default_factory)]
    assert {each.name for each in groups} >= {"cohort", "local", "mishaps", "every"}
    lines = documented().splitlines()
    assert len(lines) == len(list(leaves())) + len(groups)
    assert [line for line in lines if "  # " not in line or len(line) > 120] == []
    assert "keep: model             # model | all: after the run, keep" in documented()


def test_given_values_are_shown_in_place_of_the_defaults():
    config = composed(["rounds=7", "local.clip=null", "name=a/b", "every.evaluate=3"])
    shown = yaml.safe_load(documented(config))
    assert shown == {k: config[k] for k in shown}
    assert shown["local"]["clip"] is None


def test_a_file_that_disagrees_is_written_anew(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.yaml").write_text(FILE.read_text().replace("rounds: 50", "rounds: 5"))
    monkeypatch.setattr(command, "conf_dir", lambda: tmp_path)
    assert command.main([]) == 0
    assert "config.yaml: written" in capsys.readouterr().out
    assert (tmp_path / "config.yaml").read_text() == FILE.read_text()
    assert command.main([]) == 0
    assert "config.yaml: up to date" in capsys.readouterr().out


def test_a_file_without_a_place_for_the_settings_is_left_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    monkeypatch.setattr(command, "conf_dir", lambda: tmp_path)
    assert command.main([]) == 2
    assert BEGIN in capsys.readouterr().err
    assert (tmp_path / "config.yaml").read_text() == "seed: 1\n"


def test_what_changes_no_number_is_not_in_the_id():
    config = composed([])
    assert {"out", "plan", "every.checkpoint"} <= set(without_influence())
    assert not {"seed", "rounds", "local.epochs", "every.evaluate", "pool"} & set(without_influence())
    for key in without_influence():
        *groups, last = key.split(".")
        other = composed([])
        (other[groups[0]] if groups else other)[last] = "something else"
        assert run_id(other) == run_id(config), key


def test_a_setting_that_is_new_leaves_the_ids_of_runs_that_do_without_it(monkeypatch):
    @dataclass(frozen=True)
    class Grown:
        seed: int = setting(0, "as ever")
        public: int = setting(3, "samples at the server; the default may change later", as_before=0)

    monkeypatch.setattr(settings, "leaves", partial(leaves, Grown))
    monkeypatch.setattr(identity, "AS_BEFORE", settings.as_before())
    config = composed([])
    assert run_id({**config, "public": 0}) == run_id(config)
    assert len({run_id({**config, "public": n}) for n in (0, 1, 3, None)}) == 4


def test_the_parts_of_a_run_take_the_declared_settings_and_no_others():
    assert [f.name for f in fields(Local)] == [*(f.name for f in fields(LocalSettings)), "schedule"]
    assert [f.name for f in fields(ClientDropouts)] == [*(f.name for f in fields(MishapSettings)), "seed"]
    config = composed(["mishaps.slow=0.25", "local.batch_size=3"])
    assert Local(**config["local"]).batch_size == 3
    assert ClientDropouts(4, **config["mishaps"]).slow == 0.25


def test_a_group_of_the_schema_is_either_declared_or_has_a_target():
    config = composed([])
    config.pop("choices")
    assert config.keys() == {each.name for each in fields(Settings)} | KINDS.keys()
    (problem,) = problems({**config, "extra": 1})
    assert problem.startswith("extra is not a setting.")


def test_settings_are_declared_without_torch():
    code = "import sys, fedexp.config.settings, fedexp.config.documented; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
