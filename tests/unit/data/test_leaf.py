"""Who made which sample; LEAF's files and NIST's, by writer."""

from __future__ import annotations

import io
import json
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedexp.data.by_user import divided, numbered
from fedexp.data.femnist import Femnist
from fedexp.data.shakespeare import Shakespeare
from fedexp.errors import DataError

RNG = np.random.default_rng(0)


def write_leaf(path: Path, users: dict[str, tuple[list, list]]) -> None:
    """One of LEAF's files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def pages(n: int) -> tuple[list, list]:
    return RNG.random((n, 784)).round(4).tolist(), RNG.integers(0, 62, n).tolist()


# ---------------------------------------------------------------- owners
def test_owners_are_numbered_with_those_of_the_training_samples_first():
    owners, test_owners = numbered(np.array([7, 3, 7, 9]), np.array([9, 1, 8, 3, 1]))
    assert owners.tolist() == [1, 0, 1, 2]
    assert test_owners.tolist() == [2, 3, 4, 0, 3]


@pytest.mark.parametrize("in_order", [True, False])
def test_everybody_keeps_a_fifth_for_testing(in_order):
    users = {u: (np.arange(n)[:, None], np.arange(n)) for u, n in {"a": 10, "b": 2, "c": 1, "d": 101}.items()}
    train, test = divided(users, in_order=in_order)
    assert {u: (len(train[u][1]), len(test[u][1])) for u in train} == {"a": (8, 2), "b": (1, 1), "d": (80, 21)}
    for user in train:
        together = np.concatenate([train[user][1], test[user][1]])
        assert sorted(together.tolist()) == list(range(len(users[user][1])))
        assert (together.tolist() == sorted(together.tolist())) == (in_order or user == "b")
    again, _ = divided(users, in_order=in_order)
    assert all(np.array_equal(train[u][1], again[u][1]) for u in train)


# ---------------------------------------------------------------- FEMNIST
def femnist(root: Path) -> Femnist:
    return Femnist(root=str(root), cache=str(root / "cache"))


def test_femnist_in_leafs_split(tmp_path):
    data = tmp_path / "femnist" / "data"
    one, two, three, tests = pages(3), pages(2), pages(4), pages(1)
    write_leaf(data / "train" / "all_data_0_niid_0_keep_0_train_8.json", {"f01_02": one, "f00_01": two})
    write_leaf(data / "train" / "all_data_1_niid_0_keep_0_train_8.json", {"f03_03": three})
    write_leaf(
        data / "test" / "all_data_0_niid_0_keep_0_test_8.json", {"f01_02": tests, "f00_00": tests, "f03_03": ([], [])}
    )
    for _ in range(2):  # the second time from the cache
        loaded = femnist(tmp_path).load()
        assert (loaded.spec.shape, loaded.spec.n_classes) == ((1, 28, 28), 62)
        assert loaded.owners.tolist() == [0] * 2 + [1] * 3 + [2] * 4
        assert loaded.test_owners.tolist() == [3, 1]
        torch.testing.assert_close(loaded.train.x[2:5].view(3, 784), torch.tensor(one[0]))
        assert loaded.train.y[5:].tolist() == three[1]
        assert loaded.train.x.dtype == torch.float32


def test_femnist_that_leaf_has_not_split(tmp_path):
    write_leaf(tmp_path / "femnist" / "data" / "all_data" / "all_data_0.json", {"a": pages(10), "b": pages(5)})
    loaded = femnist(tmp_path).load()
    assert (loaded.owners.bincount().tolist(), loaded.test_owners.bincount().tolist()) == ([8, 4], [2, 1])


@pytest.fixture
def nist(tmp_path):
    """NIST SD 19 in small: three writers, seven characters each, the same files by class and by writer."""
    raw = tmp_path / "femnist" / "data" / "raw_data"
    written_by = {}
    for writer in ("f0000_14", "f0001_41", "f2100_01"):
        for i, character in enumerate("07AZaz9"):
            page = io.BytesIO()
            Image.fromarray(RNG.integers(0, 256, (128, 128), dtype=np.uint8)).convert("RGB").save(page, "png")
            code = format(ord(character), "x")
            for path in (
                raw / "by_class" / code / "hsf_0" / f"hsf_0_{writer}.png",
                raw / "by_class" / code / "train_xx" / f"train_{writer}.png",
                raw / "by_write" / "hsf_0" / writer / f"c{writer[1:]}" / f"c{i}.png",
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(page.getvalue())
            written_by[writer, (string.digits + string.ascii_uppercase + string.ascii_lowercase).index(character)] = (
                page
            )
    return tmp_path, written_by


def test_femnist_from_nists_files_by_writer(nist):
    root, written_by = nist
    loaded = femnist(root).load()
    writers = sorted({writer for writer, _ in written_by})
    found = {}
    for samples, owners in ((loaded.train, loaded.owners), (loaded.test, loaded.test_owners)):
        for x, y, owner in zip(samples.x, samples.y.tolist(), owners.tolist(), strict=True):
            found[writers[owner], y] = x
    assert set(found) == set(written_by)
    assert (len(loaded.train), len(loaded.test)) == (15, 6)
    for key, page in written_by.items():
        grey = Image.open(page).convert("L")
        grey.thumbnail((28, 28), Image.Resampling.LANCZOS)
        torch.testing.assert_close(found[key][0], torch.from_numpy(np.asarray(grey) / np.float32(255)))


def test_a_page_that_no_class_has_is_named(nist):
    root, _ = nist
    stray = root / "femnist/data/raw_data/by_write/hsf_0/f0000_14/c0000_14/stray.png"
    Image.new("L", (128, 128)).save(stray)
    with pytest.raises(DataError, match=r"stray.png is not one of the images in by_class.*by_class.zip"):
        femnist(root).load()


def test_empty_nist_folders_are_named(tmp_path):
    for name in ("by_class", "by_write"):
        (tmp_path / "femnist" / "data" / "raw_data" / name).mkdir(parents=True)
    with pytest.raises(DataError, match=r"by_class holds 0 different images .*by_write 0 in"):
        femnist(tmp_path).load()


@pytest.mark.parametrize("content", ["", '{"users": []}', '{"user_data": {"a": {"x": [[1, 2]], "y": [0]}}}', "[1]"])
def test_a_damaged_leaf_file_is_named(tmp_path, content):
    path = tmp_path / "femnist" / "data" / "all_data" / "all_data_0.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(DataError, match=r"all_data_0.json \(\d+ bytes\) is not one of LEAF's files.*preprocess.sh"):
        femnist(tmp_path).load()


@pytest.mark.parametrize("source", [Femnist, Shakespeare])
def test_what_leaf_has_to_make_is_explained(tmp_path, source):
    name = source.__name__.lower()
    with pytest.raises(DataError) as caught:
        source(root=str(tmp_path), cache=None).load()
    for fact in (
        f"{tmp_path / name}/data/train/*.json",
        "preprocess.sh",
        f"{name}/data/raw_data",
        "data.root=<folder>",
    ):
        assert fact in str(caught.value)
