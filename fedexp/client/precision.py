"""The precision in which a network computes, by Lightning's plugins; the same for both loops.

Each part of the network (features, classifier, modules beside it) takes its inputs, runs and hands out its outputs as
the plugin says. Around the parts everything has 32 bits: features and logits as components see them, losses, what is
sent, kept and aggregated, and the server's own training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from lightning.fabric.plugins.precision import HalfPrecision, MixedPrecision
from lightning.fabric.plugins.precision import Precision as Plugin
from torch import Tensor, nn

from fedexp.client.optim import Optimizer, OptimizerFactory
from fedexp.core.state import Tree
from fedexp.models.split import SplitModel

if TYPE_CHECKING:
    from fedexp.client.loops import PrecisionName

FULL: PrecisionName = "32-true"
INITIAL_SCALE = 2.0**12  # of losses in 16-mixed; torch's 2¹⁶ would skip the first steps, and so those of every client


class NetworkPrecision:
    """A precision on a device."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self.name = name
        self._kind = device.type
        self._plugin = _plugin(name, device.type)

    def prepare(self, net: SplitModel) -> SplitModel:
        """The network with its weights and passes in this precision."""
        if self.name == FULL:
            return net
        self._plugin.convert_module(net)
        for part in (net.features, net.classifier, *(net.module_beside(*names) for names in net.names_beside)):
            part.__class__ = type(type(part).__name__, (_InPrecision, type(part)), {"plugin": self._plugin})
        return net

    def stored(self, live: Tree) -> Tree:
        """Live weights as they are sent and kept."""
        if self.name != "bf16-true":
            return live
        return {n: t.float() if t.is_floating_point() else t for n, t in live.items()}

    # ------------------------------------------------------------ a step
    def begin(self) -> None:
        """Begins a phase. The scale of losses is new, since it must not depend on another client."""
        if isinstance(self._plugin, MixedPrecision) and self.name == "16-mixed":
            self._plugin.scaler = torch.amp.GradScaler(self._kind, init_scale=INITIAL_SCALE)

    def backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        """Gradients of the loss, as they are."""
        self._plugin.backward(loss, None)
        self._plugin.unscale_gradients(optimizer)  # type: ignore[arg-type]

    def gradients(self, loss: Tensor, parameters: Iterable[Tensor]) -> list[Tensor | None]:
        """The same, handed out; None for what the loss does not depend on."""
        scaler = getattr(self._plugin, "scaler", None)
        if scaler is None:
            return list(torch.autograd.grad(loss, list(parameters), allow_unused=True))
        scale = scaler.scale(torch.ones_like(loss))
        grads = torch.autograd.grad(loss * scale, list(parameters), allow_unused=True)
        return [None if g is None else g / scale for g in grads]

    def step(self, optimizer: Optimizer) -> None:
        """A step of the optimizer; none if a scaled gradient has overflowed."""
        self._plugin.optimizer_step(optimizer)  # type: ignore[arg-type]


class _InPrecision(nn.Module):
    """Put before the class of a network's part. A copy of the part has it too."""

    plugin: ClassVar[Plugin]

    def forward(self, *given: Any) -> Any:
        with self.plugin.forward_context():
            out = super().forward(*self.plugin.convert_input(given))
        return self.plugin.convert_output(out)


def _plugin(name: PrecisionName, kind: str) -> Plugin:
    if name == "bf16-true":
        return HalfPrecision(name)
    return MixedPrecision(name, kind) if name == "bf16-mixed" or name == "16-mixed" else Plugin()


def problems(name: PrecisionName, device: torch.device, optimizer: OptimizerFactory) -> Iterator[str]:
    """Why a network cannot be trained in this precision, on this device, by this optimizer."""
    if name == FULL:
        return
    try:
        weights = [t.detach().requires_grad_() for t in _tried(name, device).values()]
    except (RuntimeError, NotImplementedError, TypeError) as cause:
        first = (str(cause).splitlines() or [type(cause).__name__])[0].rstrip(".")
        other = "bf16-mixed" if name == "16-mixed" else FULL
        yield f"loop.precision={name}: torch cannot do that on {device.type} ({first}). Use loop.precision={other}."
        return
    made = optimizer(weights)
    if name == "16-mixed" and getattr(made, "_step_supports_amp_scaling", False):
        yield (
            f"loop.precision=16-mixed: {optimizer} unscales gradients inside its own step, so that methods and "
            "local.clip would see them scaled. Add optim.fused=false."
        )
        return
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    try:
        made.step()
    except RuntimeError as cause:
        first = str(cause).splitlines()[0].rstrip(".")
        yield f"loop.precision={name}: {optimizer} cannot take a step on such weights ({first}). Use optim=sgd."


def _tried(name: PrecisionName, device: torch.device) -> Tree:
    """The weights of a tiny network after a pass forward and backward."""
    features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    precision, net = NetworkPrecision(name, device), SplitModel(features, nn.Linear(8, 2), 8).to(device)
    precision.prepare(net)
    precision.begin()
    loss = net(torch.zeros(2, 1, 4, 4, device=device)).sum()
    precision.gradients(loss, net.parameters())
    return dict(net.named_parameters())
