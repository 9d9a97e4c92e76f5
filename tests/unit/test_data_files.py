"""Image data sets in their own file formats, read as torchvision reads them; what is missing, wrong or damaged."""

from __future__ import annotations

import gzip
import hashlib
import pickle
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
from fedexp.data.formats import read_cifar, read_idx, write_cifar
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


# ---------------------------------------------------------------- what is missing, wrong or damaged
@pytest.mark.parametrize("name", READERS)
def test_missing_files_are_named_with_the_ways_to_get_them(name, written, tmp_path):
    root = written(name)
    lost = CATALOG[name].find(root)[-1]
    moved = tmp_path / "moved"
    (lost.parent if name == "cinic10" else lost).rename(moved)
    with pytest.raises(DataError) as caught:
        images(name, root).load()
    message = str(caught.value)
    assert str(lost.parent if name == "cinic10" else lost) in message
    for way in ("data.root=<folder>", "FEDEXP_DATA", f"python -m fedexp.data fetch {name}", "data.download=false"):
        assert way in message


@pytest.mark.parametrize("name", [n for n in READERS if n != "cinic10"])
@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-7], lambda raw: b"<html>", lambda raw: b""], ids=["cut", "html", "empty"]
)
def test_a_wrong_file_is_named_with_the_checksum_it_should_have(name, damage, written):
    root = written(name)
    path = CATALOG[name].find(root)[0]
    expected = verify.CHECKSUMS[name][path.name][0]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        images(name, root).load()
    message = str(caught.value)
    assert f"{path} ({path.stat().st_size:,} bytes) is not the published file: expected {expected}" in message
    for way in (f"fedexp.data fetch {name}", "data.root", "data.verify=false"):
        assert way in message


@pytest.mark.parametrize(
    ("name", "damage", "fault"),
    [
        ("mnist", lambda raw: raw[:-100], r"holds 9,324 bytes, but its header \[12, 28, 28\] promises 9,424"),
        ("mnist", lambda raw: b"<html>", r"\(6 bytes\) does not begin like an idx file"),
        ("mnist", lambda raw: b"", r"\(0 bytes\) does not begin"),
        ("cifar10", lambda raw: raw[:-1], r"bytes\) is not a pickled batch of N × 3072 bytes with N labels"),
        ("cifar100", lambda raw: b"", "is not a pickled batch"),
        ("svhn", lambda raw: raw[:200], r"is not a Matlab file with X \[32, 32, 3, N\] and y \[N, 1\]"),
    ],
)
def test_a_damaged_file_is_named_where_checksums_are_not_asked_for(name, damage, fault, written):
    root = written(name)
    path = CATALOG[name].find(root)[0]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"{path.name}.*{fault}.*Delete it and get it again"):
        images(name, root, verify=False).load()


def test_a_damaged_packed_file_is_named(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + bytes(100))[:-10])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz \(\d+ bytes\) cannot be read"):
        read_idx(path)


def test_a_broken_image_in_a_folder_is_named(written):
    root = written("cinic10")
    path = root / "CINIC-10" / "train" / "cat" / "n1.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"cat/n1.png \(60 bytes\) is not an image like the others"):
        images("cinic10", root).load()


def test_a_folder_with_too_few_images_is_refused(written):
    root = written("cinic10")
    (root / "CINIC-10" / "train" / "cat" / "n1.png").unlink()
    with pytest.raises(DataError, match="has 19 training images instead of 20"):
        images("cinic10", root).load()
    assert len(images("cinic10", root, verify=False).load().train) == 19


def test_images_without_labels_are_refused(written):
    root = written("mnist")
    write_idx(root / "MNIST" / "raw" / IDX[1], np.arange(11) % 10)
    with pytest.raises(DataError, match="12 training images and 11 labels from 0 to 9; 10 classes were expected"):
        images("mnist", root, verify=False).load()


def test_pixels_decide_where_a_batch_is_packed_otherwise(written, monkeypatch):
    root = written("cifar10")
    path = root / "cifar-10-batches-py" / "data_batch_2"
    pixels, labels = read_cifar(path)
    digest = hashlib.sha256(pixels.tobytes() + bytes(labels.tolist())).hexdigest()
    sums = {**verify.CHECKSUMS["cifar10"], path.name: ["md5:0", f"pixels:{digest}"]}
    monkeypatch.setitem(verify.CHECKSUMS, "cifar10", sums)
    path.write_bytes(pickle.dumps({"data": pixels.reshape(3, -1), "labels": labels.tolist(), "more": 1}))
    images("cifar10", root).load()
    path.write_bytes(pickle.dumps({"data": pixels.reshape(3, -1), "labels": labels.tolist()[::-1]}))
    with pytest.raises(DataError, match="expected md5:0 or pixels:"):
        images("cifar10", root).load()


def test_a_pickle_that_would_run_something_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
    with pytest.raises(DataError, match="which no data needs"):
        read_cifar(path)
    assert not (tmp_path / "ran").exists()
