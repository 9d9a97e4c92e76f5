"""Samples, pixels, augmentations, the bundled digits, and the yamls."""

from __future__ import annotations

import hashlib
import os
import pickle
from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hydra.utils import get_class
from torchvision.transforms import functional as vision

from fedexp.config.compose import composed
from fedexp.config.identity import run_id
from fedexp.config.make import make
from fedexp.data import normalise
from fedexp.data.augment import DEGREES, PADDING, STEPS, Pipeline, crop, flip, pipeline, reflect_crop, rotate, turned
from fedexp.data.catalog import CATALOG
from fedexp.data.digits import Digits
from fedexp.data.list_command import CACHE, ROOT
from fedexp.data.normalise import normalised
from fedexp.data.source import DataSpec, Loaded, Samples, identified
from fedexp.errors import ConfigError, DataError

CONF = Path(__file__).parents[3] / "conf" / "data"
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- samples and pixels
def test_selected_samples_are_copies_in_the_order_asked_for():
    samples = Samples(torch.arange(6.0).view(3, 1, 1, 2), torch.tensor([4, 5, 6]))
    picked = samples.select(torch.tensor([2, 0]))
    picked.x.zero_()
    assert (len(samples), len(picked), picked.y.tolist()) == (3, 2, [6, 4])
    assert samples.x.sum() == 15


@pytest.mark.parametrize("size", [None, 28, 9, 4])
def test_normalising_in_chunks_is_normalising_at_once(monkeypatch, size):
    monkeypatch.setattr(normalise, "CHUNK", 3)
    stored = torch.randint(0, 256, (7, 3, 9, 9), dtype=torch.uint8, generator=generator())
    before = stored.clone()
    x = normalised(stored, white=255.0, size=size, mean=CIFAR_MEAN, std=CIFAR_STD)
    unit = stored.float() / 255
    if size is not None:
        unit = F.interpolate(unit, (size, size), mode="bilinear", antialias=True)
    expected = (unit - torch.tensor(CIFAR_MEAN).view(3, 1, 1)) / torch.tensor(CIFAR_STD).view(3, 1, 1)
    torch.testing.assert_close(x, expected)
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    assert torch.equal(stored, before)


@pytest.mark.parametrize(
    ("size", "mean", "std", "message"),
    [
        (None, (0.5,), (0.5,), r"have 1 value\(s\), but the images have 3 channel"),
        (None, (0.5,) * 3, (0.5,), "data.mean has 3 and data.std has 1 values"),
        (None, (0.5,) * 3, (0.5, 0.0, 1.0), "divides by 0.0"),
        (0, (0.5,) * 3, (0.5,) * 3, "data.size=0 leaves no pixel"),
    ],
)
def test_impossible_normalisations_are_refused(size, mean, std, message):
    with pytest.raises(ConfigError, match=message):
        normalised(torch.zeros(1, 3, 4, 4), white=1.0, size=size, mean=mean, std=std)


# ---------------------------------------------------------------- augmentation
def test_a_crop_is_one_of_the_81_shifts_and_black_outside():
    x = torch.randn(200, 3, 8, 8, generator=generator())
    black = tuple(-m / s for m, s in zip(CIFAR_MEAN, CIFAR_STD, strict=True))
    out = crop(x, black, generator())
    padded = torch.stack([F.pad(x[:, c], [PADDING] * 4, value=black[c]) for c in range(3)], dim=1)
    shifts = set()
    for image, wide in zip(out, padded, strict=True):
        found = [(i, j) for i in range(9) for j in range(9) if torch.equal(image, wide[:, i : i + 8, j : j + 8])]
        assert len(found) == 1
        shifts.update(found)
    assert len(shifts) > 60
    assert {i for i, _ in shifts} == {j for _, j in shifts} == set(range(9))


def test_a_reflected_crop_is_one_of_the_81_shifts_and_mirrored_outside():
    x = torch.randn(50, 3, 8, 8, generator=generator())
    wide = F.pad(x, [PADDING] * 4, mode="reflect")
    shifts = set()
    for image, padded in zip(reflect_crop(x, (0.0,) * 3, generator()), wide, strict=True):
        found = [(i, j) for i in range(9) for j in range(9) if torch.equal(image, padded[:, i : i + 8, j : j + 8])]
        assert found
        shifts.update(found)
    assert len(shifts) > 30


def test_turning_is_what_torchvision_does_image_by_image():
    x = torch.randn(16, 3, 32, 32, generator=generator())
    degrees = torch.linspace(-DEGREES, DEGREES, 16)
    black = (-1.0, 0.5, 2.0)
    expected = [vision.rotate(image, float(d), fill=list(black)) for image, d in zip(x, degrees, strict=True)]
    torch.testing.assert_close(turned(x, black, degrees), torch.stack(expected))


def test_rotations_stay_within_fifteen_degrees_and_use_both_directions(monkeypatch):
    seen = []
    monkeypatch.setattr("fedexp.data.augment.turned", lambda x, black, degrees: seen.append(degrees) or x)
    rotate(torch.zeros(500, 1, 2, 2), (0.0,), generator())
    assert seen[0].abs().max() <= DEGREES
    assert seen[0].min() < -14
    assert seen[0].max() > 14


def test_the_border_of_a_crop_is_a_black_pixel_after_normalisation():
    stored = torch.full((64, 3, 8, 8), 255, dtype=torch.uint8)
    white = normalised(stored, white=255.0, size=None, mean=CIFAR_MEAN, std=CIFAR_STD)
    dark = normalised(torch.zeros_like(stored), white=255.0, size=None, mean=CIFAR_MEAN, std=CIFAR_STD)
    out = pipeline(["crop"], CIFAR_MEAN, CIFAR_STD)(white, generator())
    outside = ~torch.isclose(out, white)
    assert outside.any()
    torch.testing.assert_close(out[outside], dark[outside])


def test_a_flip_mirrors_half_of_the_images_left_to_right():
    x = torch.randn(400, 1, 3, 5, generator=generator())
    out = flip(x, (0.0,), generator())
    same, mirrored = ((a == b).flatten(1).all(dim=1) for a, b in ((out, x), (out, x.flip(-1))))
    assert torch.all(same ^ mirrored)
    assert 160 < int(mirrored.sum()) < 240


@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_seeded_and_leaves_its_input_alone(name):
    x = torch.randn(32, 3, 16, 16, generator=generator())
    before = x.clone()
    augment = pipeline([name], CIFAR_MEAN, CIFAR_STD)
    one, two, other = augment(x, generator(1)), augment(x, generator(1)), augment(x, generator(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(x, before)
    assert one.shape == x.shape


def test_augmenting_is_seeded_in_order_and_leaves_its_input_alone():
    x = torch.randn(32, 3, 8, 8, generator=generator())
    before = x.clone()
    augment = pipeline(["crop", "flip"], CIFAR_MEAN, CIFAR_STD)
    one, two, other = augment(x, generator(1)), augment(x, generator(1)), augment(x, generator(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(x, before)
    drawn = generator(1)
    assert torch.equal(one, flip(crop(x, augment.black, drawn), augment.black, drawn))


def test_a_pipeline_is_a_value_that_travels():
    augment = pipeline(["flip"], (0.5,), (0.5,))
    assert pickle.loads(pickle.dumps(augment)) == augment == Pipeline(("flip",), (-1.0,))  # noqa: S301 - our own bytes
    assert pipeline([], (0.5,), (0.5,)) is None


def test_an_unknown_step_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"data.augment is 'flipp', which is none of crop, flip, .*'flip'\?"):
        pipeline(["crop", "flipp"], (0.5,), (0.5,))


# ---------------------------------------------------------------- digits
def test_digits_are_split_by_class_once_and_for_all():
    loaded = Digits().load()
    assert (loaded.spec.shape, loaded.spec.n_classes, loaded.augment) == ((1, 8, 8), 10, None)
    assert (len(loaded.train), len(loaded.test)) == (1438, 359)
    shares = loaded.test.y.bincount() / (loaded.train.y.bincount() + loaded.test.y.bincount())
    assert torch.all((shares - 0.2).abs() < 0.005)
    assert hashlib.sha256(loaded.test.y.numpy().astype("<i8").tobytes()).hexdigest()[:16] == "bfc50f70029db073"
    assert abs(loaded.train.x.mean()) < 0.01
    assert abs(loaded.train.x.std() - 1) < 0.01


def test_digits_hold_every_image_once():
    from sklearn.datasets import load_digits

    loaded = Digits().load()
    ours = torch.cat([loaded.train.x, loaded.test.x]).flatten(1) * 0.376 + 0.305
    theirs = torch.from_numpy(load_digits().data).float() / 16
    assert sorted(map(tuple, (ours * 16).round().tolist())) == sorted(map(tuple, (theirs * 16).tolist()))


@pytest.mark.parametrize("size", [28, 32])
def test_digits_grow(size):
    small, large = Digits().load(), Digits(size=size).load()
    assert large.spec.shape == (1, size, size)
    assert torch.equal(small.test.y, large.test.y)
    expected = F.interpolate(small.test.x, (size, size), mode="bilinear")
    torch.testing.assert_close(large.test.x, expected, atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------- the yamls
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
PAPERS = ("fedmr", "fedgela", "fedrema")


@cache
def chosen(name):
    """What a name stands for where the environment says nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("FEDEXP_DATA", "FEDEXP_CACHE"):
            patch.delenv(variable, raising=False)
        return composed(["algo=fedavg", f"data={name}"])


@pytest.mark.parametrize("name", NAMES)
def test_each_yaml_gives_every_field(name):
    config = dict(chosen(name)["data"])
    kind = get_class(config.pop("_target_"))
    assert set(config) == {field.name for field in fields(kind)}
    kind(**config)
    assert config.get("root", ROOT) == ROOT
    assert config.get("cache", CACHE) == CACHE


def test_every_data_set_has_a_yaml_and_every_yaml_a_data_set():
    assert {name for name in NAMES if not name.endswith(PAPERS)} == set(CATALOG)
    assert {name.rpartition("_")[0] for name in NAMES if name.endswith(PAPERS)} <= set(CATALOG)


def test_folders_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("FEDEXP_DATA", "/a")
    monkeypatch.setenv("FEDEXP_CACHE", "/b")
    config = composed(["algo=fedavg", "data=cifar100"])["data"]
    assert (config["root"], config["cache"]) == ("/a", "/b")


def test_where_files_and_caches_are_does_not_change_a_run():
    one = chosen("mnist")
    assert one["data"]["cache"] is not None
    moved = {**one["data"], "cache": None, "root": "/elsewhere", "writers": "/there", "download": False}
    assert run_id(one) == run_id({**one, "data": moved})
    assert run_id(one) != run_id({**one, "data": {**moved, "size": 28}})


@pytest.mark.parametrize(
    ("name", "size", "std", "augment"),
    [
        ("cifar10", None, 0.2023, ["crop", "flip"]),
        ("cifar10_fedmr", None, 0.2470, ["reflect_crop", "flip"]),
        ("cifar10_fedgela", None, 0.2470, []),
        ("cifar10_fedrema", None, 0.5, []),
        ("cifar100", None, 0.2023, ["crop", "flip"]),
        ("cifar100_fedmr", None, 0.2673, ["crop", "flip", "rotate"]),
        ("cifar100_fedgela", None, 0.2673, ["crop", "flip", "rotate"]),
        ("fmnist", 32, 0.5, []),
        ("fmnist_fedmr", 28, 1.0, []),
        ("fmnist_fedgela", 28, 1.0, []),
        ("fmnist_fedrema", 28, 0.5, []),
        ("mnist_fedrema", 28, 0.5, []),
        ("svhn", None, 0.1980, []),
    ],
)
def test_the_papers_pipelines_are_choices(name, size, std, augment):
    config = chosen(name)["data"]
    assert (config["size"], config["std"][0], config["augment"]) == (size, std, augment)
    assert pipeline(config["augment"], config["mean"], config["std"]) is None or augment


@pytest.mark.parametrize("name", ["cifar10", "cifar10_fedmr", "femnist", "ustc_tfc2016"])
def test_a_data_sets_network_is_its_usual_one_unless_another_is_asked_for(name):
    usual = chosen(name)["choices"]["model"]
    assert usual == {"femnist": "fecnn", "ustc_tfc2016": "sacnn_standin"}.get(name, "tfcnn")
    assert composed(["algo=fedavg", f"data={name}", "model=mlpnet"])["choices"]["model"] == "mlpnet"


@pytest.mark.skipif("FEDEXP_DATA" not in os.environ, reason="FEDEXP_DATA names no folder with the real data sets")
@pytest.mark.parametrize("name", [n for n in CATALOG if CATALOG[n].places])
def test_the_real_data_sets_load(name, tmp_path):
    if CATALOG[name].find(Path(os.environ["FEDEXP_DATA"])) is None:
        pytest.skip(f"{name} is not in FEDEXP_DATA")
    config = chosen(name)["data"] | {"root": os.environ["FEDEXP_DATA"], "cache": str(tmp_path)}
    first, again = make(config).load(), make(config).load()
    assert again.spec.n_classes == CATALOG[name].classes
    n_train, n_test = CATALOG[name].samples
    assert not n_train or (len(again.train), len(again.test)) == (n_train, n_test)
    for one, two in ((first.train, again.train), (first.test, again.test)):
        assert torch.equal(one.x, two.x)
        assert torch.equal(one.y, two.y)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    from fedexp.data.digits import _table

    bundle = load_digits()
    assert np.array_equal(_table()[:, :-1], bundle.data)
    assert np.array_equal(_table()[:, -1], bundle.target)


def test_digits_without_their_file(monkeypatch):
    monkeypatch.setattr("fedexp.data.digits.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install"):
        Digits().load()


GOOD = Samples(torch.zeros(4, 3), torch.arange(4))


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        ((GOOD, GOOD), r"load\(\) must return a fedexp\.data\.source\.Loaded, not tuple"),
        (
            {"train": Samples(GOOD.x.double(), GOOD.y)},
            r"train\.x must be float32 .* not torch\.float64 and",
        ),
        ({"test": Samples(GOOD.x, GOOD.y.float())}, r"test\.y int64, not torch\.float32 and torch\.float32"),
        ({"spec": DataSpec((4,), 4)}, r"train\.x must have the shape \[samples, \*\(4,\)\] .* not \[4, 3\] and \[4\]"),
        ({"test": Samples(GOOD.x, GOOD.y[:3])}, r"test\.y one label for each, not \[4, 3\] and \[3\]"),
        ({"spec": DataSpec((3,), 3)}, r"train\.y must have labels from 0 to 2, not from 0 to 3"),
        ({"owners": torch.zeros(3, dtype=torch.int64)}, r"owners of train must be int64, one for each sample"),
        ({"train": GOOD.select(torch.arange(0))}, r"there is no training sample"),
    ],
)
def test_a_data_set_that_is_not_what_it_says_is_refused(loaded, message):
    if isinstance(loaded, dict):
        loaded = Loaded(**{"spec": DataSpec((3,), 4), "train": GOOD, "test": GOOD, "augment": None, **loaded})
    with pytest.raises(DataError, match=f"^data: .*{message}"):
        identified(loaded)


def test_a_data_set_as_it_should_be_gets_its_digest():
    assert identified(Loaded(DataSpec((3,), 4), GOOD, GOOD, None)).digest
