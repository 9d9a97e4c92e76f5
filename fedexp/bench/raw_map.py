"""MAP's rounds by hand: what ``raw.py`` is to FedAvg. Private models lie in shared memory, a row for each client."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.bench.raw import Order, RawTask, RawWorker, carried, overwrite


class MapWorker(RawWorker):
    """Half of the steps have restricted softmax and are uploaded; the others are taught by the private model."""

    def __init__(self, task: RawTask, order: Order, memory: Sequence[Tensor], *, channels_last: bool) -> None:
        super().__init__(task, order, memory, channels_last=channels_last)
        self._rs, self._hpm = task.method["rs"], task.method["hpm"]
        own = torch.zeros(len(task.rows), int(task.y.max()) + 1, device=task.y.device)
        own.scatter_(1, task.y[task.rows], 1.0)
        self._factors = torch.where(own > 0, 1.0, self._rs["alpha"])  # [clients, classes]
        self._bias = self._net.get_parameter("classifier.bias")  # it is not scaled
        self._teacher = copy.deepcopy(self._net)

    @staticmethod
    def remembered(task: RawTask) -> list[Tensor]:
        """How often a client took part, and its private model."""
        clients = len(task.rows)
        seen = torch.zeros(clients, device=task.x.device)
        return [seen, *(w.new_zeros(clients, *w.shape) for w in carried(task.net))]

    def _fit(self, client: int, batches: Iterable[Tensor], total: Sequence[Tensor]) -> int:
        due = list(batches)
        half, factors = len(due) // 2, self._factors[client]
        for rows in due[:half]:
            x, y = self._batch(rows)
            self._step(F.cross_entropy(self._net(x) * factors + self._bias * (1 - factors), y))
        self._upload(total)
        seen, *private = (m[client] for m in self._memory)
        taught = bool(seen)
        if taught:
            overwrite(carried(self._teacher), private)
        for rows in due[half:]:
            x, y = self._batch(rows)
            self._step(self._taught(x, y) if taught else F.cross_entropy(self._net(x), y))
        self._inherit(float(seen), private)
        seen += 1
        return len(due)

    def _taught(self, x: Tensor, y: Tensor) -> Tensor:
        weight, temperature = self._hpm["weight"], self._hpm["temperature"]
        z: Tensor = self._net(x)
        with torch.no_grad():
            softened = F.log_softmax(self._teacher(x) / temperature, dim=1)
        student = F.log_softmax(z / temperature, dim=1)
        transfer: Tensor = temperature**2 * F.kl_div(student, softened, reduction="batchmean", log_target=True)
        loss: Tensor = (1 - weight) * F.cross_entropy(z, y) + weight * transfer
        return loss

    def _inherit(self, seen: float, private: Sequence[Tensor]) -> None:
        inertia = min(self._hpm["momentum"] * seen / self._task.selections, self._hpm["clip"])
        with torch.no_grad():
            for kept, trained in zip(private, self._weights, strict=True):
                kept.mul_(inertia).add_(trained, alpha=1 - inertia)
