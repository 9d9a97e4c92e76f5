"""Installed versions against what fedexp and the packages that it needs ask for."""

from __future__ import annotations

from importlib import metadata

import pytest

from fedexp.errors import FedexpError
from fedexp.system import versions


@pytest.fixture
def plant(monkeypatch):
    """Makes a package look as if another version of it, or none, were installed."""
    planted: dict[str, str | None] = {}
    real = versions.installed
    monkeypatch.setattr(versions, "installed", lambda name: planted.get(name, real(name)))
    return planted.update


def test_the_versions_that_are_installed_here_fit():
    assert versions.problems() == []


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("omegaconf", "2.4.0", "Hydra 1.3 does not work with OmegaConf 2.4"),
        ("omegaconf", "2.4.0.dev3", "fedexp needs omegaconf"),
        ("torch", "2.13.0", "its CPU wheel does not work with torchvision"),
        ("torch", "2.13.0+cpu", "its CPU wheel does not work with torchvision"),
        ("lightning", "2.6.3", "malicious"),
        ("pytorch-lightning", "2.6.2", "malicious"),
        ("hydra-core", "1.4.0", "fedexp needs hydra-core"),
        ("ray", "2.58.0", "asks for no token"),
        ("wandb", "0.20", "fedexp needs wandb"),
    ],
)
def test_a_bad_version_is_named_with_the_reason_and_the_remedy(plant, name, version, words):
    plant({name: version})
    (problem,) = (p for p in versions.problems() if p.startswith(name + " "))
    assert f"{name} {version} is installed" in problem
    assert words in problem
    assert f"pip install '{name}" in problem


@pytest.mark.parametrize("version", ["2.15.0+cpu", "2.15.0"])
def test_a_build_for_a_device_is_the_version_that_it_is_of(plant, version):
    plant({"torch": version})
    assert versions.problems() == []


def test_packages_that_do_not_fit_each_other_are_found(plant):
    """Of antlr4 fedexp itself says nothing; Hydra and OmegaConf do."""
    plant({"antlr4-python3-runtime": "4.13.2"})
    (problem,) = versions.problems()
    assert problem.startswith("antlr4-python3-runtime 4.13.2 is installed, but ")
    assert "needs antlr4-python3-runtime==4.9.*" in problem


def test_a_package_that_every_run_needs_is_missed_and_an_extra_is_not(plant):
    plant({"torchvision": None, "ray": None, "wandb": None})
    (problem,) = versions.problems()
    assert problem.startswith("torchvision is not installed. pip install 'torchvision")


def test_away_from_a_checkout_the_installed_package_says_what_is_needed(monkeypatch, tmp_path):
    inside = versions.needed()
    assert [r.name for r in inside["ray"]] == ["ray"]
    assert "dev" not in inside
    lines = [
        *(str(r) for r in inside[""]),
        *(f"{r}; extra == '{extra}'" for extra, requirements in inside.items() if extra for r in requirements),
    ]
    monkeypatch.setattr(versions, "PROJECT", tmp_path / "pyproject.toml")
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    found = versions.needed()
    assert found[""] == inside[""]
    assert {k: [r.name for r in v] for k, v in found.items()} == {k: [r.name for r in v] for k, v in inside.items()}


def test_without_any_declaration_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(versions, "PROJECT", tmp_path / "pyproject.toml")

    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", absent)
    with pytest.raises(FedexpError, match="neither installed nor in a checkout"):
        versions.needed()
