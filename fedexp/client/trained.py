"""A client that has trained, as components see it when they hand back, and as probes see it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedexp.client.asks import Fitted
from fedexp.client.network import Frozen
from fedexp.client.optim import OptimizerFactory
from fedexp.client.session import ClientSession
from fedexp.core.state import Tree, nbytes, sizes
from fedexp.core.views import LocalRound
from fedexp.data.federated import FederatedData
from fedexp.data.source import Samples
from fedexp.evaluate.tester import features
from fedexp.probes.base import ClientView
from fedexp.probes.observer import drawn


def local_round(
    session: ClientSession,
    fitted: Sequence[Fitted],
    optimizers: Mapping[str, OptimizerFactory],
    data: FederatedData,
    frozen: Frozen,
) -> LocalRound:
    """The round as components see it. Models are run through spare copies of the network (``frozen``)."""

    def embed(tree: Tree) -> Iterator[tuple[Tensor, Tensor]]:
        net = frozen(tree, "features")
        return ((h, y) for _, y, h in features(net, data.own_train(session.info.client)))

    return LocalRound(
        views=session.view.views,
        info=session.info,
        facts=session.view.facts,
        round=session.round,
        received=session.received,
        ends={f.phase.name: f.end for f in fitted},
        steps={f.phase.name: f.steps for f in fitted},
        lr={n: o.lr for n, o in optimizers.items()},
        momentum={n: o.sgd_momentum for n, o in optimizers.items()},
        embed=embed,
        classify=_classifier(frozen),
    )


def client_view(
    session: ClientSession,
    local: LocalRound,
    uploaded: Tree,
    personal: Tree,
    seconds: float,
    data: FederatedData,
    frozen: Frozen,
    sent: int,
) -> ClientView:
    """The trained client as probes see it. ``frozen`` is not that of the local round, which may be over.

    ``uploaded`` is as trained: what is ``sent`` of it, in bytes, may lack parts of it, or be edited on the way.
    """
    seed, own, received = local.facts.seed, data.own_train(local.client), {**session.received}

    def embedded(tree: Tree, samples: Samples) -> tuple[Tensor, Tensor]:
        batches = [(h, y) for _, y, h in features(frozen(tree, "features"), samples)]
        return torch.cat([h for h, _ in batches]), torch.cat([y for _, y in batches])

    return ClientView(
        round=local.round, info=local.info, facts=local.facts, received=received, ends=local.ends,
        uploaded=uploaded, personal=personal, seconds=seconds,
        classify=_classifier(frozen),
        sizes={
            "network": nbytes(received), "model": sizes(session.message).get("model", 0),
            "received": sum(sizes(session.message).values()), "sent": sent,
            "kept": sum(sizes(session.private).values()),
        },
        own=lambda tree, count: embedded(tree, drawn(own, count, seed, "own")),
        test=lambda tree, count: embedded(tree, drawn(data.test, count, seed, "test")),
    )  # fmt: skip


def _classifier(frozen: Frozen) -> Callable[[Tree, Tensor], Tensor]:
    """The logits of features under any weights."""

    def classify(tree: Tree, h: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = frozen(tree, "classifier").classifier(h)
            return logits

    return classify
