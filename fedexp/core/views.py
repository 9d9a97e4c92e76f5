"""What a component is shown. Tensors and slots are read only.

``mine`` are the component's own slots by name, ``of(key)`` those of a component it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.core.record import plain_numbers
from fedexp.core.seeding import torch_rng
from fedexp.core.state import Layout, Tree, pick, snapshot, sub
from fedexp.errors import PlanError

if TYPE_CHECKING:
    from fedexp.data.federated import Info
    from fedexp.data.source import Samples
    from fedexp.models.split import SplitModel

T = TypeVar("T")
Slots = Mapping[str, Tree]
Views = Mapping[str, Slots]  # component -> slot -> value
Batch = tuple[Tensor, Tensor]  # samples and labels

NO_PUBLIC = "needs samples at the server, which has none. Add public=500 to give it 500 of the test set."


def no_classifier(key: str, replacing: str) -> str:
    """Why a component that runs the network's own classifier, at the server or after training, cannot do so."""
    return (
        f"component {key!r} runs the network's own classifier beside the training, which component {replacing!r} "
        "replaces. They cannot be combined."
    )


@dataclass(frozen=True)
class Facts:
    """What is known of a run before its first round."""

    seed: int
    rounds: int
    fraction: float
    n_clients: int
    n_classes: int
    feature_dim: int
    layout: Layout
    counts: Tensor  # [clients, classes] training samples
    initial: Tree
    public: int = 0  # samples that the server has of its own

    @property
    def expected_selections(self) -> int:
        """How often a client takes part in the whole run, on average: max(int(Q T), 1)."""
        return max(int(self.fraction * self.rounds + 1e-9), 1)


@dataclass
class Bound:
    """Access to slots for the component whose turn it is."""

    views: Views
    key: str = field(default="", init=False)

    def for_component(self, key: str) -> Self:
        """Gives the turn to a component."""
        self.key = key
        return self

    @property
    def mine(self) -> Slots:
        """The component's own slots."""
        return self.views[self.key]

    def of(self, key: str) -> Slots:
        """The slots of a component named in ``needs``."""
        return self.views[key]


@dataclass
class View(Bound):
    """A client (or, with ``info`` None, the server) whose model is put together."""

    info: Info | None
    facts: Facts


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


@dataclass
class LocalRound(Bound):
    """One client's round, after its last phase."""

    info: Info
    facts: Facts
    round: int
    received: Tree
    ends: Mapping[str, Tree]  # phase -> weights
    steps: Mapping[str, int]  # phase -> optimizer steps taken
    lr: Mapping[str, float]  # phase -> learning rate in this round
    momentum: Mapping[str, float | None]  # phase -> momentum of SGD; None for other optimizers
    embed: Callable[[Tree], Iterator[tuple[Tensor, Tensor]]]  # (h, y) of the training samples under any weights
    classify: Callable[[Tree, Tensor], Tensor]  # the network's own classifier under any weights, without gradient
    numbers: dict[str, float] = field(default_factory=dict)  # "component.name"

    @property
    def client(self) -> int:
        """The client's id."""
        return self.info.client

    @property
    def layout(self) -> Layout:
        """The names of the network's tensors."""
        return self.facts.layout

    @property
    def last(self) -> Tree:
        """The weights after the last phase."""
        return list(self.ends.values())[-1]

    def moved(self, phase: str) -> Tree:
        """How far a phase's end is from the received weights, on the travelling parameters."""
        shared = self.layout.shared
        return sub(pick(self.ends[phase], shared), self.received)

    def normaliser(self, phase: str) -> float:
        """The factor a, such that displacement = lr · a · (mean gradient): the steps, or FedNova's momentum form.

        Raises:
            PlanError: If the optimizer is not SGD. A component that says ``needs_sgd`` is refused before.
        """
        tau, rho = self.steps[phase], self.momentum[phase]
        if rho is None:
            raise PlanError(f"component {self.key!r} needs SGD in phase {phase!r}: let its class say needs_sgd = True")
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)

    def record(self, name: str, value: float | Tensor) -> None:
        """Writes down a number; the mean over the round's clients is recorded as ``component.name``."""
        self.numbers[f"{self.key}.{name}"] = value.item() if isinstance(value, Tensor) else float(value)

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness for this client in this round."""
        device = next(iter(self.received.values())).device
        return torch_rng(self.facts.seed, self.key, purpose, self.round, self.client, device=device)


class Network(Protocol):
    """The run's network under any weights; ``fedexp.server.network`` has the one that the engine uses."""

    @property
    def device(self) -> torch.device: ...
    def forward(self, tree: Tree, x: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]: ...
    def classify(self, tree: Tree, h: Tensor) -> Tensor: ...


@dataclass
class ServerRound(Bound):
    """The server, once a round, after the uploads were reduced: first all of ``serve``, then the chain of ``update``.

    Trees are on the CPU. What is returned or remembered may be on another device and have a gradient; it is brought
    back without it.
    """

    facts: Facts
    round: int
    model: Tree  # before the round
    mean: Tree  # the clients' weighted mean of all that travels, running statistics too; ``model`` if nobody sent one
    delta: Tree  # the step of the travelling parameters: mean - model in ``serve``, the chain's so far in ``update``
    cohort: tuple[int, ...]
    weights: Mapping[int, float]  # of the cohort's clients, summing to one
    reductions: Mapping[str, Tree]
    keeping: Mapping[str, Mapping[int, Tree]]
    network: Network
    samples: Samples | None  # see ``public``
    store: Callable[[str, str, Tree | dict[int, Tree]], None]  # component, slot, value
    heads: Sequence[str]  # components that replace the classifier in tests
    numbers: dict[str, Any] = field(default_factory=dict)  # "component.name"

    @property
    def n_clients(self) -> int:
        """Number of clients in the federation."""
        return self.facts.n_clients

    @property
    def reduced(self) -> Slots:
        """The component's own uploads, reduced; an upload that nobody sent is absent."""
        return self._own(self.reductions)

    @property
    def kept(self) -> Mapping[str, Mapping[int, Tree]]:
        """The component's kept uploads by client id, and ``model`` if it keeps the clients' models."""
        return {**self._own(self.keeping), **{k: v for k, v in self.keeping.items() if k == "model"}}

    def _own(self, messages: Mapping[str, T]) -> dict[str, T]:
        prefix = self.key + "."
        return {k.removeprefix(prefix): v for k, v in messages.items() if k.startswith(prefix)}

    # ------------------------------------------------------------ the network and public samples
    @property
    def device(self) -> torch.device:
        """Where the network computes. A long computation is faster with its trees and samples moved there first."""
        return self.network.device

    def forward(self, tree: Tree, x: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Features and logits of samples under a whole model, on the device of ``x``, with gradient.

        The logits are those of the network's classifier, so a component that replaces it is refused, and no component's
        ``logits`` act. ``needs_classifier`` lets that be found before the first round. In ``training`` mode batch norm
        and dropout act as in training, and running statistics are updated inside ``tree``: give it a copy.
        """
        self._refuse_heads()
        return self.network.forward(tree, x, training=training)

    def classify(self, tree: Tree, h: Tensor) -> Tensor:
        """The logits of features under the classifier in ``tree``, on the device of ``h``, with gradient."""
        self._refuse_heads()
        return self.network.classify(tree, h)

    def _refuse_heads(self) -> None:
        if self.heads:
            raise PlanError(no_classifier(self.key, self.heads[0]))

    @property
    def public(self) -> Samples:
        """Samples that the server has of its own (the setting ``public``); they are in nobody's training or test set.

        Raises:
            PlanError: If the run has none. Declare ``needs_public``, and it is found before the first round.
        """
        if self.samples is None:
            raise PlanError(f"component {self.key!r} {NO_PUBLIC}")
        return self.samples

    # ------------------------------------------------------------ what is kept of the round
    def remember(self, slot: str, value: Tree | dict[int, Tree]) -> None:
        """Sets a server slot, or the entries of some clients in a mailbox. From now on ``mine`` shows the new value."""
        self.store(self.key, slot, value)

    def record(self, name: str, value: Any) -> None:
        """Puts a number, or a (nested) list or tensor of numbers, into the round's record as ``component.name``."""
        where = f"{self.key}.{name}"
        self.numbers[where] = plain_numbers(value, f"{where} of round {self.round + 1}")

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness for the server in this round."""
        return torch_rng(self.facts.seed, self.key, purpose, self.round)
