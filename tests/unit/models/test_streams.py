"""FeCNN, CharLSTM and the stand-in for SACNN: FedRS's counts, and what each accepts as input."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedexp.client.network import FrozenCopies, layout_of, tensors
from fedexp.core.state import snapshot
from fedexp.errors import ConfigError
from fedexp.models.charlstm import charlstm
from fedexp.models.fecnn import fecnn
from fedexp.models.sacnn import sacnn_standin


def size(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("network", "shape", "n_classes", "features", "feature_dim", "classifier"),
    [
        (charlstm, (80,), 81, 799_368, 256, 20_736),
        (fecnn, (1, 28, 28), 62, 6_476_672, 2_048, 126_976),
        (sacnn_standin, (1, 256), 32, 15_984, 256, 8_192),
    ],
)
def test_sizes_are_those_of_fedrs_table_4(network, shape, n_classes, features, feature_dim, classifier):
    with torch.device("meta"):
        net = network(shape, n_classes)
    assert (size(net.features), net.feature_dim, size(net.classifier)) == (features, feature_dim, classifier)
    assert net.classifier.bias is None


# ---------------------------------------------------------------- characters
def test_charlstm_reads_int64_and_every_parameter_learns():
    net = charlstm((12,), 9)
    x = torch.randint(9, (4, 12))
    F.cross_entropy(net(x), torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in net.parameters())


def test_charlstm_reads_in_order_and_answers_for_the_last_character():
    net = charlstm((6,), 9)
    x = torch.arange(6).repeat(2, 1)
    x[1] = x[1].flip(0)
    h = net.features(x)
    assert not torch.allclose(h[0], h[1])
    longer = torch.cat([torch.full((2, 3), 8), x], dim=1)
    outputs = net.features.lstm(net.features.embed(longer))[0]
    torch.testing.assert_close(net.features(longer), outputs[:, -1])


def test_charlstms_alphabet_is_the_classes_unless_said_otherwise():
    assert charlstm((5,), 30).features.embed.num_embeddings == 30
    assert charlstm((5,), 2, vocabulary=81).features.embed.num_embeddings == 81


def test_charlstm_does_not_round_floats():
    with pytest.raises(ConfigError, match=r"model=charlstm reads characters as whole numbers .* torch.float32"):
        charlstm((5,), 4)(torch.zeros(2, 5))


def test_a_spare_copy_of_an_lstm_runs_the_weights_it_is_given():
    net, other = charlstm((5,), 4), charlstm((5,), 4)
    x = torch.randint(4, (3, 5))
    frozen = FrozenCopies(net).fresh()(snapshot(tensors(other)))
    h, z = frozen.features(x), frozen(x)
    torch.testing.assert_close(h, other.features(x).detach())
    torch.testing.assert_close(z, other(x).detach())
    assert layout_of(net).parts["norm"] == frozenset()


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 80)], ids=str)
def test_what_is_not_a_text_is_refused(shape):
    with pytest.raises(ConfigError, match=r"model=charlstm reads sequences of characters .*model=mlpnet"):
        charlstm(shape, 4)


# ---------------------------------------------------------------- bytes
@pytest.mark.parametrize("length", [32, 100, 784])
def test_the_stand_in_has_256_features_of_streams_of_any_length(length):
    net = sacnn_standin((1, length), 5)
    assert net.feature_dim == 256
    F.cross_entropy(net(torch.rand(4, 1, length)), torch.arange(4)).backward()
    assert all(p.grad is not None for p in net.parameters())


def test_streams_that_are_too_short_are_refused():
    with pytest.raises(ConfigError, match=r"model=sacnn_standin shrinks sequences of 1×31 .*longer"):
        sacnn_standin((1, 31), 5)


@pytest.mark.parametrize("shape", [(1, 28, 28), (784,)], ids=str)
def test_what_is_not_a_stream_is_refused(shape):
    with pytest.raises(ConfigError, match=r"model=sacnn_standin reads byte streams .*model=mlpnet"):
        sacnn_standin(shape, 5)


# ---------------------------------------------------------------- handwriting
def test_fecnn_is_refused_what_is_no_image_or_too_small():
    with pytest.raises(ConfigError, match="fecnn reads images"):
        fecnn((784,), 62)
    with pytest.raises(ConfigError, match=r"model=fecnn shrinks images of 1×3×3 .*data.size=28"):
        fecnn((1, 3, 3), 62)
