"""A pretended accelerator: what code does with devices can be checked on a machine that has none.

Tensors that are moved to ``DEVICE`` (``cpu:1``, which no tensor is ever on) stay in main memory, and are marked. The
marks flow through operations, and ``tensor.device`` tells them. What an accelerator would refuse fails here too: an
operation on tensors of both kinds, a generator of the other kind, a NumPy array made of a marked tensor. What would
make the host wait for the device is noted, with the line of code and what it was part of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedexp.client.lightning_private import put_on_device
from fedexp.core import devices
from fedexp.testing.device_marks import Marks, Wait, line_of_code, part_of_the_run

HOST, DEVICE = torch.device("cpu"), torch.device("cpu", 1)

READS = {  # operations whose result, or the shape of it, the host must know before it can go on
    "_local_scalar_dense", "nonzero", "masked_select", "bincount", "_unique2", "unique_dim", "unique_consecutive",
    "repeat_interleave", "equal", "is_nonzero",
}  # fmt: skip
TAKES_HOST_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_"}
NO_SCALARS = {"cat", "stack"}  # which do not take a number of the host's either

_device_of = Tensor.device.__get__
_set_grad = Tensor.grad.__set__  # type: ignore[union-attr]


class MixedDevices(RuntimeError):  # noqa: N818 - says what it is
    """An operation that an accelerator would refuse."""


class PretendDevice(TorchFunctionMode):
    """Use as ``with PretendDevice() as device``; loops made by ``device.loop(FabricLoop)`` train on it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Wait] = []
        self.moves: Counter[str] = Counter()  # tensors that went "there" and "back"
        self.marks = Marks()
        self.on_device = False  # whether the function that is running was given marked tensors
        self.checks = True
        self._silent = 0
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(mock.patch.object(torch, "Generator", self._generator()))
        self._open.enter_context(mock.patch.object(devices, "wait_for", self._wait_for))
        self._open.enter_context(_Operations(self))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._open.close()

    def loop(self, kind: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
        """A loop that trains on the device, to be made by a worker."""

        def make(number: int = 0) -> Any:
            loop = kind(accelerator="cpu", number=number, **settings)
            put_on_device(loop.strategy, DEVICE)
            return loop

        return make

    def waits_in(self, part: str) -> list[Wait]:
        """The waits that were part of steps, phases and so on."""
        return [wait for wait in self.waits if wait.part == part]

    # ------------------------------------------------------------ what Python code calls
    def __torch_function__(
        self, func: Callable[..., Any], _: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _device_of:
            return DEVICE if self.marks.has(args[0]) else func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__set__" and func == _set_grad and isinstance(args[1], Tensor):
            self.refuse_mixture("the assignment of a gradient", [args[0], args[1]])
        special = getattr(self, f"_do_{name.strip('_')}", None)
        if special is not None:
            return special(func, args, kwargs)
        with self._given(args, kwargs):
            out = func(*args, **kwargs)
        if kwargs.get("device") == DEVICE:
            self.marks.add(out)
        if kwargs.get("generator") is not None and (kwargs["generator"].device == DEVICE) is not self.marks.has(out):
            raise MixedDevices(f"{name} draws with a generator of another device in {line_of_code()}.")
        return out

    @contextmanager
    def _given(self, args: Any, kwargs: Any, *, silent: bool = False) -> Iterator[None]:
        """Notes whether a function works on marked tensors: what it makes on the way is then marked too."""
        before = self.on_device
        self.on_device = "device" not in kwargs and any(
            isinstance(t, Tensor) and self.marks.has(t) for t in tree_leaves((args, kwargs))
        )
        self._silent += silent
        try:
            yield
        finally:
            self.on_device = before
            self._silent -= silent

    def _do_to(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Tensor:
        tensor, *rest = args
        other = rest[0] if rest and isinstance(rest[0], Tensor) else kwargs.pop("other", None)
        if other is not None:
            rest = [DEVICE if self.marks.has(other) else HOST, other.dtype, *rest[1:]]
        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*rest, **kwargs)
        settings = {"dtype": dtype or tensor.dtype, "copy": copy}
        if layout is not None:
            settings["memory_format"] = layout
        if device is None or device.type != "cpu" or (device == DEVICE) is self.marks.has(tensor):
            if device is not None and device.type != "cpu":
                settings["device"] = device
            return func(tensor, **settings)  # type: ignore[no-any-return]
        moved: Tensor = _Move.apply(func(tensor, **settings), self, device == DEVICE)
        if not non_blocking:
            self.note("a move to the device" if device == DEVICE else "a move from the device")
        return moved

    def moved(self, tensor: Tensor, *, there: bool) -> Tensor:
        """A copy on the device, or (not ``there``) on the host."""
        with self._unchecked():
            copied = tensor.clone()
        self.moves["there" if there else "back"] += 1
        (self.marks.add if there else self.marks.discard)(copied)
        return copied

    @contextmanager
    def _unchecked(self) -> Iterator[None]:
        before, self.checks = self.checks, False
        try:
            yield
        finally:
            self.checks = before

    def _do_cpu(self, _: Any, args: Any, __: Any) -> Tensor:
        return self._do_to(Tensor.to, (args[0], HOST), {})

    def _do_tolist(self, func: Callable[..., Any], args: Any, _: Any) -> Any:
        if self.marks.has(args[0]):
            self.note("tolist")
        return func(*args)

    def _do_numpy(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.marks.has(args[0]):
            raise MixedDevices(f"numpy() of a tensor on the device in {line_of_code()}. Move it by .cpu() first.")
        return func(*args, **kwargs)

    _do_array = _do_numpy

    def _do_deepcopy(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self._unchecked():  # it copies memory with an operation of its own
            out = func(*args, **kwargs)
        if self.marks.has(args[0]):
            self.marks.add(out)
        return out

    def _do_new_tensor(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        if self.marks.has(args[0]):
            self.marks.add(out)
            self.note("a move to the device")
        return out

    def _do_one_hot(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        known = len(args) > 1 or "num_classes" in kwargs  # the labels are then checked on CPUs only
        with self._given(args, kwargs, silent=known):
            return func(*args, **kwargs)

    # ------------------------------------------------------------ what both modes need
    def note(self, what: str) -> None:
        """Writes down that the host waits here."""
        if not self._silent:
            self.waits.append(Wait(what, part_of_the_run(), line_of_code()))

    def refuse_mixture(self, what: str, tensors: list[Tensor], *, scalars: bool = True) -> None:
        """Raises an error if some tensors are marked, and some are not; single numbers may be anywhere."""
        marked = [t for t in tensors if self.marks.has(t)]
        others = [t for t in tensors if not self.marks.has(t) and (t.dim() or not scalars)]
        if marked and others:
            shapes = f"{list(marked[0].shape)} on the device, {list(others[0].shape)} on the host"
            raise MixedDevices(f"{what} mixes devices ({shapes}) in {line_of_code()}. Move one of them by .to(device).")

    def _wait_for(self, device: torch.device) -> None:
        if device == DEVICE:
            self.note("the end of moves from the device")

    @staticmethod
    def _generator() -> type[torch.Generator]:
        class Generator(torch.Generator):
            """One that knows its pretended device, as torch's does not."""

            def __new__(cls, device: Any = "cpu") -> Any:
                made: Any = super().__new__(cls, device="cpu")  # type: ignore[call-arg]
                made.pretended = torch.device(device)
                return made

            @property
            def device(self) -> Any:  # type: ignore[override]
                return self.pretended  # type: ignore[attr-defined]

        return Generator


class _Move(torch.autograd.Function):
    """A move, whose gradient is moved back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, owner: PretendDevice, there: bool) -> Tensor:  # noqa: FBT001
        ctx.owner, ctx.there = owner, there
        return owner.moved(tensor, there=there)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.owner.moved(grads[0], there=not ctx.there), None, None


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation, also those that torch calls from C++ and in the backward pass."""

    def __init__(self, owner: PretendDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owner = owner

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        owner, name = self._owner, func.overloadpacket.__name__
        if not owner.checks:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            marked = any(map(owner.marks.has, given))
            if given:
                self._check(name, func, given, args, marked=marked)
            else:
                marked = kwargs.get("device") == DEVICE or owner.on_device
            out = func(*args, **kwargs)
            if marked or kwargs.get("device") == DEVICE:
                owner.marks.add(out)
            return out

    def _check(self, name: str, func: Any, given: list[Tensor], args: Any, *, marked: bool) -> None:
        owner = self._owner
        if not marked:
            return
        if name in TAKES_HOST_INDICES:
            self._check_indices(name, args)
            return
        if name in READS:
            owner.note(name)
        if func._schema.is_mutable and not owner.marks.has(given[0]):
            raise MixedDevices(
                f"{name} writes from the device into a tensor of the host in {line_of_code()}. Move it by .cpu() first."
            )
        owner.refuse_mixture(name, given, scalars=name not in NO_SCALARS)

    def _check_indices(self, name: str, args: Any) -> None:
        """Indices of the host are moved, and a mask becomes indices, unless it is filled with one number."""
        owner, (tensor, indices, *values) = self._owner, args
        found = [i for i in indices if i is not None]
        owner.refuse_mixture(name, [tensor, *(v for v in values if isinstance(v, Tensor))])
        if not owner.marks.has(tensor):
            raise MixedDevices(f"{name} of a tensor of the host by indices on the device in {line_of_code()}.")
        fills = len(found) == 1 and bool(values) and isinstance(values[0], Tensor) and values[0].numel() == 1
        if any(i.dtype == torch.bool for i in found) and not fills:
            owner.note(f"{name} by a mask")
        elif any(not owner.marks.has(i) for i in found):
            owner.note(f"{name} by indices of the host")
