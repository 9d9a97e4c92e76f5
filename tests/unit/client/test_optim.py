"""The client optimizer against torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedexp.client.optim import Sgd


def walk(make, steps, *, frozen_at=()):
    """Weights after some steps on planted gradients; at some of them the last parameter has none."""
    rng = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=rng)) for shape in ((3, 4), (5,), ())]
    optimizer = make(parameters)
    for step in range(steps):
        optimizer.zero_grad()
        assert all(p.grad is None for p in parameters)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=rng)
        if step in frozen_at:
            parameters[-1].grad = None
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in parameters])


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.0}, {"nesterov": True}, {"weight_decay": 0.1}])
def test_fused_is_torchs_bit_for_bit(settings):
    own = Sgd(lr=0.1, **settings)
    given = {"lr": 0.1, "momentum": own.momentum, "weight_decay": own.weight_decay, "nesterov": own.nesterov}
    for steps in (1, 2, 5):
        assert torch.equal(walk(own, steps), walk(lambda p: torch.optim.SGD(p, fused=True, **given), steps))
    torch.testing.assert_close(walk(own, 5), walk(lambda p: torch.optim.SGD(p, **given), 5))


def test_a_parameter_that_joins_late_or_rests_has_its_own_momentum():
    for resting in ((0,), (0, 1, 3), (2,)):
        ours = walk(Sgd(lr=0.1), 5, frozen_at=resting)
        plain = walk(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-5), 5, frozen_at=resting)
        torch.testing.assert_close(ours, plain)


def test_a_phase_may_have_its_own_settings_and_the_unfused_form_is_torchs():
    assert Sgd(lr=0.1).settings(lr=0.5).lr == 0.5
    torch.testing.assert_close(walk(lambda p: Sgd(lr=0.1)(p, lr=0.5), 2), walk(Sgd(lr=0.5), 2))
    optimizer = Sgd(fused=False)([nn.Parameter(torch.zeros(1))], momentum=0.5)
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["momentum"] == 0.5
