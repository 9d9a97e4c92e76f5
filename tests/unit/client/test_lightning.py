"""What ``TrainerLoop`` replaces in a Trainer, most of it private, is still there and still called by every fit.

If a new version of Lightning fails here, read ADR 0003, then ``_Trainer`` in fedexp/client/loops.py.
"""

from __future__ import annotations

from unittest.mock import patch

import lightning
import pytest
import torch
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from fedexp.client import loops
from fedexp.client.loops import TrainerLoop


class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(kind: type[lightning.Trainer]) -> lightning.Trainer:
    """With the settings of ours, of which Lightning's own is one if it takes the place of ours."""
    with patch.object(loops, "_Trainer", kind):
        made = TrainerLoop("cpu")._trainer
    made.fit_loop.max_epochs = 1
    return made


def calls(of: lightning.Trainer) -> list[str]:
    """What a fit of Lightning's own Trainer calls of the things that ours replaces, in order."""
    noted = []

    def note(owner, name):
        real = getattr(owner, name)
        return patch.object(owner, name, lambda *a, **k: noted.append(name) or real(*a, **k))

    with (
        note(of, "_run_stage"), note(of.fit_loop, "run"), note(of.strategy, "model_to_device"),
        note(of.strategy, "teardown"), note(of._signal_connector, "register_signal_handlers"),
        note(of._signal_connector, "teardown"),
    ):  # fmt: skip
        of.fit(Tiny(), train_dataloaders=[torch.zeros(1)])
    return noted


def test_a_fit_calls_everything_that_is_replaced():
    theirs = trainer(lightning.Trainer)
    assert type(theirs) is lightning.Trainer
    assert calls(theirs) == [
        "model_to_device", "register_signal_handlers", "_run_stage", "run", "teardown", "teardown",
    ]  # fmt: skip


def test_everything_in_our_signals_is_in_lightnings():
    ours = {name for name in vars(loops._NoSignals) if not name.startswith("_")}
    assert ours == {"received_sigterm", "register_signal_handlers", "teardown"}
    assert ours <= set(dir(trainer(lightning.Trainer)._signal_connector))


@pytest.mark.parametrize("name", ["register_signal_handlers", "teardown"])
def test_ours_leaves_signals_alone(name):
    with patch.object(_SignalConnector, name, side_effect=AssertionError("called")):
        ours = trainer(loops._Trainer)
        ours.fit(Tiny(), train_dataloaders=[torch.zeros(1)])
    assert ours.current_epoch == 1
