"""Distillation and maximum mean discrepancy, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedexp.algos.transfer import distillation, mmd, one_sided_distillation
from tests.helpers import array


def pair(n=7, d=5, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(n, d, generator=rng, dtype=torch.float64) for _ in range(2))


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_distillation_is_tau_squared_times_mean_kl():
    student, teacher = pair()
    p, q = softmax(array(student) / 4), softmax(array(teacher) / 4)
    written = 16 * (q * np.log(q / p)).sum(1).mean()
    assert distillation(student, teacher, 4.0).item() == pytest.approx(written, rel=1e-12)


def test_distillation_gradient_is_tau_times_the_difference():
    student, teacher = pair()
    student.requires_grad_()
    (given,) = torch.autograd.grad(distillation(student, teacher, 4.0), student)
    written = 4 * (softmax(array(student) / 4) - softmax(array(teacher) / 4)) / len(student)
    np.testing.assert_allclose(array(given), written, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distillation_of_itself_is_nothing(dtype):
    student, _ = pair()
    student = student.to(dtype).requires_grad_()
    loss = distillation(student, student.detach(), 4.0)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert float(student.grad.abs().max()) < 1e-6


def test_the_public_codes_distillation():
    student, teacher = pair()
    written = -(softmax(array(teacher) / 4) * np.log(softmax(array(student)))).sum(1).mean()
    assert one_sided_distillation(student, teacher, 4.0).item() == pytest.approx(written, rel=1e-12)


def test_mmd_is_the_sum_of_five_kernels():
    x, y = pair()
    a, b = array(x), array(y)
    points = np.concatenate([a, b])
    squares = ((points[:, None] - points[None]) ** 2).sum(2)
    n = len(points)
    base = squares.sum() / (n * n - n)

    def kernel(u, v):
        d = ((u[:, None] - v[None]) ** 2).sum(2)
        return sum(np.exp(-d / (base * f)) for f in (0.25, 0.5, 1, 2, 4))

    written = kernel(a, a).mean() + kernel(b, b).mean() - 2 * kernel(a, b).mean()
    assert mmd(x, y).item() == pytest.approx(written, rel=1e-6)


def test_mmd_of_itself_is_zero_and_otherwise_positive():
    x, y = pair()
    assert mmd(x, x).item() == pytest.approx(0, abs=1e-12)
    assert mmd(x, y).item() > 0.01
    assert mmd(x, y).item() == pytest.approx(mmd(y, x).item(), rel=1e-12)
    same = torch.zeros(3, 2, requires_grad=True)
    mmd(same, torch.zeros(3, 2)).backward()
    assert torch.isfinite(same.grad).all()


def test_mmd_bandwidth_has_no_gradient():
    """With the bandwidth held fixed, finite differences give the same gradient."""
    x, y = pair(n=3, d=2)
    x.requires_grad_()
    (given,) = torch.autograd.grad(mmd(x, y), x)
    points = np.concatenate([array(x), array(y)])
    squares = ((points[:, None] - points[None]) ** 2).sum(2)
    base = squares.sum() / 30 + 1e-8

    def fixed(a):
        b = array(y)
        kernel = lambda u, v: sum(  # noqa: E731
            np.exp(-((u[:, None] - v[None]) ** 2).sum(2) / (base * f)) for f in (0.25, 0.5, 1, 2, 4)
        )
        return kernel(a, a).mean() + kernel(b, b).mean() - 2 * kernel(a, b).mean()

    for i, j in ((0, 0), (2, 1)):
        up, down = array(x).copy(), array(x).copy()
        up[i, j] += 1e-6
        down[i, j] -= 1e-6
        assert (fixed(up) - fixed(down)) / 2e-6 == pytest.approx(given[i, j].item(), rel=1e-5)
