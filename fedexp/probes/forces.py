"""What moves a class vector in one step."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedexp.core.ranges import Count
from fedexp.core.views import Step
from fedexp.probes.base import Log, Place, Probe


@dataclass(frozen=True, kw_only=True)
class ForcesProbe(Probe):
    """Pulling and pushing of class vectors. Li and Zhan, FedRS, eq. 4, figures 1 and 2.

    A step of gradient descent moves w_c by η (pull_c − push_c): pull_c = Σ_{y_i = c} (1 − p_ic) h_i / N, from features
    of its own class, and push_c = Σ_{y_i ≠ c} p_ic h_i / N, from those of others. Push is *direct* for classes that the
    client has, whose pull balances it, and *indirect* for the missing ones, which nothing pulls. A row ``step`` for
    each of the first steps of a round has the mean norms ``pulling`` and ``direct`` over the client's classes and
    ``indirect`` over the missing ones, and the norms of both forces by class.

    Deviations: Averaged over the batch, as the loss is, not summed. p is that of the logits as trained; the factor α_c
    of restricted softmax, with which both forces come into the step (eq. 9), is not in them.

    Args:
        steps: Steps of each round.
    """

    steps: Count = 1

    def step(self, step: Step, at: Place, log: Log) -> None:
        """The forces of one of the first steps."""
        if at.step >= self.steps or step.info is None:
            return
        pull, push = forces(step.h.double(), step.z.double(), step.y)
        pulls, pushes, observed = pull.norm(dim=1), push.norm(dim=1), step.info.owned
        values = {"pulling": pulls[observed].mean(), "direct": pushes[observed].mean()}
        values |= {"indirect": pushes[~observed].mean(), "pulls": pulls, "pushes": pushes}
        log.row("step", values, step=at.step, phase=step.phase)


def forces(h: Tensor, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Pull and push of each class, [classes, features]."""
    p = z.softmax(1)
    own = F.one_hot(y, z.shape[1]).to(p)
    return (own * (1 - p)).T @ h / len(y), ((1 - own) * p).T @ h / len(y)
