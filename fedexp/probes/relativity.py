"""Which clients' classifiers answer alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.ranges import Count, Positive
from fedexp.core.seeding import torch_rng
from fedexp.probes.base import ClientView, Log, Probe, ServerView

ALIKE = 0.9  # cosine of two clients' class counts from which on they are of a group


@dataclass(frozen=True, kw_only=True)
class RelativityProbe(Probe):
    """Cosines of softened answers of the uploaded classifiers to a random feature. Liang et al., FedReMa, figure 3.

    Eq. 5, under any method. The array ``matrix`` [clients, clients] belongs to the clients of the array ``clients``. A
    row ``matrix`` has the mean over pairs of clients with nearly the same class counts (their cosine is above 0.9),
    ``alike``, over the others, ``different``, and by how much the first is larger, ``contrast``.

    Args:
        temperature: M of the softmax.
        draws: Random features, uniform in [0, 1), whose matrices are averaged; the same for all clients of a round.
    """

    temperature: Positive = 0.5
    draws: Count = 1

    def client(self, view: ClientView, log: Log) -> None:
        """The answers of the client's classifier."""
        device = next(iter(view.uploaded.values())).device
        generator = torch_rng(view.facts.seed, "probe", "relativity", view.round)
        features = torch.rand(self.draws, view.facts.feature_dim, generator=generator).to(device)
        logits = view.classify(view.uploaded, features).double()
        log.array("answers", F.softmax(logits / self.temperature, dim=1))

    def server(self, view: ServerView, log: Log) -> None:
        """The matrix of all clients of the round."""
        clients = [client for client in view.cohort if "answers" in view.arrays[client]]
        if len(clients) < 2:
            return
        matrix = relativity(torch.stack([view.arrays[client]["answers"] for client in clients]))
        log.array("matrix", matrix)
        log.array("clients", torch.tensor(clients))
        counts = F.normalize(view.facts.counts[clients].double(), dim=1)
        pairs = torch.triu_indices(len(clients), len(clients), offset=1)
        alike = (counts @ counts.T)[tuple(pairs)] > ALIKE
        values = matrix[tuple(pairs)]
        same, other = values[alike.to(values.device)].mean(), values[~alike.to(values.device)].mean()
        log.row("matrix", {"alike": same, "different": other, "contrast": same - other, "mean": values.mean()})


def relativity(answers: Tensor) -> Tensor:
    """s_kj = cos(p_k, p_j), averaged over the draws, of answers [clients, draws, classes]."""
    unit = F.normalize(answers, dim=2).transpose(0, 1)
    return (unit @ unit.mT).mean(0)
