"""All that is used of Lightning beyond its public interface.

``tests/unit/client/test_lightning.py`` fails, and says which part, when a new version of Lightning changes it.
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.pytorch.plugins.precision import Precision as TrainerPrecision


class FastTrainer(lightning.Trainer):
    """A Trainer without the work around every fit that slows down clients of a few steps.

    The network is on its device already and stays there; signals belong to the run, not to one of its thousand fits;
    there is no sanity check whose random numbers would have to be kept apart.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._signal_connector = NoSignals()  # type: ignore[assignment]
        self.strategy.model_to_device = _nothing  # type: ignore[method-assign]
        self.strategy.teardown = _nothing  # type: ignore[method-assign]

    def _run_stage(self) -> None:
        self.fit_loop.run()

    def forget_data(self) -> None:
        """Lets go of what was fitted to, which would outlast the run: a Trainer is in reference cycles."""
        self.fit_loop._data_source.instance = None
        self.fit_loop._combined_loader = None


class NoSignals:
    """In place of the object with which a Trainer handles signals."""

    received_sigterm = False

    def register_signal_handlers(self) -> None:
        """Leaves them to the run."""

    def teardown(self) -> None:
        """Has nothing to undo."""


def _nothing() -> None:
    pass


class AnnouncedPrecision(TrainerPrecision):
    """Tells callbacks the precision, and changes nothing: the module and its network see to it themselves."""

    def __init__(self, name: str) -> None:
        self.precision = name  # type: ignore[assignment]


def put_on_device(strategy: Any, device: torch.device) -> None:
    """Lets a strategy work on a device that Lightning does not know."""
    strategy._root_device = device
