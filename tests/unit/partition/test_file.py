"""A saved partition comes back as it was, and a file that does not fit is refused with numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedexp.errors import PartitionError
from fedexp.partition.base import ClientSplit, Scene, digest, split
from fedexp.partition.classes import Classes
from fedexp.partition.file import File, encode
from fedexp.partition.iid import Iid
from tests.unit.partition.test_partition import balanced, rng

SCENE = Scene(balanced(20), balanced(4), 10)


def made(partition):
    return split(partition, SCENE.targets, SCENE.targets_test, 5, 10, rng())


def save(path, splits, scene=SCENE):
    path.write_bytes(encode(splits, scene, path.suffix, {"data": "digits"}))
    return str(path)


def load(path, n_clients=5, scene=SCENE, **settings):
    return File(path=str(path), **settings).splits(scene, n_clients, rng(1))


@pytest.mark.parametrize("suffix", [".json", ".npz"])
@pytest.mark.parametrize(
    "partition",
    [Iid(), Iid(test="none"), Classes(classes=2, test="mirror"), Classes(classes=3, dialect="fedmr", test="mirror")],
    ids=["holdout", "none", "mirror", "fedmr"],
)
def test_a_saved_partition_comes_back_as_it_was(tmp_path, suffix, partition):
    splits = made(partition)
    path = save(tmp_path / f"saved{suffix}", splits)
    again = load(path)
    assert digest(again) == digest(splits)
    assert all(own.train.dtype == own.test.dtype == np.int64 for own in again)
    assert digest(load(path, digest=digest(splits)[:12])) == digest(splits)


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_the_same_partition_is_saved_as_the_same_bytes(suffix):
    assert encode(made(Iid()), SCENE, suffix, {}) == encode(made(Iid()), SCENE, suffix, {})


def test_tests_can_be_made_anew_for_saved_training_samples(tmp_path):
    path = save(tmp_path / "saved.json", made(Iid(test="none")))
    held = load(path, test="holdout", holdout=0.25)
    assert [(len(own.train), len(own.test), own.test_from) for own in held] == [(30, 10, "train")] * 5
    assert {own.test_from for own in load(path, test="mirror")} == {"test"}
    assert all(len(own.test) == 0 for own in load(path, test="none"))


def test_a_file_by_hand_needs_only_training_samples(tmp_path):
    json_file, npz_file = tmp_path / "mine.json", tmp_path / "mine.npz"
    json_file.write_text(json.dumps({"clients": [{"train": [3, 1]}, {"train": [2]}]}))
    np.savez(npz_file, train=[3, 1, 2], train_sizes=[2, 1])
    for path in (json_file, npz_file):
        splits = load(path, 2)
        assert [own.train.tolist() for own in splits] == [[3, 1], [2]]
        assert all(len(own.test) == 0 for own in splits)


def test_only_what_the_clients_use_is_remembered_of_the_test_set(tmp_path):
    other = Scene(SCENE.targets, balanced(7), 10)
    own, official = save(tmp_path / "own.json", made(Iid())), save(tmp_path / "official.json", made(Iid(test="mirror")))
    assert len(load(own, scene=other)) == 5
    with pytest.raises(PartitionError, match="its n_test is 40, the data set's is 70"):
        load(official, scene=other)


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("scene", "message"),
    [
        (Scene(balanced(21), balanced(4), 10), r"its n_train is 200, the data set's is 210.*\{\"data\": \"digits\"\}"),
        (Scene(balanced(20)[::-1], balanced(4), 10), r"its labels is \w{16}, the data set's is \w{16}"),
        (Scene(balanced(20), balanced(4), 11), "its n_classes is 10, the data set's is 11"),
    ],
)
def test_a_file_for_other_samples_is_refused(tmp_path, scene, message):
    with pytest.raises(PartitionError, match=message):
        load(save(tmp_path / "saved.npz", made(Iid())), scene=scene)


def test_a_file_that_is_not_the_expected_one_is_refused(tmp_path):
    path = save(tmp_path / "saved.json", made(Iid()))
    with pytest.raises(PartitionError, match=r"has 5 clients, but the run has 6. Use cohort.clients=5"):
        load(path, 6)
    with pytest.raises(PartitionError, match=r"has digest \w{64}, but partition.digest=0000"):
        load(path, digest="0000")
    content = json.loads((tmp_path / "saved.json").read_text())
    content["clients"][0]["train"].pop()
    (tmp_path / "saved.json").write_text(json.dumps(content))
    with pytest.raises(PartitionError, match="It was changed after it was saved"):
        load(path)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([([], [], "train")], "gives client 0 no training sample"),
        ([([1], [], "train"), ([200], [], "train")], "client 1 samples 200 to 200; they count from 0 to 199"),
        ([([-1], [], "train")], "client 0 samples -1 to -1"),
        ([([1], [40], "test")], "client 0 samples 40 to 40; they count from 0 to 39"),
        ([([1, 2], [3, 2], "train")], r"tests client 0 on 1 samples it trains on \(sample 2 first\)"),
    ],
)
def test_impossible_clients_are_refused(tmp_path, clients, message):
    splits = [ClientSplit(np.array(a, dtype=np.int64), np.array(b, dtype=np.int64), s) for a, b, s in clients]
    path = save(tmp_path / "saved.json", splits)
    with pytest.raises(PartitionError, match=message):
        load(path, len(clients))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mine.json", b'{"clients": [{"train": [1.5]}]}', "ids have to be a list of whole numbers, not float64"),
        ("mine.json", b'{"clients": [{"train": [[1], [2]]}]}', "not int64 with 2 dimensions"),
        ("mine.json", b'{"clients": [{"train": [1], "test_from": "there"}]}', "cannot be read as a partition"),
        ("mine.json", b'{"clients": [{"test": [1]}]}', "KeyError: 'train'"),
        ("mine.json", b"[1, 2]", "cannot be read as a partition"),
        ("mine.json", b'{"clients": [{"tr', "cannot be read as a partition.*cut short"),
        ("mine.npz", b"PK\x03\x04 torn", "cannot be read as a partition"),
        ("mine.npz", b"", "cannot be read as a partition"),
        ("mine.txt", b"", "ends in '.txt'; a partition is a .json or .npz file"),
    ],
)
def test_a_torn_or_foreign_file_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PartitionError, match=message):
        load(tmp_path / name)


def test_sizes_that_do_not_add_up_are_refused(tmp_path):
    np.savez(tmp_path / "mine.npz", train=[3, 1, 2], train_sizes=[2, 2])
    with pytest.raises(PartitionError, match="the sizes add up to 4, but there are 3 ids"):
        load(tmp_path / "mine.npz")


def test_a_missing_file_says_how_to_get_one(tmp_path):
    with pytest.raises(PartitionError, match=r"there is no file .*gone.json .*show ... save=FILE` writes one"):
        load(tmp_path / "gone.json")
    with pytest.raises(PartitionError, match=r"partition=file needs partition.path=FILE"):
        File().splits(SCENE, 5, rng())
    with pytest.raises(PartitionError, match=r"partition.test='own' is none of saved, holdout, mirror, none"):
        load(tmp_path / "gone.json", test="own")
