"""What fedexp/client/lightning_private.py relies on is still there, and still called by every fit."""

from __future__ import annotations

import gc
import weakref
from unittest.mock import patch

import lightning
import pytest
import torch
from lightning.fabric.plugins.precision import MixedPrecision
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from fedexp.client import lightning_private, loops
from fedexp.client.loops import FabricLoop, TrainerLoop

READ = (
    f"Lightning {lightning.__version__} has changed what fedexp uses of its private interface: %s. Read ADR 3 and "
    "fedexp/client/lightning_private.py, mend that file, and only then allow this version in pyproject.toml."
)


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
    with patch.object(loops, "FastTrainer", kind):
        made = TrainerLoop("cpu")._trainer
    made.fit_loop.max_epochs = 1
    return made


def calls(of: lightning.Trainer) -> list[str]:
    """What a fit of Lightning's own Trainer calls of the things that ours replaces, in order."""
    noted = []

    def note(owner, name):
        assert hasattr(owner, name), READ % f"{type(owner).__name__} has no {name}"
        real = getattr(owner, name)
        return patch.object(owner, name, lambda *a, **k: noted.append(name) or real(*a, **k))

    assert hasattr(of, "_signal_connector"), READ % "a Trainer has no _signal_connector"
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
    wanted = ["model_to_device", "register_signal_handlers", "_run_stage", "run", "teardown", "teardown"]
    found = calls(theirs)
    assert found == wanted, READ % f"a fit calls {found}, and called {wanted}"


def test_everything_in_our_signals_is_in_lightnings():
    ours = {name for name in vars(lightning_private.NoSignals) if not name.startswith("_")}
    assert ours == {"received_sigterm", "register_signal_handlers", "teardown"}
    theirs = set(dir(trainer(lightning.Trainer)._signal_connector))
    assert ours <= theirs, READ % f"signals have no {ours - theirs}"


def test_a_trainer_forgets_what_it_was_fitted_to():
    class Data(list):
        pass

    ours, data = trainer(lightning_private.FastTrainer), Data([torch.zeros(1)])
    kept = weakref.ref(data)
    ours.fit(Tiny(), train_dataloaders=data)
    del data
    gc.collect()
    assert kept() is not None, "Lightning lets go of its own accord: forget_data can go"
    ours.forget_data()
    gc.collect()
    assert kept() is None, READ % "a Trainer keeps its data elsewhere"


@pytest.mark.parametrize("name", ["register_signal_handlers", "teardown"])
def test_ours_leaves_signals_alone(name):
    with patch.object(_SignalConnector, name, side_effect=AssertionError("called")):
        ours = trainer(lightning_private.FastTrainer)
        ours.fit(Tiny(), train_dataloaders=[torch.zeros(1)])
    assert ours.current_epoch == 1


@pytest.mark.parametrize("kind", [FabricLoop, TrainerLoop])
def test_a_strategy_can_be_put_on_a_device(kind):
    loop = kind("cpu")
    lightning_private.put_on_device(loop.strategy, torch.device("cpu", 1))
    assert loop.device == torch.device("cpu", 1), READ % "a strategy does not keep its device in _root_device"


def test_a_trainer_tells_its_precision_and_leaves_it_to_us():
    made = TrainerLoop("cpu", "bf16-mixed")._trainer
    assert made.precision == "bf16-mixed", READ % "a Trainer's precision is not that of its plugin"
    with made.precision_plugin.train_step_context():
        assert not torch.is_autocast_enabled("cpu"), READ % "a plain precision plugin changes the training step"


def test_a_scaler_can_be_replaced():
    plugin = MixedPrecision("16-mixed", "cpu")
    plugin.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    weight = torch.ones(1, requires_grad=True)
    plugin.backward(weight.sum(), None)
    assert weight.grad.item() == 8.0, READ % "MixedPrecision does not scale by its attribute scaler"


def test_nothing_else_imports_what_is_private():
    files = [p for p in lightning_private_users() if p.name != "lightning_private.py"]
    assert files == [], READ % f"{files} use private names of Lightning"


def lightning_private_users():
    import re
    from pathlib import Path

    package = Path(lightning_private.__file__).parents[1]
    private = re.compile(r"(trainer|strategy|fabric)\._[a-z]|from lightning\S* import .*\b_[a-z]")
    return [path for path in package.rglob("*.py") if private.search(path.read_text())]
