"""``python -m fedexp.doctor``: what it says of a sound machine and of planted faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedexp import doctor
from fedexp.data.catalog import CATALOG
from fedexp.system import versions


@pytest.fixture
def examined(capsys, tmp_path, monkeypatch):
    """Runs the command; returns its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "500")

    def examine(*argv: str) -> tuple[int, str]:
        code = doctor.main([f"out={tmp_path / 'runs'}", f"root={tmp_path}", *argv])
        said = capsys.readouterr()
        assert said.err == ""
        return code, " ".join(said.out.split())

    return examine


def plant(monkeypatch, name: str, version: str | None) -> None:
    real = versions.installed
    monkeypatch.setattr(versions, "installed", lambda n: version if n == name else real(n))


def test_a_sound_machine(examined, tmp_path):
    code, said = examined()
    assert code == 0
    assert said.endswith("fedexp can be used here.")
    assert "problem" not in said
    for topic in ("cores", "threads", "devices", "memory", "disk", "data digits", "versions torch 2."):
        assert topic in said
    assert not (tmp_path / "runs").exists()


def test_data_sets_that_are_there_and_those_that_are_not(examined, tmp_path):
    assert "not in" in examined()[1].partition("mnist")[0]
    for pattern in CATALOG["mnist"].places[0]:
        (tmp_path / pattern).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / pattern).touch()
    here, _, missing = examined()[1].partition("not in")
    assert "digits, mnist," in here
    assert "svhn" in missing
    assert f" {tmp_path}: " in missing


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("omegaconf", "2.4.1", "omegaconf 2.4.1 is installed, but fedexp needs omegaconf<2.4,>=2.3"),
        ("torch", "2.13.0", "torch 2.13.0 is installed"),
        ("torchvision", None, "torchvision is not installed. pip install 'torchvision"),
    ],
)
def test_bad_versions(examined, monkeypatch, name, version, words):
    plant(monkeypatch, name, version)
    code, said = examined()
    assert code == 1
    assert f"problem: {words}" in said
    assert "can be used here" not in said


@pytest.mark.parametrize(("name", "extra"), [("wandb", "wandb"), ("ray", "ray"), ("submitit", "slurm")])
def test_what_is_optional_may_be_absent(examined, monkeypatch, name, extra):
    plant(monkeypatch, name, None)
    code, said = examined()
    assert code == 0
    assert f"without {extra}: pip install 'fedexp[{extra}]'" in said


@pytest.mark.parametrize("module", ["torch", "torchvision"])
def test_torch_that_cannot_be_imported(examined, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    code, said = examined()
    assert code == 1
    assert "problem: torch and torchvision cannot be imported (ModuleNotFoundError" in said


def test_a_wrong_number_of_cores(examined, monkeypatch):
    monkeypatch.setenv("FEDEXP_CORES", "two")
    code, said = examined()
    assert code == 1
    assert "FEDEXP_CORES must be a whole number above 0, not 'two'" in said
    monkeypatch.setenv("FEDEXP_CORES", "1")
    assert "1 of" in examined()[1]


def test_little_memory(examined, monkeypatch):
    monkeypatch.setattr(doctor, "available_memory", lambda: 200_000_000)
    code, said = examined()
    assert code == 1
    assert "problem: 200 MB of memory are free, and a small run needs 1.00 GB." in said


def test_runs_that_cannot_be_written(examined, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    code, said = examined(f"out={tmp_path / 'file' / 'runs'}")
    assert code == 1
    assert f"Nothing can be written to {tmp_path / 'file'}. Let runs go elsewhere: out=FOLDER." in said
    monkeypatch.setattr(doctor, "LEAST_DISK", 10**18)
    assert "Make room" in examined()[1]


def test_help_and_wrong_arguments(capsys):
    assert doctor.main(["--help"]) == 0
    assert "--out FOLDER" in capsys.readouterr().out
    assert doctor.main(["--fast"]) == 2
    assert "--fast is not known here" in capsys.readouterr().err


def test_it_needs_neither_torch_nor_hydra_to_begin():
    heavy = ("torch", "lightning", "hydra", "omegaconf", "wandb", "ray")
    code = f"import sys, fedexp.doctor; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
