"""Knowledge transfer from a frozen teacher: distillation of logits, or matching of feature distributions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation(student: Tensor, teacher: Tensor, temperature: float, shares: Tensor | None = None) -> Tensor:
    """τ² · mean KL(softmax(teacher/τ) ‖ softmax(student/τ)). Zero, with zero gradient, where both agree.

    ``shares`` are those of a step (``Step.shares``), here and below.
    """
    log_p = F.log_softmax(student / temperature, dim=1)
    log_q = F.log_softmax(teacher / temperature, dim=1)
    terms = log_q.exp() * (log_q - log_p)  # not F.kl_div, which cannot be batched
    mean = terms.sum() / len(student) if shares is None else (terms.sum(1) * shares).sum()
    return temperature**2 * mean


def one_sided_distillation(
    student: Tensor, teacher: Tensor, temperature: float, shares: Tensor | None = None
) -> Tensor:
    """Cross-entropy between the teacher softened by τ and the student as it is: the form of the public code."""
    target = F.softmax(teacher / temperature, dim=1)
    if shares is None:
        return F.cross_entropy(student, target)
    return (F.cross_entropy(student, target, reduction="none") * shares).sum()


def mmd(x: Tensor, y: Tensor, kernels: int = 5, ratio: float = 2.0) -> Tensor:
    """Squared maximum mean discrepancy of two batches under a sum of Gaussian kernels (biased estimate).

    The middle bandwidth is the mean squared distance between distinct points of both batches; the others are
    ``ratio`` times finer and coarser. Bandwidths carry no gradient.
    """
    points = torch.cat([x, y])
    squares = points.square().sum(1)
    distances = (squares[:, None] + squares[None, :] - 2 * points @ points.T).clamp(min=0)
    n = len(points)
    base = distances.detach().sum() / (n * n - n) + 1e-8
    middle = kernels // 2
    kernel = sum(
        (torch.exp(-distances / (base * ratio ** (i - middle))) for i in range(kernels)), distances.new_zeros(())
    )
    b = len(x)
    return kernel[:b, :b].mean() + kernel[b:, b:].mean() - kernel[:b, b:].mean() - kernel[b:, :b].mean()
