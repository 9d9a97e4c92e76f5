"""What a round costs a client."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

import torch

from fedexp.probes.base import ClientView, Log, Probe


@dataclass(frozen=True, kw_only=True)
class CostProbe(Probe):
    """Memory and seconds of a client's round. Fan et al., FedMR, figure 4.

    A row ``round`` has ``seconds`` of local training without tests and probes, and bytes: of the ``network``, of all
    that was ``received`` and of the ``model`` in it, of what was ``sent``, and of what the client has ``kept`` from
    round to round; ``stored`` is the network, what is kept, and what came besides the model. ``peak`` is the most
    memory that the process, or the accelerator, has held so far. Seconds of a busy machine say little.

    Deviations: The paper counts parameters of models that a client stores, and does not say which copies.
    """

    def client(self, view: ClientView, log: Log) -> None:
        """The ledger of the round."""
        sizes = view.sizes
        stored = sizes["network"] + sizes["kept"] + sizes["received"] - sizes["model"]
        peak = _peak(next(iter(view.received.values())).device)
        log.row("round", {"seconds": view.seconds, **sizes, "stored": stored, "peak": peak})


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
