"""Moving tensors between host and device without making either wait for the other more than is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedexp.core.state import Tree

CPU = torch.device("cpu")


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; the host goes on at once."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()  # else the copy waits for the device
    return tensor.to(device, non_blocking=True)


def to_device(trees: Mapping[str, Tree], device: torch.device) -> dict[str, Tree]:
    """The same trees on a device; a tensor that is in several is moved once."""
    moved: dict[int, Tensor] = {}
    return {n: {k: _once(v, device, moved) for k, v in t.items()} for n, t in trees.items()}


def _once(tensor: Tensor, device: torch.device, moved: dict[int, Tensor]) -> Tensor:
    if id(tensor) not in moved:
        moved[id(tensor)] = tensor.to(device, non_blocking=True)
    return moved[id(tensor)]


def to_host(trees: Mapping[str, Tree], device: torch.device) -> dict[str, Tree]:
    """Trees of a device on the host, which waits once for all of them."""
    back = to_device(trees, CPU)
    wait_for(device)
    return back


def wait_for(device: torch.device) -> None:
    """Waits until a device has done all that was asked of it, copies too."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_memory(device: torch.device) -> float:
    """Bytes that a device has left; where that is main memory, or is not known, as many as one likes."""
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else math.inf


def make_current(device: torch.device) -> None:
    """Lets this process work on a device where none is named; torch's generators of it are then the ones seeded."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index or 0)
