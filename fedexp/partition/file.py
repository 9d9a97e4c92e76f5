"""Partitions in files, so that others can use exactly the same one.

JSON: ``{"clients": [{"train": [ids], "test": [ids], "test_from": "train"}, …], …}``. Ids count samples from 0 in the
order of the data set; ``test`` and ``test_from`` may be missing. npz: ``train`` and ``test`` hold all clients' ids one
client after the other, ``train_sizes`` and ``test_sizes`` say how many are whose, and ``test_from`` is 0 for the
training and 1 for the official test samples. The rest, ``about`` (as JSON text in npz), may be missing too; what is
there is checked: ``n_train``, ``n_test``, ``n_classes``, ``labels``, ``labels_test`` and ``digest``.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedexp.core.ranges import ShareInside
from fedexp.errors import PartitionError
from fedexp.partition.base import RULES, ClientSplit, Scene, digest, known, own_tests
from fedexp.partition.table import IntArray

SUFFIXES = (".json", ".npz")
UNREADABLE = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError, OSError, EOFError),
    *(zipfile.BadZipFile, zlib.error),
)
SETS: tuple[Literal["train"], Literal["test"]] = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class File:
    """A partition as a file says it; see the module for the format.

    Args:
        path: The file, .json or .npz.
        digest: What the file has to contain, as ``fedexp.data show`` prints it, or its beginning; None takes anything.
        holdout: The share of a client's training samples that ``test="holdout"`` takes away for its own test.
        test: ``saved``: the test sets in the file. The others as in ``own_tests``, from the file's training samples.
        seed: Fixes what is drawn whatever the run's seed is; None follows the run.
    """

    path: str | None = None
    digest: str | None = None
    holdout: ShareInside = 0.2
    test: Literal["saved", "holdout", "mirror", "none"] = "saved"
    seed: int | None = None

    def splits(self, scene: Scene, n_clients: int, rng: np.random.Generator) -> list[ClientSplit]:
        """Reads the file and checks that it fits the data and the run."""
        known(self.test, ("saved", *RULES))
        if self.path is None:
            raise PartitionError(
                "partition=file needs partition.path=FILE; `python -m fedexp.data show ... save=FILE` writes one."
            )
        saved, about = _read(Path(self.path))
        _check(self.path, saved, about, scene)
        if len(saved) != n_clients:
            raise PartitionError(
                f"{self.path} has {len(saved)} clients, but the run has {n_clients}. Use cohort.clients={len(saved)}."
            )
        if self.digest is not None and not digest(saved).startswith(self.digest):
            raise PartitionError(
                f"{self.path} has digest {digest(saved)}, but partition.digest={self.digest}. "
                "It is another partition; get the right file, or leave partition.digest out."
            )
        if self.test == "saved":
            return saved
        return own_tests(self.test, [own.train for own in saved], scene, holdout=self.holdout, rng=rng)


def encode(splits: Sequence[ClientSplit], scene: Scene, suffix: str, origin: Mapping[str, Any]) -> bytes:
    """Returns the content of a file with this suffix.

    Args:
        splits: What to save.
        scene: What was divided: its labels are remembered, so that the file is not used with another data set.
        suffix: .json or .npz.
        origin: How the partition was made, for people.
    """
    about = {
        "n_train": len(scene.targets),
        "n_classes": scene.n_classes,
        "labels": _fingerprint(scene.targets),
        "digest": digest(splits),
        "origin": dict(origin),
    }
    if any(own.test_from == "test" for own in splits):
        about |= {"n_test": len(scene.targets_test), "labels_test": _fingerprint(scene.targets_test)}
    if suffix == ".json":
        clients = [{"train": s.train.tolist(), "test": s.test.tolist(), "test_from": s.test_from} for s in splits]
        return (json.dumps({**about, "clients": clients}) + "\n").encode()
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        train=np.concatenate([s.train for s in splits]),
        train_sizes=np.array([len(s.train) for s in splits]),
        test=np.concatenate([s.test for s in splits]),
        test_sizes=np.array([len(s.test) for s in splits]),
        test_from=np.array([SETS.index(s.test_from) for s in splits]),
        about=np.array(json.dumps(about)),
    )
    return buffer.getvalue()


# ---------------------------------------------------------------- reading
def _read(path: Path) -> tuple[list[ClientSplit], dict[str, Any]]:
    if path.suffix not in SUFFIXES:
        raise PartitionError(f"{path} ends in {path.suffix!r}; a partition is a {' or '.join(SUFFIXES)} file.")
    if not path.is_file():
        raise PartitionError(
            f"there is no file {path} (partition.path counts from the working directory, {Path.cwd()}). "
            "`python -m fedexp.data show ... save=FILE` writes one."
        )
    try:
        return _from_json(path) if path.suffix == ".json" else _from_npz(path)
    except UNREADABLE as cause:
        raise PartitionError(
            f"{path} cannot be read as a partition ({type(cause).__name__}: {cause}). "
            "Its format is in fedexp/partition/file.py; write it again, or copy it again if it was cut short."
        ) from cause


def _from_json(path: Path) -> tuple[list[ClientSplit], dict[str, Any]]:
    content = json.loads(path.read_text())
    clients = [
        ClientSplit(_ids(c["train"]), _ids(c.get("test", [])), _set(c.get("test_from", "train")))
        for c in content.pop("clients")
    ]
    return clients, content


def _from_npz(path: Path) -> tuple[list[ClientSplit], dict[str, Any]]:
    with np.load(path, allow_pickle=False) as file:
        train = _apart(file["train"], file["train_sizes"])
        n = len(train)
        test = _apart(file["test"], file["test_sizes"]) if "test" in file else [_ids([])] * n
        sources = file["test_from"].tolist() if "test_from" in file else [0] * n
        about = json.loads(str(file["about"])) if "about" in file else {}
    return [ClientSplit(a, b, SETS[s]) for a, b, s in zip(train, test, sources, strict=True)], about


def _apart(ids: IntArray, sizes: IntArray) -> list[IntArray]:
    if sizes.sum() != len(ids):
        raise ValueError(f"the sizes add up to {sizes.sum()}, but there are {len(ids)} ids")
    return [_ids(piece) for piece in np.split(ids, np.cumsum(sizes)[:-1])]


def _ids(values: Any) -> IntArray:
    ids = np.asarray(values)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(f"ids have to be a list of whole numbers, not {ids.dtype} with {ids.ndim} dimensions")
    return ids.astype(np.int64)


def _set(name: str) -> Literal["train", "test"]:
    return SETS[SETS.index(name)]


# ---------------------------------------------------------------- checking
def _check(path: str, saved: Sequence[ClientSplit], about: Mapping[str, Any], scene: Scene) -> None:
    facts = {
        "n_train": len(scene.targets),
        "n_test": len(scene.targets_test),
        "n_classes": scene.n_classes,
        "labels": _fingerprint(scene.targets),
        "labels_test": _fingerprint(scene.targets_test),
    }
    for key, fact in facts.items():
        if about.get(key, fact) != fact:
            raise PartitionError(
                f"{path} was made for other samples: its {key} is {about[key]}, the data set's is {fact}. "
                f"Use the data set and the pool of its origin: {json.dumps(about.get('origin', 'not recorded'))}."
            )
    if about.get("digest", digest(saved)) != digest(saved):
        raise PartitionError(
            f"{path} says its digest is {about['digest']}, but its clients have {digest(saved)}. "
            "It was changed after it was saved; save it again, or remove the digest from it."
        )
    for client, own in enumerate(saved):
        _check_client(path, client, own, scene)


def _check_client(path: str, client: int, own: ClientSplit, scene: Scene) -> None:
    if not len(own.train):
        raise PartitionError(f"{path} gives client {client} no training sample; every client needs one.")
    limits = {"train": len(scene.targets), "test": len(scene.targets_test)}
    for ids, limit in ((own.train, limits["train"]), (own.test, limits[own.test_from])):
        if len(ids) and not 0 <= ids.min() <= ids.max() < limit:
            raise PartitionError(
                f"{path} gives client {client} samples {ids.min()} to {ids.max()}; they count from 0 to {limit - 1}."
            )
    if own.test_from == "train" and (both := np.intersect1d(own.train, own.test)).size:
        raise PartitionError(
            f"{path} tests client {client} on {both.size} samples it trains on (sample {both[0]} first). Remove them."
        )


def _fingerprint(targets: IntArray) -> str:
    return hashlib.sha256(targets.astype("<i8").tobytes()).hexdigest()[:16]
