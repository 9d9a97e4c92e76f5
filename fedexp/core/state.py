"""Trees of tensors, and the declaration of what an algorithm remembers and sends."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError

Tree = dict[str, Tensor]
Message = dict[str, Tree]  # by slot: "model", "scaffold.c", ...

Scope = Literal["server", "client", "mailbox", "constant"]
Reduce = Literal["weighted", "uniform", "sum", "keep"]


class ReadOnlyTree(Tree):
    """A tree as components are shown it: what is to change is handed back as a tree of their own."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("this tree is read only: return a new one, such as {**tree, name: value}")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Tree], tuple[Tree]]:
        return dict, (dict(self),)


# ---------------------------------------------------------------- trees: pure, names of the first argument
def zeros_like(a: Mapping[str, Tensor]) -> Tree:
    """A tree of zeros with the shapes of ``a``."""
    return {k: torch.zeros_like(v) for k, v in a.items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    """Returns a + b."""
    return {k: v + b[k] for k, v in a.items()}


def sub(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    """Returns a - b."""
    return {k: v - b[k] for k, v in a.items()}


def scale(a: Mapping[str, Tensor], factor: float) -> Tree:
    """Returns factor · a."""
    return {k: v * factor for k, v in a.items()}


def axpy(factor: float, x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> Tree:
    """Returns factor · x + y."""
    return {k: torch.add(y[k], v, alpha=factor) for k, v in x.items()}


def lerp(a: Mapping[str, Tensor], b: Mapping[str, Tensor], weight: float) -> Tree:
    """Returns (1 - weight) · a + weight · b; exactly ``a`` at 0. Integer tensors (counters) are those of ``a``."""
    return {k: (1 - weight) * v + weight * b[k] if v.is_floating_point() and weight else v for k, v in a.items()}


def pick(a: Mapping[str, Tensor], names: Iterable[str]) -> Tree:
    """The entries of ``a`` with these names."""
    return {k: a[k] for k in names}


def squared_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """||a - b||² over all names of ``a``."""
    return torch.stack([F.mse_loss(v, b[k], reduction="sum") for k, v in a.items()]).sum()


def global_norm(a: Mapping[str, Tensor]) -> Tensor:
    """The Euclidean norm of all entries together."""
    squares: Tensor = torch.stack([v.square().sum() for v in a.values()]).sum()
    return squares.sqrt()


def snapshot(a: Mapping[str, Tensor]) -> Tree:
    """A detached copy that later training cannot touch."""
    return {k: v.detach().clone() for k, v in a.items()}


def nbytes(a: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors."""
    return sum(v.numel() * v.element_size() for v in a.values())


def sizes(message: Mapping[str, Mapping[str, Tensor]]) -> dict[str, int]:
    """Bytes of each tree of a message."""
    return {name: nbytes(tree) for name, tree in message.items()}


def digest(trees: Mapping[str, Mapping[str, Tensor]]) -> str:
    """sha256 over slot names, tensor names, shapes, types and values, independent of insertion order."""
    return digest_in_order((slot, trees[slot]) for slot in sorted(trees))


def digest_in_order(trees: Iterable[tuple[str, Mapping[str, Tensor]]]) -> str:
    """``digest`` of slots that come one by one, in sorted order."""
    sha = hashlib.sha256()
    for slot, tree in trees:
        for name in sorted(tree):
            value = tree[name].detach().cpu().contiguous()
            sha.update(f"{slot}|{name}|{value.dtype}|{tuple(value.shape)}|".encode())
            sha.update(value.numpy().tobytes())
    return sha.hexdigest()


def fingerprints(a: Mapping[str, Tensor]) -> dict[str, str]:
    """A crc32 of each tensor's bytes: cheap enough for every round, and two that differ are told apart."""
    return {k: f"{zlib.crc32(v.detach().cpu().contiguous().numpy().data):08x}" for k, v in a.items()}


# ---------------------------------------------------------------- declarations
@dataclass(frozen=True)
class Layout:
    """The names of a network's tensors: which there are, and which of them travel.

    ``parameters`` and ``buffers`` (running statistics) together are the network's weights. ``shared`` are the
    parameters that are sent, averaged and sent back; ``statistics`` the buffers that are. Private parts are in neither.
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    parts: Mapping[str, frozenset[str]]
    shared: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()  # parts that lie beside the network, "component.module"

    def part(self, name: str) -> tuple[str, ...]:
        """The tensors of a part, or of several joined by "+".

        Parts are ``all``, ``none``, ``features``, ``classifier``, ``body`` (all but the classifier), ``norm``, and each
        module beside the network.

        Raises:
            ConfigError: If there is no such part.
        """
        members = self._members(name)
        return tuple(n for n in (*self.parameters, *self.buffers) if n in members)

    def trainable(self, name: str) -> frozenset[str]:
        """The parameters of a part."""
        return self._members(name).intersection(self.parameters)

    @property
    def beside(self) -> frozenset[str]:
        """The tensors of all modules beside the network."""
        return frozenset[str]().union(*(self.parts[m] for m in self.modules))

    def _members(self, name: str) -> frozenset[str]:
        parts = name.split("+")
        if unknown := [p for p in parts if p not in self.parts]:
            raise ConfigError(f"the network has no part {unknown[0]!r}. {nearest(unknown[0], sorted(self.parts))}")
        return frozenset[str]().union(*(self.parts[p] for p in parts))


@dataclass(frozen=True)
class Init:
    """What an initial value may depend on."""

    model: Tree  # client slots: the weights the client just received; otherwise the initial model
    initial: Tree  # the initial model, the same everywhere
    layout: Layout
    n_classes: int
    feature_dim: int
    n_clients: int
    counts: Tensor  # [clients, classes]: training samples; only server slots may use it
    generator: torch.Generator

    @property
    def shared(self) -> Tree:
        """The travelling parameters of ``model``."""
        return pick(self.model, self.layout.shared)


@dataclass(frozen=True)
class Slot:
    """A declared piece of state.

    ``server``: one value, sent down if ``down``. ``client``: private to each client, made on its first participation.
    ``mailbox``: held by the server, one entry per client, sent to its owner only. ``constant``: rebuilt from the seed
    on both sides, never sent or saved.
    """

    name: str
    scope: Scope
    init: Callable[[Init], Tree]
    down: bool = False


@dataclass(frozen=True)
class Upload:
    """A declared message of the client beside its model. ``like`` gives its shape, hence its bytes, before any run."""

    name: str
    like: Callable[[Init], Tree]
    reduce: Reduce


@dataclass(frozen=True)
class Out:
    """What a component hands back when a client's round ends: new private slots, and uploads."""

    slots: dict[str, Tree] = field(default_factory=dict)
    uploads: dict[str, Tree] = field(default_factory=dict)


# ---------------------------------------------------------------- common initial values
def zeros_shared(init: Init) -> Tree:
    """Zeros, shaped as the travelling parameters."""
    return zeros_like(init.shared)


def received(init: Init) -> Tree:
    """The whole received model, buffers included."""
    return dict(init.model)


def initial(init: Init) -> Tree:
    """The whole initial model w⁰, buffers included."""
    return dict(init.initial)


def part_of_model(part: str) -> Callable[[Init], Tree]:
    """The named part of the received (or, on the server, initial) model."""
    return lambda init: pick(init.model, init.layout.part(part))


def number(value: float) -> Callable[[Init], Tree]:
    """A single number."""
    return lambda _: {"value": torch.tensor(value)}


def per_class(*shape: int, value: float = 0.0) -> Callable[[Init], Tree]:
    """A table with one row per class."""
    return lambda init: {"value": torch.full((init.n_classes, *shape), value)}


# ---------------------------------------------------------------- the state of a run
@dataclass
class ServerState:
    """Everything the server remembers between rounds."""

    round: int
    model: Tree
    slots: dict[str, Tree]  # "component.slot"
    mailboxes: dict[str, dict[int, Tree]]  # "component.slot" -> client id

    @property
    def message(self) -> Message:
        """What workers are told of it: all that is not for one client alone."""
        return {"model": self.model, **self.slots}
