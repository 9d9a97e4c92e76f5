"""Which code a configuration may name, and that nothing of it runs before it is allowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedexp.config import targets
from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.config.sources import conf_dir
from fedexp.config.targets import KINDS, NESTED, refusal
from fedexp.errors import ConfigError

TRAP = "import pathlib\npathlib.Path('{mark}').touch()\n"
STARTS = [["-m", "fedexp"], [str(Path(sys.executable).parent / "fedexp")]]
PROX = """
from dataclasses import dataclass
from fedexp.core.component import Component

@dataclass(frozen=True, kw_only=True)
class Prox(Component):
    mu: float = 0.1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, and a Python that forgets what it imports from there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setattr(targets, "_folders", [])
    yield tmp_path
    for name in ("mine", "pack", "pack.mine", "besides", "installed", "installed.inner"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("group", KINDS)
def test_everything_in_our_files_may_be_named(group):
    lines = [line for p in (conf_dir() / group).glob("*.yaml") for line in p.read_text().splitlines()]
    named = [line.split("_target_:")[1].split()[0] for line in lines if "_target_:" in line]
    assert named
    nested = [t for t in named if any(t.startswith(kind.library) for kind in NESTED.values())]
    assert [refusal(target, group) for target in named if target not in nested] == [None] * (len(named) - len(nested))


def test_a_logger_of_lightning_may_be_named_as_a_logger_only():
    target = "lightning.pytorch.loggers.CSVLogger"
    assert refusal(target, "logger") is None
    assert "is neither" in str(refusal(target, "tracker"))
    assert "is neither" in str(refusal("lightning.pytorch.Trainer", "logger"))


@pytest.mark.parametrize("module", ["installed", "installed.inner"])
def test_what_is_refused_is_not_imported(folder, tmp_path_factory, monkeypatch, module):
    elsewhere, mark = tmp_path_factory.mktemp("packages"), folder / "mark"
    (elsewhere / "installed").mkdir()
    for name in ("__init__", "inner"):
        (elsewhere / "installed" / f"{name}.py").write_text(TRAP.format(mark=mark) + PROX)
    monkeypatch.syspath_prepend(elsewhere)
    with pytest.raises(ConfigError, match=rf"algo\.rs\._target_: '{module}\.Prox' is .* FEDEXP_ALLOW=installed"):
        composed(["algo=fedrs", f"algo.rs={{_target_: {module}.Prox}}", "~algo.rs.alpha", "~algo.rs.mode"])
    assert not mark.exists()
    monkeypatch.setenv("FEDEXP_ALLOW", "other, installed")
    assert make({"_target_": f"{module}.Prox", "mu": 0.5}).mu == 0.5
    assert mark.exists()


def test_a_name_that_begins_like_an_allowed_one_is_another(monkeypatch):
    monkeypatch.setenv("FEDEXP_ALLOW", "instal")
    assert refusal("installed.Prox", "algo")
    assert refusal("instal.Prox", "algo") is None


@pytest.mark.parametrize("where", ["mine.py", "pack/mine.py", "pack/mine/__init__.py"])
def test_the_current_folder_is_open_however_python_was_started(folder, where):
    (folder / where).parent.mkdir(parents=True, exist_ok=True)
    (folder / where).write_text(PROX)
    name = where.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert str(folder) not in sys.path
    assert composed(["algo=fedavg", f"+algo.x={{_target_: {name}.Prox, mu: 0.5}}"])["algo"]["x"]["mu"] == 0.5
    assert make({"_target_": f"{name}.Prox"}).mu == 0.1


def test_a_folder_of_configurations_is_open_too(folder, tmp_path_factory):
    own = tmp_path_factory.mktemp("own")
    (own / "besides.py").write_text(PROX)
    assert refusal("besides.Prox", "algo")
    targets.allow(own)
    assert refusal("besides.Prox", "algo") is None
    assert make({"_target_": "besides.Prox"}).mu == 0.1


def test_a_file_with_the_name_of_something_installed(folder):
    """Python would import the other one, which nobody has allowed."""
    (folder / "rich.py").write_text(PROX)
    with pytest.raises(ConfigError, match=r"rich is .*rich\.py, but Python knows another .* Rename it"):
        make({"_target_": "rich.Prox"})
    (folder / "os.py").write_text("def system(command): ...\n")
    assert refusal("os.system", "model")


def test_annotations_are_not_executed(folder):
    (folder / "mine.py").write_text(f"{PROX}    other: open('mark', 'w') = 3\n")
    composed(["algo=fedavg", "+algo.x={_target_: mine.Prox, other: 4}"])
    assert not (folder / "mark").exists()


@pytest.mark.parametrize("start", STARTS, ids=["-m", "script"])
def test_both_commands_import_from_the_current_folder_also_in_workers(tmp_path, start):
    (tmp_path / "mine.py").write_text(PROX)
    (tmp_path / "own" / "algo").mkdir(parents=True)
    (tmp_path / "own" / "algo" / "prox.yaml").write_text("prox:\n  _target_: mine.Prox\n  mu: 0.1\n  during: [local]\n")
    small = ["rounds=1", "local.epochs=1", "cohort.clients=4", "model.hidden=[8]", "evaluate.all_clients=false"]
    command = [sys.executable, *start, "--config-dir", "own", "algo=prox", "executor=processes", "executor.workers=1"]
    done = subprocess.run([*command, *small], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "prox · digits" in done.stdout


@pytest.mark.parametrize("start", STARTS, ids=["-m", "script"])
def test_version(start):
    done = subprocess.run([sys.executable, *start, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("fedexp ")
