"""The run's network as the server's steps use it: a structure without values, through which any weights can be run."""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor, nn

from fedexp.core.state import Tree
from fedexp.errors import PlanError
from fedexp.models.split import SplitModel

CPU = torch.device("cpu")


class ServerNetwork:
    """Runs weights through the network, with gradient. Holds no weights of its own.

    Args:
        net: The network, whose structure is copied when it is first needed.
        device: Where it computes: the device of the run's loop.
    """

    def __init__(self, net: SplitModel, device: torch.device = CPU) -> None:
        self._net = net
        self.device = device

    def forward(self, tree: Tree, x: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Features and logits of samples under a whole model, on the device of ``x``.

        In ``training`` mode running statistics are updated inside ``tree``; otherwise nothing is.
        """
        h = self._run("features", tree, x.to(self.device), training=training)
        z = self._run("classifier", tree, h, training=training)
        return h.to(x.device), z.to(x.device)

    def features(self, tree: Tree, x: Tensor) -> Tensor:
        """The features of samples under any weights, on the device of ``x``."""
        return self._run("features", tree, x.to(self.device), training=False).to(x.device)

    def classify(self, tree: Tree, h: Tensor) -> Tensor:
        """The logits of features under the classifier in ``tree``, on the device of ``h``."""
        return self._run("classifier", tree, h.to(self.device), training=False).to(h.device)

    def _run(self, part: str, tree: Tree, value: Tensor, *, training: bool) -> Tensor:
        module = self._parts[part]
        parameters, buffers = self._names[part]
        own = [*parameters, *buffers]
        if lost := [n for n in own if f"{part}.{n}" not in tree]:
            raise PlanError(
                f"the server's network needs all tensors of its {part}, and the tree it was given has no "
                f"'{part}.{lost[0]}'. Add what is missing: {{**server.model, **tree}}."
            )
        weights = {n: tree[f"{part}.{n}"].to(self.device) for n in own}
        out: Tensor = torch.func.functional_call(module.train(training), weights, (value,))
        for name in buffers:
            given = tree[f"{part}.{name}"]
            if training and weights[name] is not given:  # what was updated is a copy on our device
                given.copy_(weights[name].to(given.device))
        return out

    @cached_property
    def _parts(self) -> dict[str, nn.Module]:
        bare = copy.deepcopy(self._net).to("meta")
        return {"features": bare.features, "classifier": bare.classifier}

    @cached_property
    def _names(self) -> dict[str, tuple[list[str], list[str]]]:
        """Of each part's parameters and buffers: finding them takes as long as a small layer."""
        return {
            part: ([n for n, _ in module.named_parameters()], [n for n, _ in module.named_buffers()])
            for part, module in self._parts.items()
        }
