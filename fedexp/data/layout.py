"""Where torchvision keeps the files of a data set, and how to tell what is wrong with one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IDX_BYTES = {8: 1, 9: 1, 11: 2, 12: 4, 13: 4, 14: 8}  # the idx format's codes of number types, and their sizes


@dataclass(frozen=True)
class Layout:
    """The files of one data set below one root.

    Attributes:
        files: What torchvision reads.
        archives: What it downloads, and unpacks without a network if it is there already.
        urls: Where it downloads from; any one of them will do.
        fault: Says what is wrong with one file, or None.
    """

    files: tuple[Path, ...]
    archives: tuple[Path, ...]
    urls: tuple[str, ...]
    fault: Callable[[Path], str | None]

    def missing(self) -> list[Path]:
        """Returns the files that are not there."""
        return [path for path in self.files if not path.is_file()]

    def faults(self) -> list[str]:
        """Returns a sentence part for each file that is there and wrong."""
        found = ((path, self.fault(path)) for path in self.files if path.is_file())
        return [f"{path} {fault}" for path, fault in found if fault]


def pickles(kind: Any, root: Path) -> Layout:
    """CIFAR: pickled batches with a published md5 each."""
    from torchvision.datasets.utils import calculate_md5

    folder = root / kind.base_folder
    published = dict([*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])])

    def fault(path: Path) -> str | None:
        actual = calculate_md5(path)
        if actual == published[path.name]:
            return None
        return f"({path.stat().st_size:,} bytes) has md5 {actual}, not the published {published[path.name]}"

    return Layout(tuple(folder / name for name in published), (root / kind.filename,), (kind.url,), fault)


def idx(kind: Any, root: Path) -> Layout:
    """MNIST and its kin: idx files, whose header says how long they have to be."""
    folder = root / kind.__name__ / "raw"
    archives = tuple(folder / name for name, _ in kind.resources)
    urls = tuple(f"{mirror}{kind.resources[0][0]}" for mirror in kind.mirrors)
    return Layout(tuple(path.with_suffix("") for path in archives), archives, urls, _idx_fault)


def _idx_fault(path: Path) -> str | None:
    actual = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_BYTES:
            return f"({actual:,} bytes) does not begin like an idx file"
        sizes = [int.from_bytes(file.read(4), "big") for _ in range(magic[3])]
    expected = 4 + 4 * len(sizes) + IDX_BYTES[magic[2]] * math.prod(sizes)
    return None if actual == expected else f"holds {actual:,} bytes, but its header {sizes} promises {expected:,}"


LAYOUTS: Mapping[str, Callable[[Any, Path], Layout]] = {"CIFAR10": pickles, "MNIST": idx, "FashionMNIST": idx}
