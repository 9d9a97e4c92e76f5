"""FedReMa: the server mixes each client a classifier from those of its most relevant peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.algos.mixed_heads import MixedHeads, mixed
from fedexp.core.component import Paper
from fedexp.core.ranges import Count, Positive, Share
from fedexp.core.state import Init, Out, Slot, Tree
from fedexp.core.views import LocalRound, ServerRound


@dataclass(frozen=True, kw_only=True)
class RelativityHeads(MixedHeads):
    """Averages features over all clients, and classifiers over peers that answer alike.

    Liang et al., FedReMa, ECAI 2024, sect. 4, Alg. 1 and 2. Each round the server puts one random feature, uniform in
    [0, 1), through every uploaded classifier; s_kj is the cosine of the softmax answers at ``temperature`` (eq. 5). A
    client's peers are those above the largest gap of its sorted s (MDS). While the critical co-learning period lasts,
    its classifier becomes their mean by samples (eq. 7), and a map G counts who chose whom. The period lasts while the
    mean gap is more than ``delta`` times its largest so far (eq. 9), so that 1 ends it after the first round; this
    takes effect in the next round, and for good. From then on classifiers are averaged by G (eq. 10). ``delta: 0``
    ends it only if all similarities are equal (table 5, "+MDS").

    A round's record says whether the period was open (``open``), how many rounds it has lasted (``rounds``) and, if it
    was open, for each client of the round, by id, its gap (``gaps``), its number of peers without itself (``peers``)
    and its row of G (``map``).

    A client that was not in the cohort keeps the classifier last made for it; a new one gets the initial classifier.

    Deviations: ``mds: above``: peers are the clients above the gap, and the gap between a client and itself is not
    looked at, as in the public code. ``mds: printed`` is Alg. 1 to the letter: that gap counts too, and the client
    below the largest gap is a peer. Eq. 9 does not say what a largest gap of zero means; the period stays open then.
    One feature and one temperature for all, and classifiers by client id from copies: the public code draws a feature
    per client, softens only the client's own answer, and mixes classifiers in another order than its weights.
    ``peers: uniform`` is that code's eq. 7 without sizes; ``draws`` averages s over several features. Not in the paper:
    with fewer than three uploads there is no gap, and every client keeps its own classifier; a client that G does not
    know keeps its own too; under partial participation G mixes those who are there.
    """

    delta: Share = 0.5
    temperature: Positive = 0.5
    peers: Literal["samples", "uniform"] = "samples"
    mds: Literal["above", "printed"] = "above"
    draws: Count = 1

    paper: ClassVar[Paper | None] = Paper("FedReMa", weighting="samples", evaluate="fedrema")
    needs_classifier: ClassVar[bool] = True

    def slots(self) -> Sequence[Slot]:
        """Each client's classifier, the map G, and the state of the period."""
        return (*super().slots(), Slot("chosen", "server", _nobody), Slot("period", "server", _open))

    def finish(self, local: LocalRound) -> Out:
        """Sends the classifier."""
        return Out(uploads={"head": self._trained_head(local)})

    def serve(self, server: ServerRound) -> dict[str, Tree | dict[int, Tree]]:
        """Chooses peers while the period lasts, and mixes a classifier for each client of the cohort."""
        heads = dict(sorted(server.kept["head"].items()))
        ids = torch.tensor(list(heads))
        chosen, period = server.mine["chosen"]["value"], server.mine["period"]
        server.record("open", period["open"])
        server.record("rounds", period["rounds"])
        if not period["open"]:
            return {"head": mixed(heads, chosen[ids][:, ids])}
        if len(heads) < 3:
            return {"head": dict(heads)}
        peers, gaps = most_relevant(self._relativity(heads, server), printed=self.mds == "printed")
        sizes = server.facts.counts[ids].sum(1) if self.peers == "samples" else torch.ones(len(ids))
        chosen = chosen.clone()
        chosen[ids[:, None], ids] += peers
        gap = gaps.mean().float()
        largest = torch.maximum(period["largest"], gap)
        still = (gap > self.delta * largest) | (largest == 0)
        rounds = period["rounds"] + 1
        for name, value in {"rounds": rounds, "gaps": gaps, "peers": peers.sum(1) - 1, "map": chosen[ids]}.items():
            server.record(name, value)
        return {
            "head": mixed(heads, peers * sizes),
            "chosen": {"value": chosen},
            "period": {"open": still.float(), "largest": largest, "rounds": rounds},
        }

    def _relativity(self, heads: Mapping[int, Tree], server: ServerRound) -> Tensor:
        """Cosines of the soft logits, [m, m]."""
        features = torch.rand(self.draws, server.facts.feature_dim, generator=server.generator("feature"))
        logits = torch.stack([server.classify(head, features) for head in heads.values()], 1).double()
        soft = F.normalize(F.softmax(logits / self.temperature, dim=2), dim=2)  # [draws, m, C]
        return (soft @ soft.mT).mean(0)


def most_relevant(relativity: Tensor, *, printed: bool = False) -> tuple[Tensor, Tensor]:
    """MDS for every row of a relativity matrix: who is chosen, itself included, as ones; and each one's gap.

    A client's similarity to itself takes no part, which leaves out the last of the sorted gaps. As ``printed``, it
    takes part as the largest, and whoever is just below the largest gap is chosen too.
    """
    chosen = torch.eye(len(relativity))
    gaps = []
    for client, row in enumerate(relativity):
        others = torch.tensor([j for j in range(len(row)) if j != client])
        ordered, index = row[others].sort()
        steps = (torch.cat([ordered, row[client, None]]) if printed else ordered).diff()
        widest = int(steps.argmax())
        chosen[client, others[index[widest + (not printed) :]]] = 1
        gaps.append(steps[widest])
    return chosen, torch.stack(gaps)


def _nobody(init: Init) -> Tree:
    return {"value": torch.zeros(init.n_clients, init.n_clients)}


def _open(_: Init) -> Tree:
    return {"open": torch.tensor(1.0), "largest": torch.tensor(0.0), "rounds": torch.tensor(0.0)}
