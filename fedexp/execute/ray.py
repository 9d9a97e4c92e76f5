"""Tasks on one machine or many, through Ray: actors with a worker each, tensors in Ray's object store."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedexp.core.ranges import Count, NotNegative
from fedexp.core.state import Message
from fedexp.errors import ConfigError, FedexpError
from fedexp.execute.base import Blueprint, Say, quiet
from fedexp.execute.pool import READY, Pool, Reply, WorkerDied, WorkerHandle
from fedexp.execute.ray_actor import Actor, ActorLocation
from fedexp.execute.shared_memory import Part, Place, TensorPickle, opened
from fedexp.execute.task import Task
from fedexp.system.resources import cores

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

SILENT_SECONDS = 60.0  # without any worker, before the user is told what the run waits for
QUIETLY = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anyone
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about it
    "RAY_worker_niceness": "0",  # Ray's 15 starves workers where anything else runs
}


# ---------------------------------------------------------------- what travels
class RayPayload(NamedTuple):
    """A pickle as Ray likes it: its tensors are arrays, which Ray writes once and everyone on a machine maps."""

    parts: list[Part]
    pieces: dict[Place, np.ndarray[Any, np.dtype[np.uint8]]]

    @classmethod
    def of(cls, pickled: TensorPickle) -> RayPayload:
        """A payload with the pickle's own tensors; Ray copies them."""
        return cls(pickled.parts, {p: _elements(t).view(torch.uint8).numpy() for t, p in pickled.tensors})

    def at(self, place: Place) -> Tensor:
        """A tensor where Ray has put it. It is everyone's, so nobody may write to it."""
        _, dtype, shape, strides = place
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(self.pieces[place]).view(dtype).as_strided(shape, strides)

    def open(self) -> Any:
        """What is in it, if that is one part."""
        return opened(self.parts[0], self)


def _elements(tensor: Tensor) -> Tensor:
    """In the order in which they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


# ---------------------------------------------------------------- in the main process
class RayWorkerHandle(WorkerHandle):
    """An actor, and what it was asked for."""

    def __init__(self, number: int, actor: ActorHandle[Actor], pool: RayExecutor) -> None:
        super().__init__(number)
        self.ready = False
        self.seat: ActorLocation | None = None
        self._actor, self._pool = actor, pool
        self._why = ""
        self.asked: dict[str, ObjectRef[Any]] = {READY: actor.seat.remote()}  # by lane

    def give(self, lane: str, task: Task) -> None:
        """Sends a task with references to the rest."""
        self.asked[lane] = self._actor.do.remote(*self._pool.needed, RayPayload.of(TensorPickle(task)))

    def fetch(self) -> tuple[str, Reply] | None:
        """The reply that has come."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        (done,), _ = ray.wait(list(self.asked.values()))
        lane = next(n for n, ref in self.asked.items() if ref == done)
        try:
            reply = ray.get(self.asked.pop(lane))
        except RayTaskError as error:
            reply = self._failure(error), RayPayload([], {})
        except RayError as error:  # the actor, its machine, or what it left there
            raise self._gone(error) from error
        if lane == READY:
            self.ready, self.seat = True, reply
            return None
        header, crate = reply
        return lane, (header, crate.parts, crate)

    def end(self) -> str:
        """Kills it."""
        import ray

        ray.kill(self._actor)
        self.asked, self.ready = {}, False
        where = f"on {self.seat.host}, process {self.seat.process}" if self.seat else "before it was there"
        return f"{where}{self._why}"

    def _failure(self, error: Any) -> Exception:
        """What went wrong before or after the task itself."""
        from ray.exceptions import RayError

        if isinstance(error.cause, RayError):  # something that it needs was lost
            raise self._gone(error.cause) from error
        return error.cause if isinstance(error.cause, FedexpError) else RuntimeError(str(error))

    def _gone(self, error: Exception) -> WorkerDied:
        self._why = f": {type(error).__name__}" if self.seat else f": {error}"
        return WorkerDied(str(error))


class RayExecutor(Pool[RayWorkerHandle]):
    """Ray actors on this machine or a cluster.

    The data set and the round's weights are once on each machine, however many actors there are. Actors get tasks when
    they are there: on a cluster that has shrunk those that are left do all the work, and new machines join in.

    Args:
        blueprint: What a worker is made of.
        address: Of a cluster that this machine is part of, or ``auto``; None starts Ray here and ends it with the run.
        workers: Actors; None for as many as there is room for.
        threads: Torch's threads in each of them.
        cpus: CPUs that each of them occupies; None for one per thread.
        gpus: GPUs, or the part of one, that each of them occupies; None for one if the run uses accelerators.
        say: Where a lost worker is reported.
    """

    words = "more of it is in Ray's logs"

    def __init__(
        self, blueprint: Blueprint, *, address: str | None = None, workers: Count | None = None,
        threads: Count = 1, cpus: NotNegative | None = None, gpus: NotNegative | None = None, say: Say = quiet,
    ) -> None:  # fmt: skip
        need = {
            "CPU": threads if cpus is None else cpus,
            "GPU": float(blueprint.devices > 0) if gpus is None else gpus,
        }
        if not any(need.values()) or min(need.values()) < 0:
            raise ConfigError(f"executor.cpus and executor.gpus must not be negative, nor both 0: {need}")
        self._ours = _joined(address, max(cores(), int((workers or 0) * need["CPU"])))
        room = _room(need)
        each = " and ".join(f"{v:g} {k}" for k, v in need.items() if v)
        if not room and not workers:
            self.close()
            raise FedexpError(
                f"Ray has no machine with {each} for a worker. Ask for less (executor.cpus, executor.gpus); or, if "
                "machines will join later, say how many workers there shall be (executor.workers)."
            )
        super().__init__(workers or min(room, blueprint.most_workers), threads, say)
        if room < self.workers:
            say(f"Ray has room for {room} of {workers} workers with {each} each; others start when there is more")
        self._options = {"num_cpus": need["CPU"], "num_gpus": need["GPU"]}
        self._each, self._threads = each, threads
        self.use(blueprint)
        self.handles = [self.start_worker(number) for number in range(self.workers)]

    @property
    def needed(self) -> tuple[list[ObjectRef[RayPayload]], ObjectRef[RayPayload]]:
        """What a task needs beside itself. In a list, a reference stays one."""
        return [self._blueprint], self._broadcast

    def use(self, blueprint: Blueprint) -> None:
        """From now on tasks are done by workers of this blueprint."""
        self._blueprint = _put(blueprint)

    def announce(self, broadcast: Message) -> None:
        """Puts the message into the object store."""
        self._broadcast = _put(broadcast)

    def sync(self, handle: RayWorkerHandle) -> None:
        """Says nothing to those who are there or on their way: what was announced comes with each task."""
        if not handle.ready and not handle.asked:
            raise WorkerDied

    def start_worker(self, number: int) -> RayWorkerHandle:
        """Asks Ray for an actor, on the machine with the fewest."""
        import ray

        actor = ray.remote(Actor).options(scheduling_strategy="SPREAD", **self._options)
        path = [str(Path(folder).absolute()) for folder in sys.path]  # "" is the current folder
        return RayWorkerHandle(number, actor.remote(self._threads, path), self)

    def wait(self, *, patient: bool = True) -> list[RayWorkerHandle]:
        """The worker that has answered, is lost or is there now."""
        import ray

        asked = {ref: handle for handle in self.handles for ref in handle.asked.values()}
        if not asked:
            return []
        timeout = (None if any(h.ready for h in self.handles) else SILENT_SECONDS) if patient else 0
        done, _ = ray.wait(list(asked), timeout=timeout)
        if not done and patient:
            self._say(f"waiting for Ray to start a worker with {self._each}")
        return [asked[ref] for ref in done]

    def close(self) -> None:
        """Lets the actors go, and Ray too if it was started here."""
        import ray

        for handle in getattr(self, "handles", []):
            handle.end()
        self.handles = []
        if self._ours:
            ray.shutdown()


def _joined(address: str | None, cpus: int) -> bool:
    """Connects to Ray; returns whether it was started for that, which then nobody else can reach.

    Raises:
        ConfigError: If Ray is not installed.
        FedexpError: If it cannot be reached, or can be reached from other machines though nobody asked for it.
    """
    for name, value in QUIETLY.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as cause:
        raise ConfigError("executor=ray needs Ray: pip install 'fedexp[ray]'") from cause
    if ray.is_initialized():  # by whoever called us
        return False
    settings: dict[str, Any] = {"address": address}
    reach: AbstractContextManager[None] = nullcontext()
    if address is None:
        settings = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        reach = _loopback_only()
    ended = signal.getsignal(signal.SIGTERM)
    try:
        _knock(address)
        with reach:
            ray.init(**settings, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as cause:
        raise FedexpError(
            f"Ray cannot be reached at executor.address={address}: {cause}\nThis machine must be part of the cluster: "
            "`ray start --head` on the first machine, `ray start --address=<first>:6379` on the others."
        ) from cause
    if ended not in (signal.SIG_DFL, None) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ended)  # Ray has put its own there
    if address is None:
        _demand_loopback()
    return address is None


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Lets Ray's processes listen on the loopback interface only.

    ``ray.init`` has no setting for it: it replaces even ``_node_ip_address="127.0.0.1"`` by the machine's address. But
    where Ray does not support clusters, as on macOS, it stays on 127.0.0.1 with all of its processes.
    """
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _demand_loopback() -> None:
    """The way of ``_loopback_only`` may be closed in another version of Ray."""
    import ray

    address = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise FedexpError(
            f"Ray {ray.__version__} would listen on {address}, where other machines can reach it. Install a version "
            "that was tested (.github/tested-versions.txt), or start Ray yourself (ray start --head) and use "
            "executor.address=auto."
        )


def _knock(address: str | None) -> None:
    """Fails at once where nobody listens; Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _room(need: dict[str, float]) -> int:
    """Workers that fit on the machines that are there."""
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(int(min(m.get(k, 0) / v for k, v in need.items() if v) + 1e-9) for m in machines)


def _put(content: Any) -> ObjectRef[RayPayload]:
    import ray

    return ray.put(RayPayload.of(TensorPickle(content)))
