"""What a component is shown. Tensors and slots are read only.

``mine`` are the component's own slots by name, ``of(key)`` those of a component it needs.
"""

from fedexp.core.views.client_round import LocalRound
from fedexp.core.views.server_round import NO_PUBLIC, Network, ServerRound, no_classifier
from fedexp.core.views.slots import Bound, Facts, Slots, View, Views
from fedexp.core.views.step import Batch, Frame, Step

__all__ = [
    "NO_PUBLIC", "Batch", "Bound", "Facts", "Frame", "LocalRound", "Network", "ServerRound", "Slots", "Step", "View",
    "Views", "no_classifier",
]  # fmt: skip
