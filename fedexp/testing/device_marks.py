"""Which memory is on the pretended device, and where in the code of a run something happens."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from fedexp.client import asks, fit, module, worker
from fedexp.core import views
from fedexp.evaluate import tester
from fedexp.server import update

LIBRARIES = (str(Path(torch.__file__).parent), "/lightning/", str(Path(__file__).parent))

# Of what a wait is a part: the innermost of these functions that is running.
PARTS = {
    views.Step.once.__code__: "phase",  # a value for all steps of the phase
    module.ClientModule.training_step.__code__: "step",
    fit.Fitter.fit.__code__: "phase",
    tester.Tester.scores.__code__: "test",
    worker.Worker.test_server.__code__: "test",
    worker.Worker.test_client.__code__: "client",
    worker.Worker._round.__code__: "client",
    asks.alone.__code__: "client",
    update.advance.__code__: "server",
}


@dataclass(frozen=True)
class Wait:
    """Something for which the host waits until the device has done all that was asked of it."""

    what: str  # the operation
    part: str  # "step", "phase", "test", "client", "server" or "run"
    line: str  # of code

    def __str__(self) -> str:
        return f"{self.what} in {self.line} (part of a {self.part})"


class Marks:
    """Memory that is on the device. A weak reference keeps an address from being used for other memory."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}
        self._limit = 10_000

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        with torch._C.DisableTorchFunction():
            return _unwrapped(tensor).untyped_storage()._cdata in self._known

    def add(self, made: Any) -> None:
        """Marks all tensors that were made."""
        with torch._C.DisableTorchFunction():
            for tensor in tree_leaves(made):
                if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                    storage = _unwrapped(tensor).untyped_storage()
                    if storage._cdata not in self._known:
                        self._known[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if len(self._known) > self._limit:
            self._known = {key: ref for key, ref in self._known.items() if not ref.expired()}  # type: ignore[no-untyped-call]
            self._limit = 2 * len(self._known) + 10_000

    def discard(self, tensor: Tensor) -> None:
        """Takes a mark away."""
        with torch._C.DisableTorchFunction():
            self._known.pop(tensor.untyped_storage()._cdata, None)


def _unwrapped(tensor: Tensor) -> Tensor:
    """The tensor that holds the numbers; ``torch.func`` wraps it while it maps and differentiates."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def line_of_code() -> str:
    """The line outside of torch, Lightning and this package that is running."""
    frame = sys._getframe(1)
    while frame.f_back is not None and any(library in frame.f_code.co_filename for library in LIBRARIES):
        frame = frame.f_back
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_lineno}"


def part_of_the_run() -> str:
    """What is being done: the innermost of ``PARTS`` that is running."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code in PARTS:
            return PARTS[frame.f_code]
        frame = frame.f_back
    return "run"
