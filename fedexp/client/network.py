"""A network as a tree of tensors: read it, load it, and run other weights through spare copies of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedexp.core.component import Component, overrides
from fedexp.core.seeding import seeded
from fedexp.core.state import Layout, Tree
from fedexp.errors import PlanError
from fedexp.models.split import SplitModel


def tensors(net: SplitModel) -> Tree:
    """The live parameters and buffers by name."""
    return {name: entries[key] for name, entries, key in places(net)}


def places(net: SplitModel) -> list[tuple[str, dict[str, Any], str]]:
    """Where a network keeps its tensors: of each its name, a dictionary and the key in it."""
    found = _places.get(net)
    if found is None:
        found = _places[net] = [*_entries(net, "_parameters"), *_entries(net, "_buffers")]
    return found


def put(net: SplitModel, tree: Tree) -> None:
    """Puts tensors in the place of the network's own; names that the tree does not have stay as they are."""
    for name, entries, key in places(net):
        if name in tree:
            entries[key] = tree[name]


# Walking over its modules for every client would take longer than a tiny step.
_places: WeakKeyDictionary[nn.Module, list[tuple[str, dict[str, Any], str]]] = WeakKeyDictionary()


def _entries(net: nn.Module, kind: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    seen: set[int] = set()
    for prefix, module in net.named_modules():
        for key, tensor in getattr(module, kind).items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{key}" if prefix else key, getattr(module, kind), key


def fastest_memory_format(net: SplitModel) -> SplitModel:
    """The network in the memory format in which its convolutions are fastest."""
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    if convs and not any(map(_overruns, convs)):
        net.to(memory_format=torch.channels_last)
    return net


def compile_parts(net: SplitModel, backend: str) -> None:
    """Compiles the network's passes, when they are first made; other weights are then loaded into the same network."""
    from torch import _dynamo

    _dynamo.config.recompile_limit = 64  # training and testing, each with some shapes and some parts frozen
    for part in (net.features, net.classifier):
        part.compile(backend=backend)


def _overruns(conv: nn.Conv2d) -> bool:
    """Whether the gradient of its weights may be written past their end, channels last on a CPU (torch 2.15)."""
    return conv.kernel_size == (1, 1) and max(conv.stride) > 1 and conv.in_channels < 8


def load(net: SplitModel, tree: Tree) -> None:
    """Copies values into the network; names that the tree does not have stay as they are."""
    live = tensors(net)
    with torch.no_grad():
        for name, value in tree.items():
            if live[name].data_ptr() != value.data_ptr():
                live[name].copy_(value)


def detached_from(net: SplitModel, trees: Mapping[str, Tree]) -> dict[str, Tree]:
    """The same trees, sharing no memory with the network, nor with more than is theirs (a stack of many clients)."""
    live = {t.data_ptr() for t in tensors(net).values()}

    def own(tensor: Tensor) -> Tensor:
        shared = tensor.data_ptr() in live or tensor.untyped_storage().nbytes() > tensor.nbytes
        return tensor.clone() if shared else tensor

    return {n: {k: own(v) for k, v in t.items()} for n, t in trees.items()}


def layout_of(net: SplitModel) -> Layout:
    """The names of the network's tensors, by part."""
    parameters = tuple(n for n, _ in net.named_parameters())
    buffers = tuple(n for n, _ in net.named_buffers())
    names = frozenset((*parameters, *buffers))
    modules = {f"{k}.{m}": frozenset(n for n in names if n.startswith(f"beside.{k}/{m}.")) for k, m in net.names_beside}
    within = names.difference(*modules.values())
    parts = {p: frozenset(n for n in within if net.part_of(n) == p) for p in ("features", "classifier")}
    norm = frozenset(n for n in names if net.is_norm(n))
    body = names - parts["classifier"]
    every = {"all": names, "none": frozenset[str](), "norm": norm, "body": body, **parts, **modules}
    return Layout(parameters, buffers, every, modules=tuple(modules))


def add_modules(net: SplitModel, components: Mapping[str, Component], seed: int, n_classes: int) -> SplitModel:
    """Puts the components' modules beside the network.

    Raises:
        PlanError: If what a component gives is no module, or has a name that cannot be one.
    """
    made: dict[str, Mapping[str, nn.Module]] = {}
    for key, component in components.items():
        if overrides(component, "modules"):
            with seeded(seed, "modules", key):
                made[key] = component.modules(net, n_classes)
            for name, module in made[key].items():
                if not isinstance(module, nn.Module) or not name.isidentifier():
                    raise PlanError(
                        f"modules of component {key!r} must be torch modules named by words, not {name!r}: {module!r}"
                    )
    net.put_beside(made)
    return net


class Frozen(Protocol):
    """Gives a copy of the network with other weights; ``part`` is what will be used of it, and must be in the tree."""

    def __call__(self, tree: Tree, part: str = "all") -> SplitModel: ...


class FrozenCopies:
    """Copies of a network in evaluation mode for teachers and anchors. Made when first needed, then used again."""

    def __init__(self, net: SplitModel) -> None:
        self._net = net
        self._names = layout_of(net).parts
        self._copies: list[SplitModel] = []

    def fresh(self) -> Frozen:
        """A function from weights to a copy that has them. Each tree is loaded once; valid until the next ``fresh``."""
        loaded: dict[int, tuple[Tree, SplitModel, set[str]]] = {}  # the tree is held so that its id stays its own

        def copy_of(tree: Tree, part: str = "all") -> SplitModel:
            if id(tree) not in loaded:
                loaded[id(tree)] = (tree, self._copy(len(loaded), tree), set())
            _, net, checked = loaded[id(tree)]
            if part not in checked:
                self._demand(tree, part)
                checked.add(part)
            return net

        return copy_of

    def _copy(self, index: int, tree: Tree) -> SplitModel:
        if index == len(self._copies):
            self._copies.append(self._spare())
        self._fill(self._copies[index], tree)
        return self._copies[index]

    def _spare(self) -> SplitModel:
        return copy.deepcopy(self._net).eval().requires_grad_(requires_grad=False)

    def _fill(self, spare: SplitModel, tree: Tree) -> None:
        load(spare, tree)

    def _demand(self, tree: Tree, part: str) -> None:
        """A copy has other weights from earlier: what a tree lacks would be anything."""
        if lost := sorted(self._names[part] - tree.keys()):
            whole = "the whole network" if part == "all" else f"the {part}"
            raise ValueError(
                f"weights to be run must have {whole}, but {lost[0]!r} is missing. Begin with a whole tree."
            )
