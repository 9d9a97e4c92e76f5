"""Image data sets in their own file formats, read as torchvision reads them; what is missing, wrong or damaged."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from fedexp.data import verify
from fedexp.data.catalog import CATALOG, CIFAR10, IDX
from fedexp.data.formats import read_cifar, unpack_tar, write_cifar
from fedexp.data.images import READERS, Images
from fedexp.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


# ---------------------------------------------------------------- writing files in the formats
def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    code, kind = (12, ">i4") if values.dtype == np.int32 else (8, "u1")
    header = bytes([0, 0, code, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    path.write_bytes(header + values.astype(kind).tobytes())


def write_mnist(folder: Path, names=IDX, sizes=(12, 5), classes=10) -> None:
    for (images, labels), n in zip((names[:2], names[2:]), sizes, strict=True):
        write_idx(folder / images, RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        write_idx(folder / labels, RNG.integers(0, classes, n).astype(np.uint8))


def write_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in CIFAR10:
        write_cifar(folder / name, RNG.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8), RNG.integers(0, 10, 3))


def write_cifar100(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, n in (("train", 6), ("test", 4)):
        fine, coarse = RNG.integers(0, 100, n).tolist(), RNG.integers(0, 20, n).tolist()
        data = RNG.integers(0, 256, (n, 3072), dtype=np.uint8)
        content = {"data": data, "fine_labels": fine, "coarse_labels": coarse}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"class {i}" for i in range(100)]}))


def write_svhn(root: Path) -> None:
    for part, n in (("train", 7), ("test", 3)):
        stored = {"X": RNG.integers(0, 256, (32, 32, 3, n), dtype=np.uint8), "y": RNG.integers(1, 11, (n, 1), np.uint8)}
        savemat(root / f"{part}_32x32.mat", stored)


def write_cinic10(folder: Path) -> None:
    for part, n in (("train", 2), ("valid", 1), ("test", 1)):
        for label in ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"):
            own = folder / part / label
            own.mkdir(parents=True)
            for i in range(n):
                Image.fromarray(RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(own / f"n{i}.png")


WRITERS = {
    "mnist": lambda root: write_mnist(root / "MNIST" / "raw"),
    "fmnist": lambda root: write_mnist(root / "FashionMNIST" / "raw"),
    "emnist": lambda root: write_mnist(
        root / "EMNIST" / "raw", [f"emnist-byclass-{n.replace('t10k', 'test')}" for n in IDX], classes=62
    ),
    "cifar10": lambda root: write_cifar10(root / "cifar-10-batches-py"),
    "cifar100": lambda root: write_cifar100(root / "cifar-100-python"),
    "svhn": write_svhn,
    "cinic10": lambda root: write_cinic10(root / "CINIC-10"),
}
SAMPLES = {"cifar10": (15, 3), "cifar100": (6, 4), "svhn": (7, 3), "cinic10": (20, 10)}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a small data set whose checksums and sizes are made known as the published ones."""

    def write(name: str) -> Path:
        root = tmp_path / "root"
        root.mkdir(exist_ok=True)
        WRITERS[name](root)
        monkeypatch.setitem(CATALOG, name, replace(CATALOG[name], samples=SAMPLES.get(name, (12, 5))))
        files = CATALOG[name].find(root)
        sums = {f.name: [f"sha256:{hashlib.sha256(f.read_bytes()).hexdigest()}"] for f in files if f.is_file()}
        monkeypatch.setitem(verify.CHECKSUMS, name, sums)
        return root

    return write


def images(name: str, root: Path, **changes) -> Images:
    channels = 1 if "mnist" in name else 3
    given = {"size": None, "mean": (0.5,) * channels, "std": (0.5,) * channels, "augment": (), "download": False}
    return Images(**{"dataset": name, "root": str(root), "cache": None, "verify": True, **given, **changes})


def by_torchvision(name: str, root: Path, monkeypatch) -> list[tuple[np.ndarray, list[int]]]:
    """Both parts as torchvision reads them, [N, C, H, W]; its own checksums are made to fit."""
    md5 = {
        p.name: hashlib.md5(p.read_bytes(), usedforsecurity=False).hexdigest() for p in root.rglob("*") if p.is_file()
    }
    if name in ("mnist", "fmnist", "emnist"):
        kind = {"mnist": datasets.MNIST, "fmnist": datasets.FashionMNIST, "emnist": datasets.EMNIST}[name]
        more = {"split": "byclass"} if name == "emnist" else {}
        parts = [kind(root, train=train, **more) for train in (True, False)]
        turn = np.transpose if name == "emnist" else np.asarray  # torchvision leaves EMNIST lying on its side
        return [([turn(np.asarray(image))[None] for image, _ in part], part.targets.tolist()) for part in parts]
    if name == "svhn":
        table = {k: ["", f"{k}_32x32.mat", md5[f"{k}_32x32.mat"]] for k in ("train", "test")}
        monkeypatch.setattr(datasets.SVHN, "split_list", table)
        parts = [datasets.SVHN(root, split=part) for part in ("train", "test")]
        return [(part.data, part.labels.tolist()) for part in parts]
    if name == "cinic10":
        parts = [datasets.ImageFolder(root / "CINIC-10" / part) for part in ("train", "test")]
        return [([np.asarray(i).transpose(2, 0, 1) for i, _ in part], part.targets) for part in parts]
    kind = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
    for attribute in ("train_list", "test_list"):
        monkeypatch.setattr(kind, attribute, [[n, md5[n]] for n, _ in getattr(kind, attribute)])
    monkeypatch.setattr(kind, "_load_meta", lambda self: None)
    parts = [kind(root, train=train) for train in (True, False)]
    return [(part.data.transpose(0, 3, 1, 2), part.targets) for part in parts]


# ---------------------------------------------------------------- reading
@pytest.mark.parametrize("name", READERS)
def test_files_are_read_as_torchvision_reads_them(name, written, monkeypatch):
    root = written(name)
    loaded = images(name, root).load()
    for samples, (pixels, labels) in zip(
        (loaded.train, loaded.test), by_torchvision(name, root, monkeypatch), strict=True
    ):
        torch.testing.assert_close(samples.x, torch.from_numpy(np.asarray(pixels)) / 255 * 2 - 1)
        assert samples.y.tolist() == list(labels)
        assert samples.y.dtype == torch.int64
    assert loaded.spec.n_classes == CATALOG[name].classes
    assert loaded.spec.shape == loaded.train.x.shape[1:]
    assert (loaded.augment, loaded.owners) == (None, None)


@pytest.mark.parametrize("name", ["mnist", "emnist"])
def test_packed_idx_files_are_read_without_unpacking_them(name, written):
    root = written(name)
    plain = images(name, root).load()
    for path in CATALOG[name].find(root):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    packed = images(name, root).load()
    assert torch.equal(plain.train.x, packed.train.x)
    assert torch.equal(plain.test.y, packed.test.y)


def test_debians_fashion_mnist_is_found(written, tmp_path, monkeypatch):
    root = written("fmnist")
    before = images("fmnist", root).load()
    debian = tmp_path / "usr" / "share" / "datasets" / "fashion-mnist"
    debian.mkdir(parents=True)
    for path in CATALOG["fmnist"].find(root):
        (debian / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    places = [
        tuple(p.replace("/usr/share/datasets/fashion-mnist", str(debian)) for p in g) for g in CATALOG["fmnist"].places
    ]
    assert places[-1] != CATALOG["fmnist"].places[-1]
    monkeypatch.setitem(CATALOG, "fmnist", replace(CATALOG["fmnist"], places=tuple(places)))
    assert torch.equal(images("fmnist", tmp_path / "nothing").load().train.x, before.train.x)


def test_images_are_resized_and_home_is_understood(written, monkeypatch):
    root = written("mnist")
    monkeypatch.setenv("HOME", str(root.parent))
    loaded = images("mnist", Path("~") / root.name, size=32).load()
    assert loaded.train.x.shape == (12, 1, 32, 32)
    assert loaded.spec.shape == (1, 32, 32)


def test_official_batches_with_file_names_and_old_pickles_are_read(tmp_path):
    pixels, labels = RNG.integers(0, 256, (4, 3072), dtype=np.uint8), [1, 2, 3, 4]
    content = {"batch_label": "training batch 1 of 5", "labels": labels, "data": pixels, "filenames": ["a.png"] * 4}
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(content, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    x, y = read_cifar(path)
    assert np.array_equal(x.reshape(4, -1), pixels)
    assert y.tolist() == labels


def test_an_unknown_data_set_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"data.dataset is 'fmnst'.*Did you mean 'fmnist'\?"):
        images("fmnst", tmp_path).load()


def packed(path, **contents):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))


def test_a_tar_archive_is_unpacked_with_its_folders(tmp_path):
    packed(tmp_path / "a.tgz", **{"x": b"1", "deep/down/y": b"22"})
    unpack_tar(tmp_path / "a.tgz", tmp_path / "out")
    files = {str(p.relative_to(tmp_path / "out")): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert files == {"x": b"1", "deep/down/y": b"22"}


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_a_tar_archive_writes_nothing_outside(tmp_path, name):
    packed(tmp_path / "a.tgz", **{name: b"1"})
    with pytest.raises(DataError, match="outside"):
        unpack_tar(tmp_path / "a.tgz", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["a.tgz"]
