"""Objects whose tensors and arrays lie in memory that several processes see: written once, never pickled."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Collection
from types import FunctionType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedexp.errors import ConfigError

ALIGN = 64
Place = tuple[int, torch.dtype, torch.Size, tuple[int, ...]]  # offset, type, shape, strides
Part = bytes | Place  # a pickle, or where it lies
INLINE = 1 << 15  # bytes of a pickle that fit into a socket, so that nobody waits for its reader


class Memory(Protocol):
    """Where tensors lie."""

    def at(self, place: Place) -> Tensor: ...


class SharedBuffer:
    """A piece of shared memory. It has no name in the file system, so that nothing is left of it after a crash."""

    def __init__(self, size: int, fd: int | None = None) -> None:
        self.size = max(size, ALIGN)
        if fd is None:
            fd = _anonymous_file()
            os.ftruncate(fd, self.size)
        self.fd = fd
        self._bytes = torch.frombuffer(mmap.mmap(fd, self.size), dtype=torch.uint8)
        self._known: dict[Place, Tensor] = {}  # the same places come again in every round

    def at(self, place: Place) -> Tensor:
        """The tensor that lies at a place."""
        if place not in self._known:
            offset, dtype, shape, strides = place
            end = offset + shape.numel() * dtype.itemsize
            self._known[place] = self._bytes[offset:end].view(dtype).as_strided(shape, strides)
        return self._known[place]

    def seal(self) -> None:
        """Closes the file, once it need not be sent again: memory stays, and a process has few open files."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.seal()


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedexp")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it whose elements lie next to each other."""
    return tensor if tensor.is_contiguous(memory_format=torch.channels_last) else tensor.contiguous()


def _end(place: Place) -> int:
    """Where there is room behind a place."""
    offset, dtype, shape, _ = place
    return -(-(offset + shape.numel() * dtype.itemsize) // ALIGN) * ALIGN


class BufferAllocator:
    """Memory for new tensors in a buffer, so that they need not be copied to it; and elsewhere once it is full."""

    def __init__(self, buffer: SharedBuffer | None = None) -> None:
        self._arena = buffer
        self.used = 0
        self._taken: dict[tuple[Any, ...], Place] = {}

    def __call__(self, like: Tensor) -> Tensor:
        """A tensor of the same type, shape and strides, with any content."""
        like = dense(like)
        place = (self.used, like.dtype, like.shape, like.stride())
        if self._arena is None or _end(place) > self._arena.size:
            return torch.empty_like(like)
        tensor = self._arena.at(place)
        self.used = _end(place)
        self._taken[_identity(tensor)] = place
        return tensor

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where a tensor lies, if it came from here."""
        return self._taken.get(_identity(tensor)) if self._taken else None


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


class TensorPickle(pickle.Pickler):
    """An object taken apart: a pickle without tensors, and these with the place that each has or will have."""

    def __init__(self, *parts: Any, room: BufferAllocator | None = None) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._room = room or BufferAllocator()
        self.tensors: list[tuple[Tensor, Place]] = []
        self.size = self._room.used
        self.parts: list[Part] = []
        for part in parts:
            self.dump(part)
            data = self._file.getvalue()
            small = len(data) <= INLINE
            self.parts.append(data if small else self._place(torch.frombuffer(bytearray(data), dtype=torch.uint8)))
            self._file.seek(0)
            self._file.truncate()
            self.clear_memo()

    def persistent_id(self, value: Any) -> tuple[type, Place] | None:
        """What a tensor or an array of numbers is and where it will lie; everything else is pickled as usual.

        Raises:
            ConfigError: If a class or function is one that no other process can import.
        """
        if type(value) is Tensor:
            return Tensor, self._place(dense(value.detach() if value.requires_grad else value))
        if type(value) is np.ndarray and value.dtype.kind in "biufc":
            return np.ndarray, self._place(torch.from_numpy(np.array(value, order="C")))
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise ConfigError(
                f"{value.__qualname__} is defined in the script or notebook itself, from which no worker can import "
                "it. Move it to a module of its own, or use executor=serial."
            )
        return None

    def _place(self, value: Tensor) -> Place:
        place = self._room.place_of(value)
        if place is None:
            place = (self.size, value.dtype, value.shape, value.stride())
            self.size = _end(place)
        self.tensors.append((value, place))
        return place

    def fill(self, buffer: SharedBuffer, *, moving: Collection[int] = ()) -> None:
        """Copies the tensors to their places. Those with an id in ``moving`` live there from now on."""
        for tensor, place in self.tensors:
            there = buffer.at(place)
            if there.data_ptr() != tensor.data_ptr():
                there.copy_(tensor)
            if id(tensor) in moving:
                tensor.set_(there)  # type: ignore[call-overload]


class _Opener(pickle.Unpickler):
    def __init__(self, part: Part, memory: Memory, *, copy: bool) -> None:
        super().__init__(io.BytesIO(part if isinstance(part, bytes) else memory.at(part).numpy().data))
        self._memory, self._copy = memory, copy

    def persistent_load(self, pid: tuple[type, Place]) -> Tensor | np.ndarray[Any, Any]:
        kind, place = pid
        tensor = self._memory.at(place)
        tensor = tensor.clone() if self._copy else tensor
        return tensor if kind is Tensor else tensor.numpy()


def opened(part: Part, memory: Memory, *, copy: bool = False) -> Any:
    """A part of a pickle put together again; its tensors where they lie, or copied."""
    return _Opener(part, memory, copy=copy).load()
