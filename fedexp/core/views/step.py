"""A step of training or a batch of a test, as components see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.core.seeding import torch_rng
from fedexp.core.state import Tree, snapshot
from fedexp.core.views.slots import Bound, Facts, Slots

if TYPE_CHECKING:
    from fedexp.data.federated import Info
    from fedexp.models.split import SplitModel

T = TypeVar("T")
Batch = tuple[Tensor, Tensor]  # samples and labels


@dataclass(kw_only=True)
class Frame(Bound):
    """What stays the same over the steps of a phase."""

    info: Info | None
    facts: Facts
    round: int | None  # None where the server's model is tested
    received: Tree
    weights: Tree  # the live tensors being trained or tested
    phase: str
    rng_path: tuple[int | str, ...]
    net: SplitModel  # live; that of other weights while ``Step.forward`` runs them
    frozen: Callable[[Tree], SplitModel]  # a copy of the network with other weights, in evaluation mode
    classify: Callable[[Tensor, Step], Tensor] = field(init=False)  # set by the owner of the phase's logit pipeline
    gradient: Callable[[Tree, Batch, Step], Tree] | None = None  # at other weights; only while gradients are edited
    cache: dict[tuple[str, str], Any] = field(default_factory=dict)
    remembered: dict[str, Tree] = field(default_factory=dict)  # "component.slot"


@dataclass
class Step:
    """One batch. ``h`` are the features, ``z`` the logits so far, ``ce`` the cross-entropy (in ``loss`` only)."""

    frame: Frame
    x: Tensor
    y: Tensor
    h: Tensor
    z: Tensor
    ce: Tensor
    index: int = 0
    batches: Sequence[Batch] = ()  # all of the step, if it has several
    shares: Tensor | None = None  # of each row in a mean over the batch, which loop=batched may have filled up; or None

    def for_component(self, key: str) -> Step:
        """Gives the turn to a component."""
        self.frame.key = key
        return self

    @property
    def mine(self) -> Slots:
        """The component's own slots."""
        return self.frame.mine

    def of(self, key: str) -> Slots:
        """The slots of a component named in ``needs``."""
        return self.frame.of(key)

    @property
    def info(self) -> Info | None:
        """The client's own class counts; None when the server's model is tested."""
        return self.frame.info

    @property
    def facts(self) -> Facts:
        """What is known of the run before its first round."""
        return self.frame.facts

    @property
    def round(self) -> int:
        """The round, counted from 0. The server's model is tested outside of rounds: ``info`` is None then."""
        if self.frame.round is None:
            raise RuntimeError("step.round was asked for in a test of the server's model, which belongs to no round")
        return self.frame.round

    @property
    def n_classes(self) -> int:
        """Number of classes of the data set."""
        return self.frame.facts.n_classes

    @property
    def phase(self) -> str:
        """The name of the phase, or ``eval``."""
        return self.frame.phase

    @property
    def received(self) -> Tree:
        """The weights the round began with."""
        return self.frame.received

    @property
    def weights(self) -> Tree:
        """The weights by name, live: the next step changes them, so clone what is to be kept."""
        return self.frame.weights

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the samples of the batch of a value for each; see ``Component.padded``."""
        return values.mean() if self.shares is None else (values * self.shares).sum()

    def cross_entropy(self, z: Tensor) -> Tensor:
        """The mean cross-entropy of logits with the batch's labels."""
        if self.shares is None:
            return F.cross_entropy(z, self.y)
        return -self.mean(F.log_softmax(z, 1).gather(1, self.y[:, None])[:, 0])  # faster inside vmap

    def classify(self, h: Tensor) -> Tensor:
        """Logits of any features under the live classifier, with gradient.

        ``head`` and ``logits`` of components that act everywhere (``during: ["*"]``) belong to the network and act on
        them; what acts in this phase only, such as a restricted softmax, does not.
        """
        return self.frame.classify(h, self)

    def forward(self, tree: Tree) -> tuple[Tensor, Tensor]:
        """Features and logits of this batch under other weights, in evaluation mode, without gradient.

        Logits are made as ``classify`` makes them. Each tree gets a copy of the network for the whole phase: pass the
        same tree at every step, made by ``once`` if it is no slot.
        """
        frame = self.frame
        live, frame.net = frame.net, frame.frozen(tree)
        try:
            with torch.no_grad():
                h: Tensor = frame.net.features(self.x)
                return h, frame.classify(h, self)
        finally:
            frame.net = live

    def module(self, name: str, weights: Tree | None = None) -> nn.Module:
        """A module of the component's own: live, or as it is in other weights, in evaluation mode."""
        frame = self.frame
        net = frame.net if weights is None else frame.frozen(weights)
        return net.module_beside(frame.key, name)

    def batch(self, number: int) -> Batch:
        """Samples and labels of one of the step's batches (``Phase.batches``); 0 is the one of ``x`` and ``y``."""
        return self.batches[number] if self.batches else ((self.x, self.y),)[number]

    def gradient(self, weights: Tree, batch: int = 0) -> Tree:
        """The gradient of the whole objective, with every component's logits and loss, at other weights; in ``grads``.

        ``weights`` may be a part: the rest is as it is. Live weights and running statistics are as before afterwards.
        Other components' ``grads`` edit what is returned in the end, not this.
        """
        if self.frame.gradient is None:
            raise RuntimeError("step.gradient can be asked for in grads only: elsewhere the live weights are in use")
        return self.frame.gradient(weights, self.batch(batch), self)

    def remember(self, slot: str, tree: Tree) -> None:
        """Keeps a copy as the new value of a private slot, if ``finish`` does not hand back another one.

        ``mine`` shows the old value until the client's next round. Nothing is kept from a test.
        """
        self.frame.remembered[f"{self.frame.key}.{slot}"] = snapshot(tree)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value that is the same for all steps of the phase, made at the first of them."""
        slot = (self.frame.key, name)
        if slot not in self.frame.cache:
            self.frame.cache[slot] = make()
        value: T = self.frame.cache[slot]
        return value

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness for this step alone."""
        frame = self.frame
        return torch_rng(frame.facts.seed, frame.key, purpose, *frame.rng_path, self.index, device=self.x.device)
