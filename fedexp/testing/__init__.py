"""The conformance battery: what every algorithm must do, ours or yours. Each check raises AssertionError.

In a test file of yours, one line makes a test of each check:

test_mine = fedexp.testing.battery({"mine": MyComponent()})
"""

from fedexp.testing.checks import CHECKS, Shuffled, Watching, battery, executors_agree
from fedexp.testing.trial import (
    CLASSES,
    CLIENTS,
    OWNED,
    SIDE,
    BatchByBatch,
    card,
    play,
    tiny_data,
    tiny_net,
    tiny_public,
    trial,
    trial_after,
)

__all__ = [
    "CHECKS", "CLASSES", "CLIENTS", "OWNED", "SIDE", "BatchByBatch", "Shuffled", "Watching", "battery", "card",
    "executors_agree", "play", "tiny_data", "tiny_net", "tiny_public", "trial", "trial_after",
]  # fmt: skip
