"""What runs in Ray's processes. Importing this imports nothing, so that Lightning can be imported in our own way."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ray import ObjectRef

    from fedexp.execute.base import Blueprint
    from fedexp.execute.ray import RayPayload


class ActorLocation(NamedTuple):
    """Where an actor is."""

    host: str
    process: int
    node: str


class Actor:
    """A worker in a process of Ray's. A task names what it needs; what was needed for the last one is still here.

    Args:
        threads: Torch's threads.
        path: Where the main process imports from; last here, for what this process would not find otherwise.
    """

    def __init__(self, threads: int, path: Sequence[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        from fedexp.system.fast_import import import_lightning

        import_lightning()
        import fedexp.execute.ray  # noqa: F401 - now, and not when the first task comes

        self._threads = threads
        self._blueprint = ""

    def seat(self) -> ActorLocation:
        """Where it is, now that it is there."""
        import ray

        return ActorLocation(socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id())

    def do(
        self, blueprint: list[ObjectRef[RayPayload]], broadcast: RayPayload, task: RayPayload
    ) -> tuple[float | Exception, RayPayload]:
        """Does a task."""
        from fedexp.execute.pool import answered

        self._use(*blueprint)
        started = time.perf_counter()
        content, message = task.open(), broadcast.open()
        transfer = time.perf_counter() - started
        header, pickled = answered(content, self._worker, message, transfer)
        return header, type(task).of(pickled)

    def _use(self, blueprint: ObjectRef[RayPayload]) -> None:
        """Makes a worker, unless it is there; Ray deals out accelerators, so that each sees its own as the first."""
        import ray

        if self._blueprint != blueprint.hex():
            self._worker = self._open(ray.get(blueprint)).worker(threads=self._threads)
            self._blueprint = blueprint.hex()

    def _open(self, blueprint: RayPayload) -> Blueprint:
        from fedexp.errors import FedexpError

        try:
            opened: Blueprint = blueprint.open()
        except ModuleNotFoundError as error:
            raise FedexpError(
                f"{socket.gethostname()} has no module {error.name}, which the run needs. On a cluster, Python files "
                "of your own must be in the same folder on every machine, and packages must be installed on each."
            ) from error
        return opened
