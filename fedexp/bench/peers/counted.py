"""The optimizer of the raw loop, for frameworks that take the steps themselves: it counts them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from fedexp.bench.raw import RawTask


class CountedSgd(torch.optim.SGD):
    """SGD that counts the steps of all its instances in a process."""

    steps: ClassVar[int] = 0

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Takes a step."""
        CountedSgd.steps += 1
        return super().step(*args, **kwargs)

    @classmethod
    def taken(cls) -> int:
        """The steps since the last call."""
        cls.steps, steps = 0, cls.steps
        return steps


def sgd_settings(task: RawTask) -> dict[str, Any]:
    """What it is made with, fused as the raw loop's."""
    s = task.optimizer
    return {
        "lr": s.lr, "momentum": s.momentum, "weight_decay": s.weight_decay, "nesterov": s.nesterov, "fused": True
    }  # fmt: skip
