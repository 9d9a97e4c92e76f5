"""The networks: exact sizes from the papers, the cut into parts, and what is said about images that do not fit."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import get_method
from omegaconf import OmegaConf
from torch import nn

from fedexp.errors import ConfigError
from fedexp.models import split
from fedexp.models.alexnet import alexnet
from fedexp.models.cnn import cnn
from fedexp.models.lenet import lenet
from fedexp.models.mlp import mlpnet
from fedexp.models.split import SplitModel, check_network, flat_size
from fedexp.models.tfcnn import tfcnn

CONF = Path(__file__).parents[3] / "conf" / "model"
GREY28, GREY32, COLOUR32 = (1, 28, 28), (1, 32, 32), (3, 32, 32)
lenet2d = partial(lenet, feature_dim=2, final_relu=False)


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("network", "shape", "feature_dim", "features", "classifier"),
    [
        (mlpnet, GREY28, 512, 664_576, 5_120),
        (mlpnet, GREY32, 512, 787_456, 5_120),
        (lenet, GREY28, 84, 43_576, 840),
        (lenet, GREY32, 84, 60_856, 840),
        (lenet2d, GREY28, 2, 33_654, 20),
        (tfcnn, COLOUR32, 1_024, 56_320, 10_240),
        (cnn, GREY28, 1_024, 52_096, 529_930),
        (alexnet, COLOUR32, 2_304, 978_496, 2_890_250),
    ],
)
def test_sizes_are_the_papers(network, shape, feature_dim, features, classifier):
    net = network(shape, 10)
    assert (net.feature_dim, size(net.features), size(net.classifier)) == (feature_dim, features, classifier)
    assert net.features(torch.zeros(2, *shape)).shape == (2, feature_dim)


def test_totals_are_fedremas():
    assert (size(cnn(GREY28, 10)), size(alexnet(COLOUR32, 10))) == (582_026, 3_868_746)


NETS = [
    *((network, shape) for network in (mlpnet, lenet, lenet2d, tfcnn, cnn, alexnet) for shape in (GREY28, COLOUR32)),
    (mlpnet, (1, 8, 8)),
    (tfcnn, (1, 8, 8)),
]


@pytest.mark.parametrize(("network", "shape"), NETS)
def test_every_parameter_has_a_part_and_learns(network, shape):
    net = network(shape, 7)
    x = torch.randn(4, *shape)
    logits = net(x)
    assert torch.equal(logits, net.classifier(net.features(x)))
    assert logits.shape == (4, 7)
    F.cross_entropy(logits, torch.arange(4)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        assert name.split(".")[0] == net.part_of(name)
        assert not net.is_norm(name)
    assert {net.part_of(name) for name, _ in net.named_parameters()} == {"features", "classifier"}


@pytest.mark.parametrize("network", [mlpnet, lenet, tfcnn])
def test_maps_and_fedrs_classifiers_are_one_layer_without_a_bias(network):
    assert isinstance(network(GREY32, 10).classifier, nn.Linear)
    assert network(GREY32, 10).classifier.bias is None
    assert network(GREY32, 10, bias=True).classifier.bias is not None


def test_two_features_go_below_zero_only_without_the_last_relu():
    x = torch.randn(64, *GREY28)
    assert lenet(GREY28, 10, feature_dim=2).features(x).min() >= 0
    assert lenet2d(GREY28, 10).features(x).min() < 0


def test_alexnets_classifier_is_a_product_of_linear_maps():
    net = alexnet(COLOUR32, 10, bias=False)
    a, b = torch.randn(2, 3, net.feature_dim)
    torch.testing.assert_close(net.classifier(a + b), net.classifier(a) + net.classifier(b), atol=1e-4, rtol=1e-4)


def test_widths_can_be_chosen():
    assert mlpnet((1, 8, 8), 10, hidden=(16,)).feature_dim == 16
    assert tfcnn(COLOUR32, 10, widths=(4, 8)).feature_dim == 8 * 8 * 8
    assert size(cnn(GREY28, 10, widths=(2, 3), hidden=5).classifier) == 48 * 5 + 5 + 5 * 10 + 10
    assert size(alexnet(COLOUR32, 10, hidden=()).classifier) == 2_304 * 10 + 10


def test_convolutions_of_maps_nets_start_from_kaiming_normal():
    conv = tfcnn(COLOUR32, 10).features[3]  # 32 -> 64
    assert conv.bias.abs().max() == 0
    assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.03)


@pytest.mark.parametrize("network", [mlpnet, lenet, tfcnn, cnn, alexnet])
def test_torchs_global_generator_is_the_only_chance(network):
    def weights(seed):
        with torch.random.fork_rng():
            torch.random.manual_seed(seed)
            return torch.cat([p.detach().flatten() for p in network(GREY28, 3).parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


# ---------------------------------------------------------------- the seam
def test_norm_layers_are_found_in_either_part():
    features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sequential(nn.GroupNorm(1, 2)), nn.Flatten())
    net = SplitModel(features, nn.Sequential(nn.LayerNorm(72), nn.Linear(72, 2)), 72)
    norms = {name for name in net.state_dict() if net.is_norm(name)}
    assert norms == {
        *(f"features.1.{x}" for x in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
        "features.2.0.weight",
        "features.2.0.bias",
        "classifier.0.weight",
        "classifier.0.bias",
    }
    assert net.part_of("features.1.running_mean") == "features"
    assert net.part_of("classifier.0.bias") == "classifier"


def test_a_dry_run_computes_and_changes_nothing():
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1))
    before = {name: value.clone() for name, value in body.state_dict().items()}
    state = torch.random.get_rng_state()
    assert flat_size(body, (1, 9, 9), name="x") == 2
    assert all(torch.equal(value, before[name]) for name, value in body.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("network", "shape"), [(cnn, (1, 8, 8)), (lenet, (1, 8, 8)), (alexnet, (1, 8, 8)), (tfcnn, (1, 4, 4))]
)
def test_images_that_shrink_to_nothing_are_refused(network, shape):
    size = "×".join(map(str, shape))
    with pytest.raises(ConfigError, match=rf"model={network.__name__} shrinks images of {size} .*data.size=28"):
        network(shape, 10)


def test_what_is_not_an_image_is_refused():
    with pytest.raises(ConfigError, match=r"cnn reads images .* the shape \(64,\)"):
        cnn((64,), 10)


SHAPES = {"charlstm": (20,), "sacnn_standin": (1, 64)}


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda p: p.stem)
def test_each_yaml_lists_every_keyword_and_builds(path):
    config = OmegaConf.to_container(OmegaConf.load(path))
    network = get_method(config.pop("_target_"))
    assert config.pop("_partial_") is True
    parameters = list(inspect.signature(network).parameters)
    assert parameters[:2] == ["shape", "n_classes"]
    assert set(config) == set(parameters[2:])
    shape = SHAPES.get(path.stem, COLOUR32)
    with torch.device("meta"):  # sizes without numbers
        net = network(shape, 10, **config)
        x = torch.zeros(2, *shape, dtype=torch.int64 if path.stem == "charlstm" else torch.float32)
        assert net.features(x).shape == (2, net.feature_dim)
        assert net(x).shape == (2, 10)


def test_stages_must_agree():
    from fedexp.models.vgg import vgg

    with pytest.raises(ConfigError, match=r"model.convs=\[1, 1\] and model.widths=\[8, 16, 32\] differ in length"):
        vgg(COLOUR32, 10, convs=(1, 1), widths=(8, 16, 32))


def test_a_perceptron_without_hidden_layers_is_linear_with_and_without_a_last_relu():
    for final_relu in (True, False):
        net = mlpnet((1, 8, 8), 10, hidden=(), final_relu=final_relu)
        assert net(torch.ones(2, 1, 8, 8)).shape == (2, 10)


def test_mlpnet_without_its_last_relu_has_features_of_both_signs():
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert mlpnet((1, 8, 8), 10).features(x).min() >= 0
    assert mlpnet((1, 8, 8), 10, final_relu=False).features(x).min() < 0


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Linear(3, 2), r"must be a fedexp\.models\.split\.SplitModel, not Linear"),
        (SplitModel(nn.Linear(3, 4), nn.Linear(4, 2), 5), r"features makes \[4\] numbers of a sample, .* \[5\]"),
        (SplitModel(nn.Linear(3, 4), nn.Linear(4, 7), 4), r"classifier makes \[7\] numbers of a sample, .* \[2\]"),
        (SplitModel(nn.Identity(), nn.Flatten(), 3), r"classifier makes \[3\]"),
    ],
)
def test_a_network_that_does_not_do_what_it_says_is_refused(net, message):
    with pytest.raises(ConfigError, match=message):
        check_network(net, torch.zeros(2, 3), 2)


def test_trying_a_network_changes_nothing_in_it():
    net = SplitModel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout()), nn.Linear(4, 2), 4)
    before, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    check_network(net, torch.ones(2, 3), 2)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert net.training


COUNTED = """
import sys
import torch
from fedexp.models.lenet import lenet
with torch.device("meta"):
    print(sum(p.numel() for p in lenet((1, 32, 32), 10).parameters()) > 60_000, "torch._dynamo" in sys.modules)
"""


def test_a_network_that_is_only_counted_does_not_load_torchs_compiler():
    """That would take a good part of every start."""
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_flat_size_is_the_same_for_large_bodies_and_draws_no_random_number(monkeypatch):
    def body():
        return nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(), nn.MaxPool2d(2), nn.Flatten()
        )

    small, random = body(), torch.get_rng_state()
    before = {k: v.clone() for k, v in small.state_dict().items()}
    assert flat_size(small, (1, 10, 10), name="x") == 3 * 4 * 4
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(v, before[k]) for k, v in small.state_dict().items())
    monkeypatch.setattr(split, "SMALL_BODY_BYTES", 0)
    assert flat_size(body(), (1, 10, 10), name="x") == 3 * 4 * 4
    with torch.device("meta"):
        huge = nn.Sequential(nn.Conv2d(1, 10**6, 3), nn.Conv2d(10**6, 10**6, 3), nn.Flatten())  # 36 TB
    monkeypatch.undo()
    assert flat_size(huge, (1, 10, 10), name="x") == 6 * 6 * 10**6
