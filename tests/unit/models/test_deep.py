"""VGG, ResNet, wide ResNet, EfficientNet: the papers' counts, exactly, and what normalisation does to images."""

from __future__ import annotations

import math
import socket
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import nn

from fedexp.client.network import layout_of
from fedexp.config.make import make
from fedexp.config.sources import conf_dir
from fedexp.errors import ConfigError
from fedexp.models.efficientnet import efficientnet_b0
from fedexp.models.resnet import PaddedShortcut, resnet
from fedexp.models.vgg import vgg
from fedexp.models.wide_resnet import WideBlock, wide_resnet

GREY28, COLOUR32 = (1, 28, 28), (3, 32, 32)
tiny_wrn = partial(wide_resnet, depth=10, widen=1)
tiny_vgg = partial(vgg, convs=(1, 1), widths=(4, 8))
tiny_resnet = partial(resnet, blocks=(1, 1), widths=(4, 8))


def named(choice, shape=COLOUR32, n_classes=10, **settings):
    """The network of a yaml, with sizes but without numbers."""
    config = OmegaConf.to_container(OmegaConf.load(conf_dir() / "model" / f"{choice}.yaml"))
    with torch.device("meta"):
        return make(config | settings)(shape, n_classes)


def size(module):
    return sum(p.numel() for p in module.parameters())


def state_size(module):
    return sum(v.numel() for v in module.state_dict().values())


# ---------------------------------------------------------------- counts
@pytest.mark.parametrize(
    ("choice", "features", "feature_dim", "classifier"),
    [
        ("vgg8", 3_910_784, 512, 5_120),
        ("vgg8_bn", 3_913_728, 512, 5_120),
        ("vgg11", 9_220_480, 512, 5_120),  # FedRS, table 4
        ("vgg11_bn", 9_225_984, 512, 5_120),
        ("vgg16_bn", 14_723_136, 512, 5_120),
        ("resnet20", 271_824, 64, 640),
        ("resnet56", 855_120, 64, 640),
        ("resnet18", 11_168_832, 512, 5_130),
        ("resnet18_fc", 11_431_488, 512, 5_130),
    ],
)
def test_features_have_the_papers_sizes(choice, features, feature_dim, classifier):
    net = named(choice)
    assert (size(net.features), net.feature_dim, size(net.classifier)) == (features, feature_dim, classifier)
    assert isinstance(net.classifier, nn.Linear)


@pytest.mark.parametrize(("choice", "features"), [("resnet20", 269_072), ("resnet56", 852_368)])
def test_padded_shortcuts_have_no_parameters(choice, features):
    assert size(named(choice, shortcut="pad").features) == features


def test_one_hundred_classes_cost_what_the_sheet_says():
    assert size(named("vgg8_bn", n_classes=100).classifier) == 51_200
    assert size(named("resnet18_fc", n_classes=100)) == 11_482_788


@pytest.mark.parametrize(
    ("choice", "shape", "n_classes", "parameters", "state"),
    [
        ("resnet18", COLOUR32, 10, 11_173_962, 11_183_582),  # 11.184 M
        ("resnet18", GREY28, 10, 11_172_810, 11_182_430),  # 11.182 M
        ("wrn28_10", COLOUR32, 100, 36_546_980, 36_564_957),  # 36.565 M
        ("efficientnet_b0", COLOUR32, 8, 4_832_516, 4_874_581),  # 4.875 M
    ],
)
def test_states_are_those_of_fedmrs_table_3(choice, shape, n_classes, parameters, state):
    net = named(choice, shape, n_classes)
    assert (size(net), state_size(net)) == (parameters, state)
    layout = layout_of(net)  # what travels is what the table counts
    tensors = net.state_dict()
    assert sum(tensors[n].numel() for n in (*layout.parameters, *layout.buffers)) == state


def test_vgg8_bn_has_2949_numbers_in_buffers():
    net = named("vgg8_bn")
    assert state_size(net) - size(net) == 2_949


def test_efficientnets_body_is_torchvisions():
    net = named("efficientnet_b0", n_classes=8)
    assert size(net.features[0]) == 4_007_548
    assert state_size(net.features[0]) == 4_007_548 + 42_016 + 49
    assert named("efficientnet_b0", hidden=None).feature_dim == 1_280


def test_map_and_fedrs_have_no_bias_and_fedmr_and_fedgela_do():
    without = ("vgg8", "vgg8_bn", "vgg11", "vgg11_bn", "vgg16_bn", "resnet20", "resnet56")
    assert all(named(choice).classifier.bias is None for choice in without)
    assert all(named(c).classifier.bias is not None for c in ("resnet18", "resnet18_fc", "wrn28_10", "efficientnet_b0"))


# ---------------------------------------------------------------- structure
def test_vggs_convolutions_keep_their_bias_beside_batch_norm():
    assert all(m.bias is not None for m in named("vgg16_bn").modules() if isinstance(m, nn.Conv2d))


def test_resnets_convolutions_have_none():
    assert all(m.bias is None for m in named("resnet18").modules() if isinstance(m, nn.Conv2d))


def test_wide_resnet_is_as_the_public_code_has_it():
    net = named("wrn28_10", n_classes=100)
    blocks = [m for m in net.features if isinstance(m, WideBlock)]
    assert [b.conv2.out_channels for b in blocks] == [160] * 4 + [320] * 4 + [640] * 4
    assert [b.conv2.stride for b in blocks if b.conv2.stride != (1, 1)] == [(2, 2)] * 2
    assert {b.conv1.stride for b in blocks} == {(1, 1)}
    assert {b.dropout.p for b in blocks} == {0.3}
    assert all(m.bias is not None for m in net.modules() if isinstance(m, nn.Conv2d))
    norms = [m for m in net.features.modules() if isinstance(m, nn.BatchNorm2d)]
    assert [m.momentum for m in norms] == [0.1] * (len(norms) - 1) + [0.9]


def test_wide_resnets_depth_is_checked():
    with pytest.raises(ConfigError, match=r"model.depth=20 is not 6n \+ 4"):
        wide_resnet(COLOUR32, 10, depth=20)


def test_a_padded_shortcut_takes_every_second_pixel_and_adds_empty_channels():
    x = torch.arange(32.0).view(1, 2, 4, 4)
    out = PaddedShortcut(3, 2)(x)
    assert out.shape == (1, 5, 2, 2)
    assert torch.equal(out[0, 0], torch.tensor([[0.0, 2.0], [8.0, 10.0]]))
    assert out[:, 2:].abs().max() == 0


def test_a_layer_behind_the_pooling_lets_features_go_below_zero():
    x = torch.randn(8, *COLOUR32)
    assert tiny_resnet(COLOUR32, 4).features(x).min() >= 0
    assert tiny_resnet(COLOUR32, 4, hidden=16).features(x).min() < 0


def test_convolutions_of_resnets_start_from_kaiming_normal():
    conv = resnet(COLOUR32, 10, blocks=(1, 1), widths=(16, 64)).features[4].conv2
    assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.03)


# ---------------------------------------------------------------- use
@pytest.mark.parametrize("network", [tiny_vgg, partial(tiny_vgg, batch_norm=True), tiny_resnet, tiny_wrn])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 17, 23), COLOUR32], ids=str)
def test_other_image_sizes_and_channels_run_and_every_parameter_learns(network, shape):
    net = network(shape, 5)
    F.cross_entropy(net(torch.randn(4, *shape)), torch.arange(4)).backward()
    assert all(p.grad is not None for p in net.parameters())
    assert net.features(torch.randn(2, *shape)).shape == (2, net.feature_dim)


@pytest.mark.parametrize("network", [partial(tiny_vgg, batch_norm=True), tiny_resnet, tiny_wrn])
def test_one_image_can_be_tested_alone_and_gets_the_same_answer(network):
    net = network(COLOUR32, 5).eval()
    x = torch.randn(3, *COLOUR32)
    with torch.no_grad():
        torch.testing.assert_close(net(x)[:1], net(x[:1]))


@pytest.mark.parametrize("network", [partial(tiny_vgg, batch_norm=True), tiny_resnet, tiny_wrn])
def test_norm_is_exactly_the_batch_norms(network):
    net = network(COLOUR32, 5)
    layout = layout_of(net)
    norms = [n for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert {n.rpartition(".")[0] for n in layout.parts["norm"]} == set(norms)
    assert set(layout.buffers) <= layout.parts["norm"]
    assert layout.parts["norm"] <= layout.parts["features"]


def test_efficientnet_takes_grey_images_and_leaves_torchvisions_start_for_coloured_ones():
    assert named("efficientnet_b0", GREY28).features[0][0][0].in_channels == 1
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        net = efficientnet_b0((1, 8, 8), 3)
        stem = net.features[0][0][0].weight
    assert stem.std().item() == pytest.approx(math.sqrt(2 / (32 * 9)), rel=0.15)
    net.eval()
    assert net(torch.randn(1, 1, 8, 8)).shape == (1, 3)


def test_images_too_small_for_vgg_are_told_a_size_that_fits():
    for shape in ((1, 8, 8), GREY28):
        with pytest.raises(ConfigError, match=r"model=vgg8 shrinks images of .*data.size=32"):
            vgg(shape, 10, convs=(1, 1, 1, 1, 1))
    assert vgg((1, 32, 32), 10, convs=(1,) * 5, widths=(4,) * 5).feature_dim == 4
    with pytest.raises(ConfigError, match=r"model=vgg11_bn .*data.size=32"):
        vgg(GREY28, 10, batch_norm=True)


@pytest.mark.parametrize("network", [vgg, resnet, wide_resnet, efficientnet_b0])
def test_sequences_are_refused(network):
    with pytest.raises(ConfigError, match=r"reads images .* the shape \(80,\)"):
        network((80,), 10)


def test_nothing_is_downloaded(monkeypatch):
    def refuse(*_):
        raise AssertionError("a network wants the internet")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for choice in ("vgg11", "resnet18", "efficientnet_b0", "wrn28_10"):
        named(choice)
