"""How evenly features spread over directions: eigenvalues of their covariance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.ranges import Count
from fedexp.probes.base import ClientView, Log, Probe, ServerView, Value


@dataclass(frozen=True, kw_only=True)
class SpectrumProbe(Probe):
    """The variance of the largest eigenvalues of the covariance of a batch's features. Fan et al., FedMR, table 7.

    Rows ``trained`` (the model that is sent, on a batch of the client's training samples) and ``aggregated`` (the
    server's, on a batch of the global test set): ``variance``, the mean over classes, and ``pooled``, of all samples of
    the batch together. A variance is (1 / batch) Σ (λ_i − mean)² over the ``top`` eigenvalues of the correlations M of
    standardised features; small means that many directions are used. Arrays ``<model>/eigenvalues`` [classes, top].

    Deviations: The paper does not say whether M is per class and which models it is of. It divides by the batch of 128,
    not by the 50 eigenvalues, which is followed. A class of n samples has n − 1 eigenvalues; the rest are zero.

    Args:
        batch: Samples.
        top: Eigenvalues.
    """

    batch: Count = 128
    top: Count = 50

    def client(self, view: ClientView, log: Log) -> None:
        """What is sent, on samples of the client's own."""
        self._note("trained", *view.own(view.uploaded, self.batch), log)

    def server(self, view: ServerView, log: Log) -> None:
        """The aggregated model, on test samples."""
        if view.after is not None:
            self._note("aggregated", *view.test(view.after, self.batch), log)

    def _note(self, name: str, h: Tensor, y: Tensor, log: Log) -> None:
        classes = [h[y == c] for c in torch.unique(y)]
        spectra = [eigenvalues(own, self.top) for own in classes if len(own) > 1]
        values: dict[str, Value] = {"pooled": self.variance(eigenvalues(h, self.top))} if len(h) > 1 else {}
        if spectra:
            values["variance"] = torch.stack([self.variance(s) for s in spectra]).mean()
            log.array(f"{name}/eigenvalues", torch.stack(spectra))
        log.row(name, values)

    def variance(self, spectrum: Tensor) -> Tensor:
        """(1 / batch) Σ (λ_i − mean)²."""
        return (spectrum - spectrum.mean()).square().sum() / self.batch


def eigenvalues(h: Tensor, top: int) -> Tensor:
    """The largest eigenvalues of Zᵀ Z / (n − 1), where Z are the features less their mean, over their deviation.

    They are those of the smaller Z Zᵀ / (n − 1) too. A feature that is the same for all samples has no part in it.
    """
    h = h.double()
    if not h.isfinite().all():
        return h.new_full((top,), torch.nan)
    z = h - h.mean(0)
    deviation = h.std(0)
    z = torch.where(deviation > 1e-8 * h.abs().amax(0).clamp(min=1e-30), z / deviation.clamp(min=1e-300), 0.0)
    product = z @ z.T if len(z) < z.shape[1] else z.T @ z
    values = torch.linalg.eigvalsh(product / (len(h) - 1)).flip(0).clamp(min=0)[:top]
    return F.pad(values, (0, top - len(values)))
