"""Installed packages that bring configuration files: theirs work as ours do, and nothing else is opened by them."""

from __future__ import annotations

import site as site_module
import subprocess
import sys

import pytest

from fedexp.config import targets
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.identity import run_id, run_path
from fedexp.config.make import make
from fedexp.config.packages import packages
from fedexp.errors import ConfigError
from fedexp.runs import status

CODE = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()

from dataclasses import dataclass
from fedexp.core.component import Component
from fedexp.core.ranges import NotNegative

@dataclass(frozen=True, kw_only=True)
class Tame(Component):
    weight: NotNegative = 0.1

    def loss(self, step):
        return self.weight * step.h.square().mean()
"""
YAML = "tame:\n  _target_: {target}\n  weight: 0.1\n  during: [local]\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder in which packages are installed; Python forgets what it imports from there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(targets, "_folders", [])
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tamed", "other")]:
        del sys.modules[name]


@pytest.fixture
def install(site, monkeypatch):
    """Installs a package with a component and a configuration that names it, as pip would have put it there."""

    def put(name="tamed", declares="tamed.conf", target="tamed.method.Tame", choice="tame"):
        (site / name / "conf" / "algo").mkdir(parents=True)
        (site / name / "__init__.py").touch()
        (site / name / "method.py").write_text(CODE)
        (site / name / "conf" / "algo" / f"{choice}.yaml").write_text(YAML.format(target=target))
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        if declares:
            (info / "entry_points.txt").write_text(f"[fedexp.conf]\n{name} = {declares}\n")
        monkeypatch.syspath_prepend(site)  # a path that is not known yet, so that nothing is remembered of it
        return site / name

    return put


def test_there_is_none_if_nobody_declares_one():
    assert packages() == ()


def test_its_files_are_choices_and_its_code_is_imported_when_it_is_used(install):
    home = install()
    assert "tame" in choices_of("algo")
    config = composed(["algo=tame", "algo.tame.weight=0.5"])
    assert not (home / "imported").exists()
    assert make(config["algo"]["tame"]).weight == 0.5
    assert (home / "imported").exists()


def test_its_settings_are_checked_and_the_nearest_name_is_given(install):
    install()
    with pytest.raises(ConfigError, match=r"algo=taem: there is no such choice\. Did you mean 'tame'"):
        composed(["algo=taem"])
    with pytest.raises(ConfigError, match=r"algo\.tame\.wieght is not a setting\. Did you mean 'algo\.tame\.weight'"):
        composed(["algo=tame", "algo.tame.wieght=1"])
    with pytest.raises(ConfigError, match=r"algo\.tame\.weight must be 0 or more, not -1"):
        composed(["algo=tame", "algo.tame.weight=-1"])


def test_the_run_id_does_not_depend_on_where_in_the_package_the_class_is(install, site):
    home = install()
    before = run_id(composed(["algo=tame"]))
    (home / "inner").mkdir()
    (home / "method.py").rename(home / "inner" / "__init__.py")
    (home / "conf" / "algo" / "tame.yaml").write_text(YAML.format(target="tamed.inner.Tame"))
    assert run_id(composed(["algo=tame"])) == before
    assert run_id(composed(["algo=tame", "algo.tame.weight=1"])) != before


def test_a_package_that_declares_nothing_stays_closed(install, monkeypatch):
    home = install(declares=None)
    assert "tame" not in choices_of("algo")
    with pytest.raises(ConfigError, match=r"'tamed\.method\.Tame' is neither in fedexp.* FEDEXP_ALLOW=tamed"):
        composed(["algo=fedavg", "+algo.x={_target_: tamed.method.Tame}"])
    assert not (home / "imported").exists()
    monkeypatch.setenv("FEDEXP_ALLOW", "tamed")
    assert composed(["algo=fedavg", "+algo.x={_target_: tamed.method.Tame}"])["algo"]["x"]


@pytest.mark.parametrize("target", ["os.system", "other.method.Tame", "tamedother.Tame", "fedexp.cli.main"])
def test_it_opens_no_code_but_its_own(install, target):
    install(target=target)
    other = install(name="other", declares=None)
    with pytest.raises(ConfigError, match=rf"algo\.tame\._target_: '{target}' (is neither|belongs to fedexp)"):
        composed(["algo=tame"])
    assert not (other / "imported").exists()


@pytest.mark.parametrize("declares", ["tamed.nothing", "os", "fedexp.models", "missing.conf", "tamed:conf", "../x"])
def test_a_declaration_of_what_is_not_its_own_folder_is_refused(install, declares):
    install(declares=declares)
    with pytest.raises(ConfigError, match=r"package tamed declares the entry point tamed = .* pip uninstall tamed"):
        composed(["algo=map"])


def test_metadata_in_the_current_folder_does_not_speak_for_installed_packages(install, tmp_path, monkeypatch):
    install(declares=None)
    info = tmp_path / "shared-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shared\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedexp.conf]\nshared = tamed.conf\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"package shared declares the entry point shared = tamed\.conf"):
        composed(["algo=tame"])
    monkeypatch.setattr(site_module, "getsitepackages", lambda: [str(tmp_path)])  # as an editable package is installed
    monkeypatch.syspath_prepend(tmp_path)
    assert "tame" in choices_of("algo")


def test_a_file_in_two_places_is_refused_when_it_is_asked_for(install):
    home = install(choice="map")
    assert composed(["algo=fedavg"])["choices"]["algo"] == "fedavg"
    with pytest.raises(ConfigError, match=rf"algo/map\.yaml is in \S+ and {home}/conf, .* Rename it"):
        composed(["algo=map"])


def test_a_run_of_its_choices_is_continued_by_a_command_that_status_shows(install, configured, tmp_path):
    config = {**configured(), "choices": {"algo": "tame"}}
    assert "algo=tame is not a choice" in status._remedy(tmp_path, None, config)[0]
    install()
    config = composed(["algo=tame", f"out={tmp_path}"])
    note, command = status._remedy(run_path(config), None, config)
    assert (note, command) == ("", f"python -m fedexp algo=tame out={tmp_path}")


def test_the_command_line_runs_it_in_workers_and_lists_it(install, tmp_path, monkeypatch):
    install()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    command = [sys.executable, "-m", "fedexp"]
    listed = subprocess.run([*command, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ", tame" in listed.stdout
    small = ["rounds=1", "local.epochs=1", "cohort.clients=4", "model.hidden=[8]", "evaluate.all_clients=false"]
    workers = ["executor=processes", "executor.workers=1"]
    done = subprocess.run(
        [*command, "algo=tame", *workers, *small], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "tame · digits" in done.stdout
