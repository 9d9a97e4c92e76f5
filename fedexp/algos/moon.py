"""Contrast between models: towards the server's features, away from the client's own of last time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.core.component import Component
from fedexp.core.ranges import Count, NotNegative, Positive
from fedexp.core.state import Out, Slot, Tree, number, received
from fedexp.core.views import Facts, LocalRound, Step
from fedexp.models.split import SplitModel


@dataclass(frozen=True, kw_only=True)
class ModelContrast(Component):
    """Adds weight · l_con to the loss.

    Li et al., MOON, CVPR 2021, eq. 3 and 4: l_con = -log(e^(cos(z, z_t)/τ) / (e^(cos(z, z_t)/τ) + e^(cos(z, z_p)/τ)))
    with z of the live model, z_t of the received one and z_p of the client's previous local model, the last two frozen
    and in evaluation mode. ``weight`` is the paper's mu, ``temperature`` τ. A client keeps its previous model for this
    term only: clients have no personal model. A step needs two forward passes more.

    z is the output of a projection head of two layers, d → d → ``projection``, which is trained, sent and averaged with
    the model. With ``projection: null`` z are the features: the same network for all methods and FedAvg's bytes, as in
    FedMR (table 3) and in the public code of MAP.

    Deviations: in the paper the classifier follows the projection head; here it reads the features, so that the
    network and its saved model are those of the other methods. In a client's first round there is no previous model
    and no term (with the received model in its place the gradient is zero; the public code of MAP takes the initial
    model).
    """

    weight: NotNegative = 1.0
    temperature: Positive = 0.5
    projection: Count | None = 256

    padded: ClassVar[bool] = True

    @property
    def shared_modules(self) -> tuple[str, ...]:
        """The projection head travels."""
        return () if self.projection is None else ("projection",)

    def problems(self, facts: Facts) -> Iterable[str]:
        """There is one previous model."""
        if len(self.during) != 1 or "*" in self.during:
            yield f"during must name the one phase whose end is the next previous model, not {list(self.during)}"

    def modules(self, net: SplitModel, n_classes: int) -> Mapping[str, nn.Module]:
        """The projection head."""
        if self.projection is None:
            return {}
        d = net.feature_dim
        return {"projection": nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, self.projection))}

    def slots(self) -> Sequence[Slot]:
        """The previous local model, and whether there is one."""
        return Slot("previous", "client", received), Slot("seen", "client", number(0))

    def loss(self, step: Step) -> Tensor | None:
        """The contrast: log(1 + exp((cos(z, z_p) - cos(z, z_t)) / τ))."""
        if not self.weight or not step.once("seen", lambda: bool(step.mine["seen"]["value"])):
            return None
        z = self._project(step, step.h)
        near, far = (
            F.cosine_similarity(z, self._project(step, step.forward(tree)[0], tree))
            for tree in (step.received, step.mine["previous"])
        )
        return self.weight * step.mean(F.softplus((far - near) / self.temperature))

    def finish(self, local: LocalRound) -> Out:
        """Keeps the local model."""
        (phase,) = self.during
        return Out(slots={"previous": local.ends[phase], "seen": {"value": local.mine["seen"]["value"] + 1}})

    def neutral(self) -> ModelContrast:
        """Without weight there is no contrast, and without a head the network is FedAvg's."""
        return replace(self, weight=0.0, projection=None)

    def _project(self, step: Step, h: Tensor, weights: Tree | None = None) -> Tensor:
        """The projection of features under the live head, or under that of other weights."""
        if self.projection is None:
            return h
        z: Tensor = step.module("projection", weights)(h)
        return z
