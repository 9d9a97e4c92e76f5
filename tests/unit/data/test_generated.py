"""Byte streams and generated data sets: their figures, and what the papers' toy is there to show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.data.catalog import CATALOG
from fedexp.data.circles import CENTRES, OPTIMAL, RADIUS, Circles
from fedexp.data.sa_synthetic import SaSynthetic
from fedexp.data.synthetic import Synthetic
from fedexp.data.traffic import UstcTfc2016
from fedexp.errors import ConfigError, DataError

PAIRS = ((0, 1), (0, 2), (1, 2))


@pytest.mark.parametrize("name", ["circles", "synthetic"])
def test_generated_data_have_the_figures_of_the_catalogue_and_are_the_same_every_time(name):
    source = make(composed(["algo=fedavg", f"data={name}"])["data"])
    one, two = source.load(), source.load()
    assert (len(one.train), len(one.test)) == CATALOG[name].samples
    assert one.spec.n_classes == CATALOG[name].classes == len(one.train.y.unique()) == len(one.test.y.unique())
    assert one.spec.shape == one.train.x.shape[1:] == one.test.x.shape[1:]
    assert torch.equal(one.train.x, two.train.x)
    assert torch.equal(one.test.x, two.test.x)
    assert one.train.x.dtype == torch.float32


# ---------------------------------------------------------------- circles
@pytest.fixture(scope="module")
def circles():
    return Circles(samples=400, test=100, seed=0).load()


def test_points_fill_their_discs_evenly(circles):
    offset = circles.train.x - torch.tensor(CENTRES)[circles.train.y]
    radius = offset.norm(dim=1)
    assert radius.max() <= RADIUS
    assert (radius < RADIUS / 2).float().mean() == pytest.approx(1 / 4, abs=0.05)  # as the areas
    assert offset.mean(dim=0).abs().max() < 0.03


def degrees_between(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    return F.cosine_similarity(one, two).clamp(-1, 1).arccos().rad2deg()


def test_the_mean_of_clients_with_two_classes_each_points_45_degrees_off(circles):
    """FedMR, section 3.2: each client separates its two classes along the line between their centres."""
    weights = torch.zeros(3, 3, 2)
    for client, (a, b) in enumerate(PAIRS):
        centre_a, centre_b = (circles.train.x[circles.train.y == c].mean(dim=0) for c in (a, b))
        weights[client, a] = F.normalize(centre_a - centre_b, dim=0)
        weights[client, b] = -weights[client, a]
    mean = weights.mean(dim=0)
    printed = torch.tensor([[1 / 3, 0], [-1 / 6, (3**0.5 + 2) / 6], [-1 / 6, -(3**0.5 + 2) / 6]])
    torch.testing.assert_close(mean, printed, atol=0.01, rtol=0)
    first, second, third = degrees_between(mean, torch.tensor(OPTIMAL)).tolist()
    assert first < 1
    assert second == pytest.approx(45, abs=1)
    assert third == pytest.approx(45, abs=1)


def learned(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, present: set[int]) -> torch.Tensor:
    """A linear classifier without bias, trained from zero; classes that are not present keep their zero row."""
    rows = torch.zeros(3, 2)
    share = (weight / weight.sum()).unsqueeze(1)
    absent, hot = torch.tensor([c not in present for c in range(3)]), F.one_hot(y, 3)
    for _ in range(2000):
        wrong = torch.softmax((x @ rows.T).masked_fill(absent, -torch.inf), dim=1) - hot
        rows = rows - (wrong * share).T @ x
    return rows


def test_with_the_centroid_of_the_missing_class_directions_are_those_of_all_data():
    """FedMR, section 3.2: a single point for the class a client lacks sets its direction right.

    Trained classifiers are compared here, not the paper's weights: two classes alone turn a client's own rows by 30
    degrees, of which the mean over the clients undoes two thirds.
    """
    train = Circles(samples=100, test=1, seed=0).load().train
    x, y, all_classes = train.x, train.y, {0, 1, 2}
    everything = learned(x, y, torch.ones(len(y)), all_classes)
    without, having = [], []
    for pair in map(set, PAIRS):
        (lacking,) = all_classes - pair
        own, rest = y != lacking, y == lacking
        without.append(learned(x[own], y[own], torch.ones(200), pair))
        points, labels = torch.cat([x[own], x[rest].mean(dim=0, keepdim=True)]), torch.cat([y[own], y[rest][:1]])
        weight = torch.cat([torch.ones(200), torch.tensor([100.0])])  # the point stands for a whole class
        having.append(learned(points, labels, weight, all_classes))
    for client, pair in enumerate(PAIRS):
        assert degrees_between(without[client], everything)[list(pair)].min() > 25
        assert degrees_between(having[client], everything).max() < 6
    assert degrees_between(torch.stack(without).mean(dim=0), everything)[1:].min() > 8
    assert degrees_between(torch.stack(having).mean(dim=0), everything).max() < 1.5


# ---------------------------------------------------------------- synthetic images
def synthetic(**changes) -> Synthetic:
    given = {"classes": 4, "samples": 50, "test": 20, "channels": 3, "size": 12, "noise": 1.0, "augment": (), "seed": 0}
    return Synthetic(**{**given, **changes})


def test_synthetic_images_can_be_told_apart_and_noise_makes_it_harder():
    def nearest(noise: float) -> float:
        loaded = synthetic(noise=noise).load()
        means = torch.stack([loaded.train.x[loaded.train.y == c].mean(dim=0) for c in range(4)]).flatten(1)
        guess = torch.cdist(loaded.test.x.flatten(1), means).argmin(dim=1)
        return float((guess == loaded.test.y).float().mean())

    assert nearest(0.5) > 0.95 > nearest(6.0) > 0.25
    x = synthetic().load().train.x
    assert x.shape == (200, 3, 12, 12)
    assert abs(float(x.mean())) < 0.3
    assert float(x.std()) == pytest.approx(1, abs=0.2)


def test_synthetic_images_follow_their_own_seed_and_can_be_augmented():
    assert not torch.equal(synthetic().load().train.x, synthetic(seed=1).load().train.x)
    assert synthetic(augment=("crop", "flip")).load().augment.names == ("crop", "flip")


# ---------------------------------------------------------------- service awareness
def test_the_synthetic_service_awareness_has_the_figures_of_fedrs():
    loaded = make(composed(["algo=fedavg", "data=sa_synthetic"])["data"]).load()
    assert (len(loaded.train), len(loaded.test)) == CATALOG["sa_synthetic"].samples
    assert loaded.spec.n_classes == CATALOG["sa_synthetic"].classes == len(loaded.test.y.unique())
    counts = torch.zeros(89, 32, dtype=torch.int64)
    counts.index_put_((loaded.owners, loaded.train.y), torch.tensor(1), accumulate=True)
    assert (counts.sum(dim=1) > 0).all()
    assert (counts > 0).sum(dim=1).float().mean() == pytest.approx(17.5, abs=0.05)
    assert counts.sum(dim=1).float().mean() == 576
    assert len(loaded.test) == 18_000
    assert (loaded.spec.shape, loaded.test_owners) == ((1, 784), None)
    assert counts.sum(dim=1).max() > 3 * counts.sum(dim=1).min()


@pytest.mark.parametrize("change", [{"owned": 40}, {"owned": 0.5}, {"samples": 5}, {"length": 100}])
def test_impossible_figures_are_refused(change):
    given = {"clients": 5, "classes": 8, "owned": 4, "samples": 20, "test": 30, "length": 200, "noise": 0.1, "seed": 0}
    one, two = SaSynthetic(**given).load(), SaSynthetic(**given).load()
    assert torch.equal(one.train.x, two.train.x)
    with pytest.raises(ConfigError, match=f"data.{next(iter(change))}"):
        SaSynthetic(**given | change).load()


# ---------------------------------------------------------------- USTC-TFC2016
def sessions(folder, **arrays):
    np.savez(folder / "ustc_tfc2016_sessions.npz", **arrays)
    return UstcTfc2016(root=str(folder), cache=str(folder / "cache"))


def test_copies_of_a_session_are_all_in_training_or_all_in_testing(tmp_path):
    rng = np.random.default_rng(0)
    unique = rng.integers(0, 256, (300, 784), dtype=np.uint8)
    which = np.concatenate([np.arange(300), rng.integers(0, 300, 200)])
    x, y = unique[which], (which % 20).astype(np.uint8)
    y[-1] = (y[-1] + 1) % 20  # one string with two labels
    loaded = sessions(tmp_path, x=x, y=y).load()
    train, test = ({row.numpy().tobytes() for row in part.x} for part in (loaded.train, loaded.test))
    assert not train & test
    assert (len(train), len(test)) == (240, 60)
    assert len(loaded.train) + len(loaded.test) == 500
    assert (loaded.spec.shape, loaded.spec.n_classes, loaded.owners) == ((1, 784), 20, None)
    assert (float(loaded.train.x.min()), float(loaded.train.x.max())) == (0, 1)
    assert len(loaded.test.y.unique()) == 20


def test_other_arrays_and_damaged_files_are_named(tmp_path):
    x, y = np.zeros((5, 784), np.uint8), np.zeros(5, np.uint8)
    for arrays in ({"x": x[:, :700], "y": y}, {"x": x.astype(float), "y": y}, {"x": x, "y": y + 20}, {"x": x}):
        with pytest.raises(DataError, match=r"ustc_tfc2016_sessions.npz .*Expected are x \(uint8, N × 784\)"):
            sessions(tmp_path, **arrays).load()
    path = tmp_path / "ustc_tfc2016_sessions.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"cannot be read.*DeepTraffic"):
        UstcTfc2016(root=str(tmp_path), cache=None).load()
    path.unlink()
    with pytest.raises(DataError, match=r"ustc_tfc2016_sessions.npz is not there.*DeepTraffic"):
        UstcTfc2016(root=str(tmp_path), cache=None).load()
