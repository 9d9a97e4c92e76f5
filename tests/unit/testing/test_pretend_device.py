"""The pretended device refuses what an accelerator refuses, and notes what makes the host wait."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedexp.core.devices import to_host
from fedexp.testing.pretend_device import DEVICE, HOST, MixedDevices, PretendDevice


@pytest.fixture
def pretended():
    with PretendDevice() as device:
        yield device


@pytest.fixture
def there(pretended):
    """Three numbers on the device; moving them there is not counted."""
    made = torch.arange(3.0).to(DEVICE)
    pretended.waits.clear()
    return made


def noted(pretended) -> list[str]:
    return [wait.what for wait in pretended.waits]


def test_a_moved_tensor_is_a_copy_that_knows_where_it_is(pretended):
    host = torch.arange(3.0)
    moved = host.to(DEVICE)
    host[0] = 7
    assert (moved.device, host.device) == (DEVICE, HOST)
    assert moved.tolist() == [0, 1, 2]
    assert moved.to(DEVICE) is moved
    assert noted(pretended) == ["a move to the device", "tolist"]
    assert pretended.moves == Counter(there=1)


@pytest.mark.parametrize(
    "made",
    [
        lambda t: t + 1, lambda t: t[1:], lambda t: t.view(1, 3), torch.zeros_like, lambda t: t.new_zeros(2),
        lambda t: torch.ones(2, device=t.device), lambda t: torch.ones(2).to(t), lambda t: t.new_tensor([1.0]),
        lambda t: torch.tensor([1.0], device=t.device), lambda t: t.double(), copy.deepcopy,
        lambda t: torch.where(t > 1, t, 0.0), lambda t: F.one_hot(t.long(), 3), lambda t: t + torch.tensor(2.0),
        lambda t: torch.rand(3, generator=torch.Generator(t.device), device=t.device), lambda t: t.clone().detach(),
        lambda t: nn.Parameter(t).data, lambda t: t.sum(), lambda t: torch.stack([t, t]).mean(0),
    ],
)  # fmt: skip
def test_what_is_made_of_a_tensor_on_the_device_is_there_too(there, made):
    assert made(there).device == DEVICE


@pytest.mark.parametrize(
    "mixture",
    [
        lambda t: t + torch.ones(3), lambda t: torch.ones(3) @ t, lambda t: t.copy_(torch.ones(3)),
        lambda t: torch.ones(3).copy_(t), lambda t: torch.stack([t.sum(), torch.tensor(1.0)]),
        lambda t: torch.tensor(1.0).add_(t.sum()), lambda t: torch.mul(t, 2, out=torch.empty(3)),
        lambda t: t.index_select(0, torch.tensor([1])), lambda t: torch.ones(3)[t.long()], lambda t: t.numpy(),
        lambda t: torch.rand(3, generator=torch.Generator(), device=t.device),
        lambda t: torch.rand(3, generator=torch.Generator(t.device)),
        lambda t: setattr(nn.Parameter(torch.ones(3)), "grad", t),
        lambda t: F.cross_entropy(t[None], torch.tensor([1])),
    ],
)  # fmt: skip
def test_what_an_accelerator_refuses_is_refused_with_the_line_of_code(there, mixture):
    with pytest.raises(MixedDevices, match=r"in testing/test_pretend_device\.py:\d+"):
        mixture(there)


@pytest.mark.parametrize(
    ("reads", "what"),
    [
        (lambda t: t[0].item(), "_local_scalar_dense"), (lambda t: bool(t.any()), "_local_scalar_dense"),
        (lambda t: t.nonzero(), "nonzero"), (lambda t: t[t > 1], "index by a mask"),
        (lambda t: t[[0, 2]], "index by indices of the host"), (lambda t: t.cpu(), "a move from the device"),
        (lambda t: t.long().bincount(), "bincount"), (lambda t: t.tolist(), "tolist"),
        (lambda t: t.to("cpu", torch.float64), "a move from the device"),
    ],
)  # fmt: skip
def test_what_makes_the_host_wait_is_noted(pretended, there, reads, what):
    reads(there)
    assert noted(pretended) == [what]


@pytest.mark.parametrize(
    "work",
    [
        lambda t: t.masked_fill(t > 1, 0.0), lambda t: t.__setitem__(t > 1, 0.0), lambda t: F.one_hot(t.long(), 3),
        lambda t: t.clone()[1:], lambda t: torch.ones(3).to(t.device, non_blocking=True), lambda t: t[t.long()],
    ],
)  # fmt: skip
def test_what_the_device_does_alone_is_not(pretended, there, work):
    work(there)
    assert noted(pretended) == []


def test_trees_come_back_with_one_wait(pretended, there):
    back = to_host({"a": {"x": there, "y": there + 1}}, DEVICE)
    assert back["a"]["y"].numpy().tolist() == [1, 2, 3]
    assert noted(pretended) == ["the end of moves from the device"]


def test_gradients_flow_back_over_a_move(there):
    layer, h = nn.Linear(3, 1).to(DEVICE), torch.ones(1, 3, requires_grad=True)
    loss = layer(h.to(DEVICE)).to(HOST).sum()
    loss.backward()
    assert (layer.weight.grad.device, h.grad.device) == (DEVICE, HOST)
    assert torch.equal(h.grad, layer.weight.detach().cpu())


def test_outside_of_it_all_is_as_before(there, pretended):
    pretended.__exit__(None, None, None)
    try:
        assert there.device == HOST
        assert (there + torch.ones(3)).tolist() == [1, 2, 3]
        assert torch.Generator is torch._C.Generator
    finally:
        pretended.__enter__()
