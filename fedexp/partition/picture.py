"""A partition as a picture: the heat map of class × client with axes, sizes, owners and a legend."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedexp.partition.heatmap import heatmap
from fedexp.partition.table import IntArray

INK = (40, 40, 40)
FAINT = (150, 150, 150)
BAR = (107, 142, 184)
PAPER = (255, 255, 255)
SMALL, LARGE = 12, 15  # sizes of letters
PAD = 10
STRIP = 60  # pixels of the largest bar
MAX_DOUBLED_SIZE = (1200, 960)  # pixels up to which a map is drawn at double size, with numbers in its cells
SWATCH = 22


def picture(counts: IntArray, title: str) -> bytes:
    """Draws training samples of each client and class as a PNG.

    Args:
        counts: Training samples, [clients, classes].
        title: A line above the picture.
    """
    sheet = _Sheet(counts, title)
    image = sheet.draw()
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


@dataclass(frozen=True)
class _Sheet:
    """Where things are: bars of sizes above the map, bars of owners right of it, the legend below."""

    counts: IntArray
    title: str

    @cached_property
    def map(self) -> Image.Image:
        plain = heatmap(self.counts.tolist())
        doubled = 2 * np.array(plain.shape[1::-1])
        zoom = 2 if np.all(doubled <= MAX_DOUBLED_SIZE) else 1
        return Image.fromarray(plain.repeat(zoom, axis=0).repeat(zoom, axis=1))

    @property
    def cell(self) -> int:
        return self.map.height // int(self.counts.shape[1])

    @property
    def left(self) -> int:
        return 3 * PAD + LARGE + max(_width(str(self.counts.shape[1] - 1)), _width(str(self.sizes.max())))

    @property
    def top(self) -> int:
        return 3 * PAD + LARGE + STRIP

    @property
    def right(self) -> int:
        return self.left + self.map.width

    @property
    def bottom(self) -> int:
        return self.top + self.map.height

    @property
    def sizes(self) -> IntArray:
        sizes: IntArray = self.counts.sum(axis=1)
        return sizes

    @property
    def owners(self) -> IntArray:
        owners: IntArray = (self.counts > 0).sum(axis=0)
        return owners

    def draw(self) -> Image.Image:
        levels = _levels(int(self.counts.max()))
        legend = "samples of a class at a client"
        legend_width = _width(legend) + sum(SWATCH + 3 * PAD + _width(f"{n:,}") for n in levels)
        width = max(self.right + STRIP + 6 * PAD, self.left + max(legend_width, _width(self.title, LARGE)) + PAD)
        image = Image.new("RGB", (width, self.bottom + 2 * SMALL + SWATCH + 6 * PAD), PAPER)
        pen = ImageDraw.Draw(image)
        _text(pen, (self.left, PAD), self.title, size=LARGE, anchor="la")
        image.paste(self.map, (self.left, self.top))
        self._axes(image, pen)
        self._bars(pen)
        self._numbers(pen)
        self._legend(image, pen, levels, legend)
        return image

    def _axes(self, image: Image.Image, pen: ImageDraw.ImageDraw) -> None:
        n_clients, n_classes = self.counts.shape
        for client in _ticks(n_clients, self.cell, _width(str(n_clients - 1)) + 6):
            _text(pen, (self.left + (client + 0.5) * self.cell, self.bottom + 4), str(client), anchor="ma")
        for c in _ticks(n_classes, self.cell, SMALL + 2):
            _text(pen, (self.left - 6, self.top + (c + 0.5) * self.cell), str(c), anchor="rm")
        _text(pen, (self.left + self.map.width / 2, self.bottom + SMALL + PAD), "client", anchor="ma")
        label = Image.new("RGB", (_width("class") + 2, LARGE + 2), PAPER)
        _text(ImageDraw.Draw(label), (0, 0), "class", anchor="la")
        upright = label.rotate(90, expand=True)
        image.paste(upright, (PAD // 2, int(self.top + (self.map.height - upright.height) / 2)))

    def _bars(self, pen: ImageDraw.ImageDraw) -> None:
        gap = 1 if self.cell > 3 else 0
        base = self.top - 4
        for client, size in enumerate(self.sizes):
            x = self.left + client * self.cell
            height = round(STRIP * size / max(self.sizes.max(), 1))
            pen.rectangle((x, base - height, x + max(self.cell - 1 - gap, 0), base), fill=BAR)
        _text(pen, (self.left - 6, base - STRIP), f"{self.sizes.max():,}", anchor="rt", ink=FAINT)
        _text(pen, (self.right + 6, base), "samples per client", anchor="lb", ink=FAINT)
        for c, owners in enumerate(self.owners):
            y = self.top + c * self.cell
            length = round(STRIP * owners / max(self.owners.max(), 1))
            if length:
                pen.rectangle((self.right + 6, y, self.right + 6 + length, y + max(self.cell - 1 - gap, 0)), fill=BAR)
            if self.cell >= SMALL:
                _text(pen, (self.right + length + PAD, y + self.cell / 2), str(owners), anchor="lm", ink=FAINT)
        _text(pen, (self.right + 6, self.bottom + 4), "owners", anchor="la", ink=FAINT)

    def _numbers(self, pen: ImageDraw.ImageDraw) -> None:
        largest = int(self.counts.max())
        if self.cell < _width(str(largest)) + 6 or self.cell < 2 * SMALL:
            return
        for client, row in enumerate(self.counts):
            for c in np.flatnonzero(row):
                ink = PAPER if row[c] > 0.3 * largest else INK
                place = (self.left + (client + 0.5) * self.cell, self.top + (c + 0.5) * self.cell)
                _text(pen, place, str(row[c]), anchor="mm", ink=ink)

    def _legend(self, image: Image.Image, pen: ImageDraw.ImageDraw, levels: Sequence[int], words: str) -> None:
        colours = heatmap([levels])
        y = image.height - SWATCH - PAD
        x = self.left
        for n, colour in zip(levels, colours[:: colours.shape[0] // len(levels), 0], strict=True):
            pen.rectangle((x, y, x + SWATCH, y + SWATCH), fill=tuple(int(v) for v in colour), outline=FAINT)
            _text(pen, (x + SWATCH + 5, y + SWATCH / 2), f"{n:,}", anchor="lm")
            x += SWATCH + 2 * PAD + _width(f"{n:,}")
        _text(pen, (x, y + SWATCH / 2), words, anchor="lm", ink=FAINT)


def _levels(largest: int) -> list[int]:
    """Returns the counts that the legend shows: none, and from one to the largest in even steps of colour."""
    return sorted({0, 1, *(round(largest * share**2) for share in (0.25, 0.5, 0.75, 1.0))})


def _ticks(n: int, cell: int, room: int) -> Iterator[int]:
    """Yields the numbers that have room to be written, every one of them or every so many."""
    steps = (a * 10**b for b in range(7) for a in (1, 2, 5))
    return iter(range(0, n, next(step for step in steps if step * cell >= room)))


def _text(
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float],
    words: str,
    *,
    anchor: str,
    size: int = SMALL,
    ink: tuple[int, int, int] = INK,
) -> None:
    pen.text(place, words, fill=ink, font=_font(size), anchor=anchor)


def _width(words: str, size: int = SMALL) -> int:
    return round(_font(size).getlength(words))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
