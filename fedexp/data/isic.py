"""Skin lesions of six centres, as FLamby prepares them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedexp.core.ranges import Pixels, Positive
from fedexp.data.augment import pipeline
from fedexp.data.by_user import numbered
from fedexp.data.cache import cached
from fedexp.data.catalog import CATALOG
from fedexp.data.fetch import obtain
from fedexp.data.normalise import normalised
from fedexp.data.source import DataSpec, Loaded, Samples
from fedexp.errors import DataError

Row = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Isic2019:
    """Fed-ISIC2019: 23,247 images of eight classes; every owner is one of six centres.

    Ogier du Terrail et al., FLamby, NeurIPS 2022, arXiv 2210.04620, with its fixed split. Its preparation leaves images
    with a shorter side of 224; of each the square in the middle is kept.

    Deviations: FLamby cuts random squares of 200 out of the images in training; here the square in the middle is kept
        for both sets, and ``crop`` moves it by up to four pixels. FLamby's further augmentations (scale, brightness,
        shear, holes) are left out; FedMR and FedGELA do not say what they use.

    Args:
        root: A folder with ISIC_2019_Training_Input_preprocessed/*.jpg and the table train_test_split.
        cache: A folder for converted data sets; None converts at every start.
        size: Height and width of the square.
        mean: Per channel, on the scale [0, 1].
        std: Per channel, on the scale [0, 1].
        augment: Names of steps for training batches, in order.
    """

    root: str
    cache: str | None
    size: Pixels
    mean: Sequence[float]
    std: Sequence[Positive]
    augment: Sequence[str]

    def load(self) -> Loaded:
        """Reads the images and which centre each is from."""
        augment = pipeline(self.augment, self.mean, self.std)
        files = obtain("isic2019", Path(self.root).expanduser(), download=False)
        settings = {"size": self.size, "mean": self.mean, "std": self.std}
        convert = partial(self._convert, *files[:2])
        return replace(
            cached(convert, folder=self.cache, name="isic2019", files=files, settings=settings), augment=augment
        )

    def _convert(self, folder: Path, table: Path) -> Loaded:
        rows = _rows(table)
        parts = [[row for row in rows if row["fold"] == fold] for fold in ("train", "test")]
        train, test = (self._samples(part, folder) for part in parts)
        owners, test_owners = numbered(*(np.array([int(r["center"]) for r in part], np.int64) for part in parts))
        spec = DataSpec(tuple(train.x.shape[1:]), CATALOG["isic2019"].classes)
        return Loaded(spec, train, test, None, owners, test_owners)

    def _samples(self, rows: list[Row], folder: Path) -> Samples:
        pixels = np.empty((len(rows), 3, self.size, self.size), np.uint8)
        for i, row in enumerate(rows):
            pixels[i] = _square(folder / f"{row['image']}.jpg", self.size)
        x = normalised(torch.from_numpy(pixels), white=255.0, size=None, mean=self.mean, std=self.std)
        return Samples(x, torch.tensor([int(row["target"]) for row in rows]))


def _rows(table: Path) -> list[Row]:
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("image", "target", "center", "fold")
    if not rows or any(rows[0].get(column) is None for column in columns):
        raise DataError(
            f"{table} has no columns {', '.join(columns)}. It is FLamby's "
            "flamby/datasets/fed_isic2019/dataset_creation_scripts/train_test_split; copy it again."
        )
    return rows


def _square(path: Path, size: int) -> NDArray[np.uint8]:
    """The largest square in the middle of an image, resized."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            side = min(image.size)
            left, top = ((length - side) // 2 for length in image.size)
            box = (left, top, left + side, top + side)
            square = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box)
    except OSError as error:
        raise DataError(
            f"{path} of the table cannot be read as an image: {error}. Prepare the images with FLamby again: "
            f"{CATALOG['isic2019'].how}."
        ) from error
    return np.asarray(square).transpose(2, 0, 1)
