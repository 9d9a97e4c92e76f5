"""The picture of a partition: the tracker's heat map, unchanged, inside axes that never cover it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fedexp.partition.dirichlet import Dirichlet
from fedexp.partition.heatmap import MISSING, heatmap
from fedexp.partition.picture import PAPER, _levels, _Sheet, _ticks, picture
from tests.unit.partition.test_partition import rng


def drawn(table, title="digits"):
    return np.asarray(Image.open(io.BytesIO(picture(table, title))))


@pytest.mark.parametrize(
    ("n_clients", "n_classes"), [(1, 1), (2, 10), (20, 10), (60, 10), (100, 30), (1700, 7)], ids=str
)
def test_the_map_is_the_heat_map_and_everything_fits_around_it(n_clients, n_classes):
    table = rng().integers(0, 40, (n_clients, n_classes)) * rng(1).integers(0, 2, (n_clients, n_classes))
    table[0, 0] = 50
    sheet, image = _Sheet(table, "digits"), drawn(table)
    inside = image[sheet.top : sheet.bottom, sheet.left : sheet.right]
    plain = heatmap(table.tolist())
    zoom = inside.shape[0] // plain.shape[0]
    same = np.all(inside == plain.repeat(zoom, axis=0).repeat(zoom, axis=1), axis=-1)
    corners = same[:: sheet.cell, :: sheet.cell]  # numbers stand in the middle of their cells
    assert corners.all()
    assert corners.shape == (n_classes, n_clients)
    for edge in (image[0], image[-1], image[:, 0], image[:, -1]):
        assert np.all(edge == PAPER)


def test_cells_with_room_carry_their_number():
    table = np.array([[3, 0], [40, 7]])
    sheet, image = _Sheet(table, "digits"), drawn(table)
    assert sheet.cell == 48

    def cell(client, c):
        y, x = sheet.top + c * 48, sheet.left + client * 48
        return image[y + 8 : y + 40, x + 8 : x + 40].reshape(-1, 3)

    pale, dark = cell(0, 0).sum(axis=1), cell(1, 0).sum(axis=1)
    assert pale.min() < pale[0]  # dark letters on a pale cell
    assert dark.max() > dark[0]
    assert np.all(cell(0, 1) == MISSING)


def test_more_samples_make_a_longer_bar():
    sheet = _Sheet(np.array([[10, 0], [20, 20]]), "digits")
    image = drawn(sheet.counts)
    heights = [
        int(np.any(image[sheet.top - 70 : sheet.top - 4, sheet.left + 48 * k + 20] != PAPER, axis=1).sum())
        for k in (0, 1)
    ]
    assert heights[0] == pytest.approx(heights[1] / 4, abs=2)


def test_the_legend_goes_from_none_to_the_largest():
    assert _levels(160) == [0, 1, 10, 40, 90, 160]
    assert _levels(1) == [0, 1]


@pytest.mark.parametrize(
    ("n", "cell", "room", "shown"), [(5, 24, 20, [0, 1, 2, 3, 4]), (5, 12, 20, [0, 2, 4]), (60, 1, 20, [0, 20, 40])]
)
def test_numbers_are_left_out_where_they_would_touch(n, cell, room, shown):
    assert list(_ticks(n, cell, room)) == shown


def test_the_picture_is_a_function_of_the_partition():
    table = Dirichlet(beta=0.3).table(np.full(10, 600), 30, rng())
    assert picture(table, "digits") == picture(table, "digits")
    assert picture(table, "digits") != picture(table[::-1], "digits")
