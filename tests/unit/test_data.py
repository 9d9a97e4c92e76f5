"""Sources, pixels and augmentations; the loaders read small files in torchvision's own formats."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hydra.utils import get_class
from omegaconf import OmegaConf
from torchvision.datasets import CIFAR10, MNIST

from fedexp.data import fetch, pixels
from fedexp.data.augment import PADDING, Pipeline, crop, flip, pipeline
from fedexp.data.digits import Digits
from fedexp.data.layout import LAYOUTS
from fedexp.data.pixels import normalised
from fedexp.data.source import Samples
from fedexp.data.vision import TorchvisionImages
from fedexp.errors import ConfigError, DataError

CONF = Path(__file__).parents[2] / "conf" / "data"
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
    monkeypatch.setattr(pixels, "CHUNK", 3)
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
    with pytest.raises(ConfigError, match=r"data.augment is 'flipp', which is none of crop, flip. .*'flip'\?"):
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


# ---------------------------------------------------------------- files in torchvision's formats
def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    path.write_bytes(header + values.astype(np.uint8).tobytes())


@pytest.fixture
def mnist(tmp_path):
    """Twelve training and five test images."""
    rng = np.random.default_rng(0)
    stored = {}
    for name, n in (("train", 12), ("t10k", 5)):
        stored[name] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n)
        write_idx(tmp_path / "MNIST" / "raw" / f"{name}-images-idx3-ubyte", stored[name][0])
        write_idx(tmp_path / "MNIST" / "raw" / f"{name}-labels-idx1-ubyte", stored[name][1])
    return tmp_path, stored


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Three images in each of the six batches; the md5 table that torchvision checks is that of these files."""
    folder, rng = tmp_path / "cifar-10-batches-py", np.random.default_rng(0)
    folder.mkdir()
    stored = {}

    def write(name: str, content: dict) -> list[str]:
        stored[name] = content
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest()]

    def batch(name: str) -> list[str]:
        data = rng.integers(0, 256, (3, 3072), dtype=np.uint8)
        return write(name, {"data": data, "labels": rng.integers(0, 10, 3).tolist()})

    monkeypatch.setattr(CIFAR10, "train_list", [batch(f"data_batch_{i}") for i in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [batch("test_batch")])
    meta = write("batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    return tmp_path, stored


def images(dataset: str, root: Path, **changes) -> TorchvisionImages:
    channels = 3 if dataset == "CIFAR10" else 1
    given = {"size": None, "mean": (0.5,) * channels, "std": (0.5,) * channels, "augment": (), "download": False}
    return TorchvisionImages(**{"dataset": dataset, "root": str(root), **given, **changes})


def test_mnist_files_are_read(mnist):
    root, stored = mnist
    loaded = images("MNIST", root).load()
    assert (loaded.spec.shape, loaded.spec.n_classes, loaded.augment) == ((1, 28, 28), 10, None)
    for samples, (data, labels) in ((loaded.train, stored["train"]), (loaded.test, stored["t10k"])):
        torch.testing.assert_close(samples.x[:, 0], torch.from_numpy(data) / 255 * 2 - 1)
        assert samples.y.tolist() == labels.tolist()
        assert samples.y.dtype == torch.int64


def test_cifar_files_are_read_channel_by_channel(cifar):
    root, stored = cifar
    loaded = images("CIFAR10", root, augment=("crop", "flip")).load()
    assert (loaded.spec.shape, loaded.spec.n_classes, len(loaded.train), len(loaded.test)) == ((3, 32, 32), 10, 15, 3)
    first = torch.from_numpy(stored["data_batch_2"]["data"][0]).view(3, 32, 32) / 255 * 2 - 1
    torch.testing.assert_close(loaded.train.x[3], first)
    assert loaded.test.y.tolist() == stored["test_batch"]["labels"]
    assert loaded.augment is not None


def test_images_are_resized_and_home_is_understood(mnist, monkeypatch):
    monkeypatch.setenv("HOME", str(mnist[0]))
    loaded = images("MNIST", Path("~"), size=32).load()
    assert loaded.train.x.shape == (12, 1, 32, 32)
    assert loaded.spec.shape == (1, 32, 32)


def test_an_unknown_data_set_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"data.dataset is 'FashonMNIST'.*Did you mean 'FashionMNIST'\?"):
        images("FashonMNIST", tmp_path).load()


# ---------------------------------------------------------------- what is missing or broken
def test_missing_files_are_named_with_the_ways_to_get_them(mnist):
    root, _ = mnist
    (root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError) as caught:
        images("MNIST", root).load()
    message = str(caught.value)
    assert f"MNIST is not complete in {root}: 1 of 4 files are missing (MNIST/raw/t10k-labels-idx1-ubyte)" in message
    for way in (
        "data.root=<folder>",
        "FEDEXP_DATA=<folder>",
        "data.download=true",
        *MNIST.mirrors,
        "data.download=false",
    ):
        assert way in message


def no_names(*args, **kwargs):
    raise socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize("dataset", ["CIFAR10", "MNIST", "FashionMNIST"])
def test_without_a_network_a_download_is_given_up_soon(tmp_path, monkeypatch, capfd, dataset):
    monkeypatch.setattr(socket, "getaddrinfo", no_names)
    begin = time.perf_counter()
    with pytest.raises(DataError, match=r"files are missing .*here: tried, but none of its \d address\(es\) answered"):
        images(dataset, tmp_path, download=True).load()
    assert time.perf_counter() - begin < 3
    assert capfd.readouterr() == ("", "")


def test_a_silent_network_is_given_up_in_time(monkeypatch):
    release = threading.Event()

    def silence(*args, **kwargs):
        release.wait(20)
        raise TimeoutError

    monkeypatch.setattr(urllib.request, "urlopen", silence)
    begin = time.perf_counter()
    assert not fetch.answers("http://example.invalid/", seconds=0.2)
    assert time.perf_counter() - begin < 2
    release.set()


def test_a_host_that_refuses_is_a_host_that_answers(monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.HTTPError("http://example.invalid/", 403, "Forbidden", None, None)

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    assert fetch.answers("http://example.invalid/")


def test_a_download_that_breaks_off_is_reported_quietly(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(fetch, "answers", lambda url: True)
    monkeypatch.setattr(socket, "getaddrinfo", no_names)
    limit = socket.getdefaulttimeout()
    with pytest.raises(DataError, match="here: tried, but failed with RuntimeError: Error downloading train-images"):
        images("MNIST", tmp_path, download=True).load()
    assert capfd.readouterr() == ("", "")
    assert socket.getdefaulttimeout() == limit


def test_what_a_download_prints_is_not_shown(mnist, monkeypatch, capsys):
    root, _ = mnist
    lost = root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    content = lost.read_bytes()
    lost.unlink()
    layout = LAYOUTS["MNIST"](MNIST, root)

    def download():
        print("100%", file=sys.stderr)  # noqa: T201 - as torchvision does
        print("Extracting")  # noqa: T201
        lost.write_bytes(content)

    monkeypatch.setattr(fetch, "answers", lambda url: True)
    fetch.obtain("MNIST", root, layout, download=download)
    assert lost.exists()
    assert capsys.readouterr() == ("", "")


def test_archives_that_are_there_are_unpacked_without_a_network(mnist, monkeypatch):
    import gzip

    root, _ = mnist
    resources = []
    for path in sorted((root / "MNIST" / "raw").iterdir()):
        archive = path.with_name(path.name + ".gz")
        archive.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        resources.append((archive.name, hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()))
    monkeypatch.setattr(MNIST, "resources", resources)
    monkeypatch.setattr(socket, "getaddrinfo", no_names)
    assert len(images("MNIST", root, download=True).load().train) == 12


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (
            lambda raw: raw[:-100],
            r"train-images-idx3-ubyte holds 9,324 bytes, but its header \[12, 28, 28\] promises 9,424",
        ),
        (lambda raw: raw + b"x", "holds 9,425 bytes"),
        (lambda raw: b"<html>", r"train-images-idx3-ubyte \(6 bytes\) does not begin like an idx file"),
        (lambda raw: b"", r"\(0 bytes\) does not begin"),
    ],
)
def test_a_damaged_idx_file_is_named(mnist, damage, fault):
    path = mnist[0] / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"MNIST in .* cannot be read: .*{fault}.*Delete what is named"):
        images("MNIST", mnist[0]).load()


def test_a_damaged_cifar_batch_is_named_with_its_md5(cifar):
    path = cifar[0] / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1])
    published = CIFAR10.train_list[2][1]
    with pytest.raises(
        DataError, match=rf"data_batch_3 \([\d,]+ bytes\) has md5 \w+, not the published {published}"
    ) as caught:
        images("CIFAR10", cifar[0]).load()
    assert "data_batch_2" not in str(caught.value)


def test_images_without_labels_are_refused(mnist):
    write_idx(mnist[0] / "MNIST" / "raw" / "train-labels-idx1-ubyte", np.arange(11) % 10)
    with pytest.raises(DataError, match="12 images and 11 labels from 0 to 9; 10 classes were expected"):
        images("MNIST", mnist[0]).load()


# ---------------------------------------------------------------- the yamls
def settings(path):
    """A data set's settings; some files also name the data set's usual network."""
    config = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    return config.get("data", config)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda p: p.stem)
def test_each_yaml_lists_every_field(path, monkeypatch):
    monkeypatch.delenv("FEDEXP_DATA", raising=False)
    config = settings(path)
    kind = get_class(config.pop("_target_"))
    assert set(config) == {field.name for field in fields(kind)}
    kind(**config)
    assert config.get("root", "~/.cache/fedexp/data") == "~/.cache/fedexp/data"


@pytest.mark.slow
@pytest.mark.skipif("FEDEXP_DATA" not in os.environ, reason="FEDEXP_DATA names no folder with the real data sets")
@pytest.mark.parametrize(
    ("name", "shape", "n_train"),
    [("cifar10", (3, 32, 32), 50_000), ("mnist", (1, 32, 32), 60_000), ("fmnist", (1, 32, 32), 60_000)],
)
def test_the_real_data_sets_load(name, shape, n_train):
    config = settings(CONF / f"{name}.yaml")
    loaded = get_class(config.pop("_target_"))(**(config | {"download": False})).load()
    assert (loaded.spec.shape, len(loaded.train), len(loaded.test)) == (shape, n_train, 10_000)
    assert len(loaded.train.y.unique()) == loaded.spec.n_classes == 10
