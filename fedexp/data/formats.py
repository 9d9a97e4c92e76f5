"""The file formats of the image data sets, read into arrays. Each reader names the file that is at fault."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import shutil
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedexp.errors import DataError

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]
IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def content(path: Path) -> bytes:
    """Returns a file's bytes, unpacked if its name ends in .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} ({_size(path)}) cannot be read: {error}.") from error


def unpack_tar(archive: Path, folder: Path) -> None:
    """Writes the files of a tar archive. Not by ``extractall``, which is safe from Python 3.11.4 on only."""
    with tarfile.open(archive) as tar:
        for member in tar:
            target = (folder / member.name).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise DataError(f"{archive} has a file {member.name}, which would lie outside of {folder}.")
            if (source := tar.extractfile(member)) is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink)


def read_idx(path: Path) -> NDArray[Any]:
    """MNIST and its kin: a header with the type and the sizes, then the numbers."""
    raw = content(path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES:
        raise DataError(f"{path} ({_size(path)}) does not begin like an idx file.")
    start = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4)]
    kind = np.dtype(IDX_TYPES[raw[2]])
    expected = start + kind.itemsize * math.prod(shape)
    if len(raw) != expected:
        raise DataError(f"{path} holds {len(raw):,} bytes, but its header {shape} promises {expected:,}.")
    return np.frombuffer(raw, kind, offset=start).reshape(shape)


def read_cifar(path: Path) -> tuple[Bytes, Labels]:
    """CIFAR-10 and CIFAR-100: a pickled dictionary of rows of 3,072 bytes and labels (of CIFAR-100 the fine ones)."""
    try:
        batch = _Unpickler(io.BytesIO(content(path)), encoding="latin1").load()
        labels = batch["fine_labels"] if "fine_labels" in batch else batch["labels"]
        return np.asarray(batch["data"], np.uint8).reshape(len(labels), 3, 32, 32), np.asarray(labels, np.int64)
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can break in any way
        raise DataError(
            f"{path} ({_size(path)}) is not a pickled batch of N × 3072 bytes with N labels: "
            f"{type(error).__name__}: {error}."
        ) from error


class _Unpickler(pickle.Unpickler):
    """Makes arrays and plain values only, so that a file from somewhere cannot run anything."""

    def find_class(self, module: str, name: str) -> Any:
        reconstruct = np.empty(0).__reduce__()[0]  # its home moved between numpy 1 and 2
        allowed = {"_reconstruct": reconstruct, "ndarray": np.ndarray, "dtype": np.dtype}
        if module.partition(".")[0] == "numpy" and name in allowed:
            return allowed[name]
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return lambda text, _: text.encode("latin1")
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no data set needs")


def write_cifar(path: Path, pixels: Bytes, labels: Labels) -> None:
    """Writes what ``read_cifar`` and torchvision read."""
    batch = {"data": pixels.reshape(len(pixels), -1), "labels": labels.tolist()}
    path.write_bytes(pickle.dumps(batch, protocol=4))


def read_svhn(path: Path) -> tuple[Bytes, Labels]:
    """SVHN: Matlab arrays X [32, 32, 3, N] and y [N, 1], where the digit 0 is called 10."""
    from scipy.io import loadmat  # type: ignore[import-untyped, unused-ignore]

    try:
        stored = loadmat(path)
        pixels, labels = stored["X"].transpose(3, 2, 0, 1), stored["y"].ravel().astype(np.int64) % 10
    except Exception as error:  # a damaged file can break scipy's reader in any way
        raise DataError(
            f"{path} ({_size(path)}) is not a Matlab file with X [32, 32, 3, N] and y [N, 1]: "
            f"{type(error).__name__}: {error}."
        ) from error
    return np.ascontiguousarray(pixels), labels


def read_folders(folders: Sequence[Path]) -> tuple[Bytes, Labels]:
    """A folder of images for each class, in alphabetical order of classes and files; all images of one size."""
    from PIL import Image

    paths = [sorted(p for p in folder.iterdir() if p.suffix in (".png", ".jpg")) for folder in sorted(folders)]
    labels = np.repeat(np.arange(len(paths), dtype=np.int64), [len(p) for p in paths])
    pixels: Bytes | None = None
    for row, path in enumerate(p for own in paths for p in own):
        try:
            with Image.open(path) as image:
                array = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
            pixels = np.empty((len(labels), *array.shape), np.uint8) if pixels is None else pixels
            pixels[row] = array
        except (OSError, ValueError) as error:
            raise DataError(f"{path} ({_size(path)}) is not an image like the others: {error}.") from error
    if pixels is None:
        raise DataError(f"{', '.join(map(str, folders))} hold no .png and no .jpg files.")
    return pixels, labels


def _size(path: Path) -> str:
    return f"{path.stat().st_size:,} bytes" if path.is_file() else "not a file"
