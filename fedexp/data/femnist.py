"""Handwritten characters by writer, from LEAF's files or from NIST's."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedexp.data.by_user import Users, divided, federation
from fedexp.data.cache import cached
from fedexp.data.catalog import CATALOG
from fedexp.data.fetch import obtain
from fedexp.data.leaf import read_leaf
from fedexp.data.source import Loaded
from fedexp.errors import DataError

SIDE = 28
Array = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Femnist:
    """FEMNIST: 62 classes of characters by some 3,550 writers. Caldas et al., LEAF, arXiv 1812.01097.

    Pixels are in [0, 1] and white is 1, as in LEAF's files. Every owner is a writer.

    Deviations: From NIST's files, LEAF's preparation takes the first image of nearly every writer twice, by a slip in
        its grouping; here it is taken once. A writer's training and test samples are drawn with another generator.

    Args:
        root: A folder with femnist/data/{train,test}/*.json or femnist/data/all_data/*.json as LEAF writes them, or
            with NIST's femnist/data/raw_data/{by_class,by_write}.
        cache: A folder for converted data sets; None converts at every start.
    """

    root: str
    cache: str | None

    def load(self) -> Loaded:
        """Reads the characters and who wrote them."""
        files = obtain("femnist", Path(self.root).expanduser(), download=False)
        return cached(partial(_convert, files), folder=self.cache, name="femnist", files=files, settings={})


def _convert(files: Sequence[Path]) -> Loaded:
    raw = {path.name: path for path in files if path.is_dir()}
    if raw:
        train, test = divided(_nist(raw["by_class"], raw["by_write"]), in_order=False)
    else:
        train, test = read_leaf(files, _decode, in_order=False)
    return federation(train, test, n_classes=CATALOG["femnist"].classes)


def _decode(x: list[Any], y: list[Any]) -> tuple[Array, NDArray[np.int64]]:
    return np.asarray(x, np.float32).reshape(len(y), 1, SIDE, SIDE), np.asarray(y, np.int64)


def _nist(by_class: Path, by_write: Path) -> Users:
    """Joins NIST's two orders of the same files, by class and by writer, through their content.

    ``by_class/<hex code>/hsf_*/*.png`` and ``by_write/hsf_*/<writer>/<form>/*.png``.
    """
    labels = {_digest(path): label for label, path in _by_class(by_class)}
    written = [(path.parent.parent.name, path) for path in sorted(by_write.glob("*/*/*/*.png"))]
    if not labels or not written:
        raise DataError(
            f"{by_class} holds {len(labels)} different images in <class>/hsf_*/ and {by_write} {len(written)} in "
            "hsf_*/<writer>/<form>/. Unpack NIST SD 19's by_class.zip and by_write.zip there again."
        )
    own: dict[str, list[tuple[Array, int]]] = defaultdict(list)
    with ThreadPoolExecutor() as threads:  # decoding leaves Python's lock alone
        for (writer, _), sample in zip(written, threads.map(partial(_sample, labels), written), strict=True):
            own[writer].append(sample)
    return {w: (np.stack([x for x, _ in s]), np.array([y for _, y in s], np.int64)) for w, s in own.items()}


def _by_class(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in sorted(folder.glob("*/hsf_*/*.png")):
        code = chr(int(path.parent.parent.name, 16))
        if path.parent.name != "hsf_mit":
            yield int(code) if code.isdigit() else ord(code) - (55 if code.isupper() else 61), path


def _sample(labels: dict[bytes, int], named: tuple[str, Path]) -> tuple[Array, int]:
    """Shrinks a page's 128 × 128 character as LEAF does."""
    from PIL import Image

    _, path = named
    try:
        with Image.open(path) as image:
            grey = image.convert("L")
        grey.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        return np.asarray(grey, np.float32)[None] / np.float32(255), labels[_digest(path)]
    except (OSError, KeyError) as error:
        raise DataError(
            f"{path} is not one of the images in by_class, or not an image ({type(error).__name__}: {error}). "
            "Unpack NIST SD 19's by_class.zip and by_write.zip again."
        ) from error


def _digest(path: Path) -> bytes:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).digest()
