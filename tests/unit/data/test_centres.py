"""Skin lesions by centre, as FLamby prepares them, and MNIST by writer."""

# ruff: noqa: F401, F811 - fixtures are imported

from __future__ import annotations

import csv
import gzip
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedexp.data.catalog import CATALOG
from fedexp.data.isic import Isic2019
from fedexp.data.mnist_writers import Mnist
from fedexp.data.source import identified
from fedexp.errors import DataError
from tests.unit.data.test_files import write_idx, written


# ---------------------------------------------------------------- ISIC 2019
def isic(root: Path, **changes) -> Isic2019:
    given = {"size": 24, "mean": (0.5,) * 3, "std": (0.5,) * 3, "augment": ("crop", "flip")}
    return Isic2019(**{"root": str(root), "cache": str(root / "cache"), **given, **changes})


@pytest.fixture
def flamby(tmp_path):
    """Twelve images of three centres as FLamby prepares them: the shorter side alike, the longer not."""
    folder = tmp_path / "ISIC_2019_Training_Input_preprocessed"
    folder.mkdir()
    columns = [
        "image",
        "MEL",
        "NV",
        "BCC",
        "AK",
        "BKL",
        "DF",
        "VASC",
        "SCC",
        "UNK",
        "target",
        "center",
        "fold",
        "fold2",
    ]
    rows = []
    for i in range(12):
        target, centre, fold = i % 8, (0, 3, 5)[i % 3], "test" if i % 4 == 3 else "train"
        name = f"ISIC_{i:07}" + ("_downsampled" if i == 4 else "")
        size = (32, 24) if i % 2 else (24, 40)
        image = Image.new("RGB", size, (20 * i, 100, 50))
        image.save(folder / f"{name}.jpg", quality=95)
        hot = ["1.0" if j == target else "0.0" for j in range(9)]
        rows.append([name, *hot, target, centre, fold, f"{fold}_{centre}"])
    with (tmp_path / "train_test_split").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return tmp_path, rows


def test_isic_keeps_the_fixed_split_and_the_centres(flamby):
    root, rows = flamby
    loaded = isic(root).load()
    assert (loaded.spec.shape, loaded.spec.n_classes) == ((3, 24, 24), 8)
    for samples, owners, fold in (
        (loaded.train, loaded.owners, "train"),
        (loaded.test, loaded.test_owners, "test"),
    ):
        own = [row for row in rows if row[-2] == fold]
        assert samples.y.tolist() == [row[10] for row in own]
        assert owners.tolist() == [(0, 3, 5).index(row[11]) for row in own]
        red = [20 * int(row[0][5:12]) / 255 * 2 - 1 for row in own]
        torch.testing.assert_close(samples.x[:, 0].mean(dim=(1, 2)), torch.tensor(red), atol=0.03, rtol=0)
    assert loaded.augment.names == ("crop", "flip")


def test_isic_keeps_the_square_in_the_middle(flamby):
    root, rows = flamby
    pixels = np.zeros((24, 40, 3), np.uint8)
    pixels[:, 8:32] = 255
    Image.fromarray(pixels).save(root / "ISIC_2019_Training_Input_preprocessed" / f"{rows[0][0]}.jpg", quality=100)
    assert (isic(root, cache=None).load().train.x[0] > 0.9).all()


def test_a_missing_image_and_another_table_are_named(flamby):
    root, rows = flamby
    (root / "ISIC_2019_Training_Input_preprocessed" / f"{rows[0][0]}.jpg").unlink()
    with pytest.raises(DataError, match=rf"{rows[0][0]}.jpg of the table cannot be read as an image.*FLamby"):
        isic(root).load()
    (root / "train_test_split").write_text("image,label\nx,1\n")
    with pytest.raises(DataError, match="has no columns image, target, center, fold"):
        isic(root).load()


def test_isic_without_files_says_what_flamby_does(tmp_path):
    with pytest.raises(DataError, match=r"ISIC_2019_Training_Input_preprocessed.* are not there.*fed_isic2019"):
        isic(tmp_path).load()


# ---------------------------------------------------------------- MNIST by writer
def mnist(root: Path, writers: Path | None) -> Mnist:
    return Mnist(
        dataset="mnist", root=str(root), cache=None, download=False, verify=True, size=None, mean=(0.5,), std=(0.5,),
        augment=(), writers=None if writers is None else str(writers),
    )  # fmt: skip


@pytest.fixture
def qmnist(written, tmp_path):
    """MNIST's labels as QMNIST has them: eight columns, the class first, the writer third."""
    root = written("mnist")
    loaded = mnist(root, None).load()
    rows = {}
    for part, samples in (("train", loaded.train), ("test", loaded.test)):
        rows[part] = np.zeros((len(samples), 8), np.int32)
        rows[part][:, 0] = samples.y
        rows[part][:, 2] = np.arange(len(samples)) // 3 + (0 if part == "train" else 100)
    return root, rows


def test_the_writers_of_mnist_are_its_owners(qmnist, tmp_path):
    root, rows = qmnist
    np.savez(tmp_path / "writers.npz", **rows)
    for part in rows:
        path = tmp_path / f"qmnist-{part}-labels-idx2-int"
        write_idx(path, rows[part])
    (tmp_path / "packed").mkdir()
    for part in rows:
        name = f"qmnist-{part}-labels-idx2-int"
        (tmp_path / "packed" / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    for where in (tmp_path / "writers.npz", tmp_path, tmp_path / "packed"):
        loaded = mnist(root, where).load()
        assert loaded.owners.tolist() == [i // 3 for i in range(12)]
        assert loaded.test_owners.tolist() == [4, 4, 4, 5, 5]
    assert mnist(root, None).load().owners is None


def test_the_digest_of_data_with_writers_is_the_same_with_and_without_the_cache(qmnist, tmp_path):
    root, rows = qmnist
    np.savez(tmp_path / "writers.npz", **rows)
    source = mnist(root, tmp_path / "writers.npz")
    digests = {
        identified(replace(source, cache=c).load()).digest for c in (None, str(tmp_path / "c"), str(tmp_path / "c"))
    }
    assert len(digests) == 1
    assert digests != {identified(mnist(root, None).load()).digest}


def test_writers_that_do_not_fit_are_refused(qmnist, tmp_path):
    root, rows = qmnist
    rows["test"][1, 0] += 1
    np.savez(tmp_path / "writers.npz", **rows)
    with pytest.raises(DataError, match=r"does not fit MNIST: its test rows \(5, 8\)"):
        mnist(root, tmp_path / "writers.npz").load()
    (tmp_path / "half.npz").write_bytes((tmp_path / "writers.npz").read_bytes()[:-100])
    for broken in ("nothing.npz", "half.npz"):
        with pytest.raises(DataError, match=r"holds neither qmnist-train-labels.*facebookresearch/qmnist"):
            mnist(root, tmp_path / broken).load()


@pytest.mark.skipif("FEDEXP_WRITERS" not in os.environ, reason="FEDEXP_WRITERS names no table of MNIST's writers")
def test_the_real_writers_of_mnist():
    root = Path(os.environ["FEDEXP_DATA"])
    assert CATALOG["mnist"].find(root)
    loaded = mnist(root, Path(os.environ["FEDEXP_WRITERS"])).load()
    assert len(loaded.owners.unique()) == 539
    assert len(loaded.test_owners.unique()) == 297
    assert loaded.test_owners.min() == 539
