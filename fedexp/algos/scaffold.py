"""Control variates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedexp.core.component import Component, Phase
from fedexp.core.ranges import Positive
from fedexp.core.state import Out, Slot, Tree, Upload, add, axpy, scale, sub, zeros_shared
from fedexp.core.views import Facts, LocalRound, ServerRound, Step


@dataclass(frozen=True, kw_only=True)
class Scaffold(Component):
    """Corrects client drift with control variates.

    Karimireddy et al., SCAFFOLD, ICML 2020, Alg. 1, option II: local steps follow g + c - c_k; then
    c_k⁺ = c_k - c + (w_t - w_k) / (a lr), with a the number of steps. The server moves by ``server_lr`` times the mean
    update, and c ← c + (m/K) · mean(c_k⁺ - c_k), so that c is the mean of all c_k at all times.

    Deviations: the local phase runs without momentum, as in the public code of MAP and FedRS, because the control's
    scale presumes it; with ``momentum: true`` the run's momentum stays and a is its closed form. Weight decay stays in
    the gradient (that code drops it). The public code omits the factor m/K: ``full_step: true``. It also clips g before
    the controls are added; ``local.clip`` acts on the sum. The difference is applied to parameters only, never to
    running statistics.
    """

    needs_sgd: ClassVar[bool] = True
    padded: ClassVar[bool] = True

    server_lr: Positive = 1.0
    momentum: bool = False
    full_step: bool = False

    def problems(self, facts: Facts) -> Iterable[str]:
        """The controls belong to one phase."""
        if len(self.during) != 1 or "*" in self.during:
            yield f"during must name the one phase that is corrected, not {list(self.during)}"

    def slots(self) -> Sequence[Slot]:
        """The server's c, sent down, and each client's c_k."""
        return Slot("c", "server", zeros_shared, down=True), Slot("ck", "client", zeros_shared)

    def uploads(self) -> Sequence[Upload]:
        """How c_k changed."""
        return (Upload("dc", zeros_shared, "uniform"),)

    def plan(self, phases: list[Phase]) -> list[Phase]:
        """No momentum in the corrected phase."""
        if self.momentum:
            return phases
        return [replace(p, optim={**p.optim, "momentum": 0.0}) if p.name in self.during else p for p in phases]

    def grads(self, grads: Tree, step: Step) -> Tree:
        """Adds c - c_k."""
        drift = step.once("drift", lambda: sub(step.mine["c"], step.mine["ck"]))
        return {n: g + drift[n] if n in drift else g for n, g in grads.items()}

    def finish(self, local: LocalRound) -> Out:
        """Option II."""
        (phase,) = self.during
        reach = local.normaliser(phase) * local.lr[phase]
        dc = sub(scale(local.moved(phase), -1 / reach), local.mine["c"])
        return Out(slots={"ck": add(local.mine["ck"], dc)}, uploads={"dc": dc})

    def serve(self, server: ServerRound) -> dict[str, Tree | dict[int, Tree]]:
        """Moves c by the part of the federation that took part."""
        share = 1.0 if self.full_step else len(server.cohort) / server.n_clients
        return {"c": axpy(share, server.reduced["dc"], server.mine["c"])}

    def update(self, delta: Tree, server: ServerRound) -> Tree:
        """The server's own step size."""
        return delta if self.server_lr == 1.0 else scale(delta, self.server_lr)
