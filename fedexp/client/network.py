"""A network as a tree of tensors: read it, load it, and run other weights through spare copies of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedexp.core.state import Layout, Tree
from fedexp.models.split import SplitModel

Forward = Callable[[Tensor], tuple[Tensor, Tensor]]


def tensors(net: SplitModel) -> Tree:
    """The live parameters and buffers by name."""
    places = _places.get(net)
    if places is None:
        places = _places[net] = [*_entries(net, "_parameters"), *_entries(net, "_buffers")]
    return {name: entries[key] for name, entries, key in places}


# Where a network keeps its tensors: walking over its modules for every client would take longer than a tiny step.
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


def layout_of(net: SplitModel) -> Layout:
    """The names of the network's tensors, by part."""
    parameters = tuple(n for n, _ in net.named_parameters())
    buffers = tuple(n for n, _ in net.named_buffers())
    names = frozenset((*parameters, *buffers))
    parts = {p: frozenset(n for n in names if net.part_of(n) == p) for p in ("features", "classifier")}
    norm = frozenset(n for n in names if net.is_norm(n))
    return Layout(parameters, buffers, {"all": names, "none": frozenset(), "norm": norm, **parts})


class FrozenCopies:
    """Copies of a network in evaluation mode for teachers and anchors. Made when first needed, then used again."""

    def __init__(self, net: SplitModel) -> None:
        self._net = net
        self._copies: list[SplitModel] = []

    def fresh(self) -> Callable[[Tree], Forward]:
        """A function from weights to their forward pass. Each tree is loaded once; valid until the next ``fresh``."""
        loaded: dict[int, tuple[Tree, Forward]] = {}  # the tree is held so that its id stays its own

        def forward_of(tree: Tree) -> Forward:
            if id(tree) not in loaded:
                loaded[id(tree)] = (tree, self._forward(len(loaded), tree))
            return loaded[id(tree)][1]

        return forward_of

    def _forward(self, index: int, tree: Tree) -> Forward:
        if index == len(self._copies):
            spare = copy.deepcopy(self._net).eval()
            self._copies.append(spare.requires_grad_(requires_grad=False))
        net = self._copies[index]
        load(net, tree)

        def forward(x: Tensor) -> tuple[Tensor, Tensor]:
            h = net.features(x)
            return h, net.classifier(h)

        return forward
