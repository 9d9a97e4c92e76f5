"""Image files that are missing, wrong or damaged are named, with what to do."""

# ruff: noqa: F401, F811 - fixtures are imported

from __future__ import annotations

import gzip
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from fedexp.data import verify
from fedexp.data.catalog import CATALOG, IDX
from fedexp.data.formats import read_cifar, read_idx
from fedexp.data.images import READERS
from fedexp.errors import DataError
from tests.unit.data.test_files import images, write_idx, written


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
    "damage",
    [lambda raw: raw[:-7], lambda raw: b"<html>", lambda raw: b"", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])],
    ids=["cut", "html", "empty", "one byte"],
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
    packed = gzip.compress(b"\0\0\x08\x01" + bytes(100))
    for damaged in (packed[:-10], packed[:10] + bytes([packed[10] ^ 0xFF]) + packed[11:]):
        path.write_bytes(damaged)
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
    with pytest.raises(DataError, match="which no data set needs"):
        read_cifar(path)
    assert not (tmp_path / "ran").exists()
