"""The loop that takes the steps of many clients at once."""

from __future__ import annotations

from fedexp.client.loops import Accelerator, FabricLoop
from fedexp.core.ranges import Count


class BatchedLoop(FabricLoop):
    """Fits up to ``group`` clients as one stacked model; phases that cannot be stacked are fitted one by one."""

    def __init__(self, accelerator: Accelerator = "auto", group: Count = 100, number: int = 0) -> None:
        super().__init__(accelerator, number=number)
        self.group = group
