"""A network as a tree, its parts, and spare copies for other weights."""

from __future__ import annotations

import ctypes.util
import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

from fedexp.client import network
from fedexp.client.network import FrozenCopies, fastest_memory_format, layout_of, load, tensors
from fedexp.core.state import digest, snapshot
from fedexp.models.alexnet import alexnet
from fedexp.models.lenet import lenet
from fedexp.models.mlp import mlpnet
from fedexp.models.resnet import resnet
from fedexp.models.split import SplitModel
from fedexp.testing import SIDE, tiny_net

X = torch.linspace(-1, 1, 3 * SIDE * SIDE).view(3, 1, SIDE, SIDE)


def other(net: SplitModel, seed: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {
        n: torch.rand(v.shape, generator=rng) if v.is_floating_point() else v.clone() for n, v in tensors(net).items()
    }


# ---------------------------------------------------------------- trees
def test_tensors_are_live_parameters_and_buffers():
    net = tiny_net(norm=True)
    tree = tensors(net)
    assert set(tree) == set(net.state_dict())
    with torch.no_grad():
        tree["classifier.weight"].zero_()
    assert net.classifier.weight.abs().sum() == 0


def test_load_copies_values_and_leaves_the_rest():
    net = tiny_net(norm=True)
    new = other(net, 0)
    before = snapshot(tensors(net))
    part = {n: v for n, v in new.items() if n.startswith("features")}
    identity = net.classifier.weight
    load(net, part)
    assert all(torch.equal(tensors(net)[n], v) for n, v in part.items())
    assert torch.equal(net.classifier.weight, before["classifier.weight"])
    assert net.classifier.weight is identity
    with torch.no_grad():
        net.features[1].weight.zero_()
    assert new["features.1.weight"].abs().sum() > 0  # copied, not shared
    with pytest.raises(KeyError):
        load(net, {"nowhere": torch.zeros(1)})


# ---------------------------------------------------------------- layout
NETS = {
    "tiny": tiny_net,
    "norm": lambda: tiny_net(norm=True),
    "mlp": lambda: mlpnet((1, 8, 8), 10, hidden=(8, 8)),
    "lenet": lambda: lenet((1, 28, 28), 10),
    "deep classifier": lambda: alexnet((3, 32, 32), 10, hidden=(8, 8)),
}


@pytest.mark.parametrize("name", NETS)
def test_parts_cover_all_names_once(name):
    net = NETS[name]()
    layout = layout_of(net)
    names = set(net.state_dict())
    assert set(layout.parameters) == {n for n, _ in net.named_parameters()}
    assert set(layout.parameters) | set(layout.buffers) == names
    assert not set(layout.parameters) & set(layout.buffers)
    parts = layout.parts
    assert parts["features"] | parts["classifier"] == parts["all"] == names
    assert not parts["features"] & parts["classifier"]
    assert parts["none"] == frozenset()
    assert parts["classifier"]
    assert parts["norm"] <= names


def test_norm_is_told_apart_with_its_buffers():
    norm = layout_of(tiny_net(norm=True)).parts["norm"]
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert norm == {f"features.2.{k}" for k in kinds}
    assert layout_of(tiny_net()).parts["norm"] == frozenset()


def test_trainable_are_parameters_only():
    layout = layout_of(tiny_net(norm=True))
    assert layout.trainable("norm") == {"features.2.weight", "features.2.bias"}
    assert layout.trainable("classifier") == {"classifier.weight"}


# ---------------------------------------------------------------- spares
def test_a_spare_gives_features_and_logits_of_other_weights():
    net = tiny_net(norm=True)
    tree = other(net, 1)
    frozen = FrozenCopies(net).fresh()(tree)
    h, z = frozen.features(X), frozen(X)
    twin = tiny_net(norm=True).eval()
    load(twin, tree)
    torch.testing.assert_close(h, twin.features(X))
    torch.testing.assert_close(z, twin(X))
    assert not z.requires_grad


def test_spares_do_not_disturb_the_live_network():
    net = tiny_net(norm=True).train()
    net.requires_grad_(requires_grad=True)
    before = digest({"": tensors(net)})
    copy_of = FrozenCopies(net).fresh()
    for seed in range(3):
        copy_of(other(net, seed))(X)
    assert digest({"": tensors(net)}) == before
    assert net.training
    assert net.features[2].training
    assert all(p.requires_grad for p in net.parameters())
    net(X).sum().backward()
    assert net.classifier.weight.grad is not None


def test_a_spare_is_in_evaluation_mode_and_keeps_the_statistics_it_was_given():
    net = SplitModel(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(SIDE * SIDE), nn.Dropout(0.9)), nn.Linear(16, 2), 16)
    net.train()
    tree = other(net, 2)
    before = digest({"": tree})
    frozen = FrozenCopies(net).fresh()(tree)
    first = frozen(X)
    assert torch.equal(first, frozen(X))
    assert digest({"": tree}) == before


@pytest.mark.parametrize(("lost", "part"), [("features.1.weight", "features"), ("classifier.weight", "classifier")])
def test_weights_that_lack_a_part_are_refused_where_that_part_is_run(lost, part):
    net = tiny_net()
    tree = other(net, 1)
    del tree[lost]
    copy_of = FrozenCopies(net).fresh()
    copy_of(tree, {"features": "classifier", "classifier": "features"}[part])
    for used in (part, "all"):
        with pytest.raises(ValueError, match=f"but '{lost}' is missing"):
            copy_of(tree, used)


def test_each_tree_is_loaded_once_until_the_next_fresh(monkeypatch):
    loads: list[int] = []
    monkeypatch.setattr(network, "load", lambda net, tree: (loads.append(id(tree)), load(net, tree)))
    net = tiny_net()
    spares = FrozenCopies(net)
    one, two = other(net, 1), other(net, 2)
    copy_of = spares.fresh()
    outs = [copy_of(tree)(X) for tree in (one, two, one, two, one)]
    assert loads == [id(one), id(two)]
    assert torch.equal(outs[0], outs[2])
    assert not torch.equal(outs[0], outs[1])
    assert len(spares._copies) == 2
    copy_of = spares.fresh()  # a new phase: the values may be new, the copies are the old ones
    torch.testing.assert_close(copy_of(two)(X), outs[1])
    assert loads == [id(one), id(two), id(two)]
    assert len(spares._copies) == 2


class Watched(dict):
    """A tree that can be watched from afar."""


def test_a_tree_is_held_as_long_as_its_id_stands_for_it():
    net = tiny_net()
    copy_of = FrozenCopies(net).fresh()
    tree = Watched(other(net, 1))
    alive = weakref.ref(tree)
    copy_of(tree)
    del tree
    gc.collect()
    assert alive() is not None  # else another tree could get its id, and its logits
    del copy_of
    gc.collect()
    assert alive() is None


# ---------------------------------------------------------------- memory format
def formats(net: SplitModel) -> set[str]:
    convs = [
        m.weight for m in fastest_memory_format(net).modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)
    ]
    return {"last" if w.is_contiguous(memory_format=torch.channels_last) else "first" for w in convs}


def test_convolutions_have_their_channels_last():
    assert formats(lenet((3, 32, 32), 10)) == {"last"}
    assert formats(resnet((3, 32, 32), 10)) == {"last"}


def test_the_arrangement_changes_no_value():
    net = lenet((3, 32, 32), 10)
    before = snapshot(tensors(net))
    assert digest({"": before}) == digest({"": tensors(fastest_memory_format(net))})


def test_a_network_whose_weights_torch_would_write_past_is_left_as_it_is():
    assert formats(resnet((3, 8, 8), 10, blocks=(1, 1), widths=(4, 8))) == {"first"}
    assert formats(resnet((3, 8, 8), 10, blocks=(1, 1), widths=(4, 8), shortcut="pad")) == {"last"}


TRAIN = """
import torch
from fedexp.models.resnet import resnet
from fedexp.client.network import fastest_memory_format

torch.set_num_threads(1)
net = fastest_memory_format(resnet((3, 8, 8), 10, blocks=(1, 1), widths=(2, 4)))
for _ in range(50):
    net(torch.randn(5, 3, 8, 8)).sum().backward()
"""


def test_no_gradient_is_written_past_its_end():
    """glibc's own check; without ``fastest_memory_format``'s exception it aborts."""
    checker = ctypes.util.find_library("c_malloc_debug")
    if checker is None:
        pytest.skip("glibc's checking allocator is not installed")
    checking = {"LD_PRELOAD": checker, "MALLOC_CHECK_": "3", "GLIBC_TUNABLES": "glibc.malloc.check=3"}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], env={**os.environ, **checking}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
