"""The frames of many clients as one, whose tensors are those of each client inside ``torch.vmap``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedexp.client.network import FrozenCopies, put, tensors
from fedexp.core.state import ReadOnlyTree, Tree
from fedexp.core.views import Frame
from fedexp.data.federated import Info
from fedexp.models.split import SplitModel

Set = Callable[[Tensor], None]
each = partial(torch.vmap, randomness="error")  # runs a function for each client of a stack
PLAIN = (bool, int, float, str, type(None))


def signature(value: Any) -> Hashable:
    """What clients must have in common to be stacked: everything but the values of tensors."""
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, Mapping):
        return tuple((k, signature(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(signature, value))
    return (type(value), value) if isinstance(value, PLAIN) else id(value)


def stacked(values: Sequence[Tensor]) -> Tensor:
    """Tensors of equal shape as one, with memory of its own."""
    first = values[0]
    if all(value is first for value in values):
        return first.detach().expand(len(values), *first.shape).clone()
    return torch.stack([value.detach() for value in values])


class StackedFrame:
    """One frame for clients whose frames have the same ``signature``.

    What all clients share is in it once. The rest is in ``inputs``, stacked; ``fill`` puts tensors in their place,
    which inside ``vmap`` are those of one client.
    """

    def __init__(self, frames: Sequence[Frame], net: SplitModel, spares: SwappedCopies | None = None) -> None:
        first = frames[0]
        self.inputs: list[Tensor] = []
        self._setters: list[Set] = []
        self._net, self._spares, self._own = net, spares, tensors(net)
        holder: dict[str, Any] = {}
        for name in ("views", "received", "cache"):
            self._merge(holder, name, [getattr(f, name) for f in frames])
        self._weights = ReadOnlyTree(self._own)
        self.frame = replace(
            first, views=holder["views"], received=holder["received"], cache=holder["cache"], weights=self._weights,
            info=self._info([f.info for f in frames]), net=net, rng_path=_NoRandomness(), remembered={},
        )  # fmt: skip

    def fill(self, weights: Tree, given: Sequence[Tensor]) -> None:
        """Puts weights into the frame and its network, and the tensors that stand for ``inputs`` in their place."""
        put(self._net, weights)
        for name, tensor in weights.items():
            dict.__setitem__(self._weights, name, tensor)
        for fill, tensor in zip(self._setters, given, strict=True):
            fill(tensor)
        if self._spares is not None:
            self.frame.frozen = self._spares.fresh()

    def restore(self) -> None:
        """Gives the network its own tensors back."""
        put(self._net, self._own)

    def _info(self, infos: Sequence[Info | None]) -> Info | None:
        """What a client knows of its data, as tensors: whoever needs a number of one client fails, and says so."""
        known = [info for info in infos if info is not None]
        if not known:
            return None
        merged = replace(known[0])
        device = merged.counts.device
        for name in ("client", "n"):
            self._add(vars(merged), name, torch.tensor([getattr(info, name) for info in known], device=device))
        self._merge(vars(merged), "counts", [info.counts for info in known])
        return merged

    def _merge(self, holder: Any, key: Any, values: Sequence[Any]) -> None:
        first = values[0]
        if all(value is first for value in values):
            _set(holder, key, first)
        elif isinstance(first, Tensor):
            self._add(holder, key, stacked(values))
        elif isinstance(first, Mapping | list | tuple):
            inner: Any = ReadOnlyTree() if isinstance(first, Mapping) else [None] * len(first)
            for k in first if isinstance(first, Mapping) else range(len(first)):
                self._merge(inner, k, [value[k] for value in values])
            _set(holder, key, inner)
        else:
            _set(holder, key, first)

    def _add(self, holder: Any, key: Any, stack: Tensor) -> None:
        self.inputs.append(stack)
        self._setters.append(partial(_set, holder, key))


def _set(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, dict):
        dict.__setitem__(holder, key, value)  # also of a tree that is read only for components
    else:
        holder[key] = value


class SwappedCopies(FrozenCopies):
    """Copies of a network that take over the tensors of a tree instead of copying them."""

    def __init__(self, net: SplitModel) -> None:
        super().__init__(net)
        self._pattern = super()._spare()  # made now: the network's own tensors may be swapped later

    def _spare(self) -> SplitModel:
        return copy.deepcopy(self._pattern)

    def _fill(self, spare: SplitModel, tree: Tree) -> None:
        put(spare, tree)


class _NoRandomness(tuple[int | str, ...]):
    """In place of the address of a client's random numbers: there are many clients."""

    __slots__ = ()

    def __iter__(self) -> Iterator[int | str]:
        raise RuntimeError("a step of many clients draws no random numbers of one client")
