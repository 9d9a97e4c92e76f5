"""Lightning callbacks and loggers of the user's, on ``loop=trainer``."""

from __future__ import annotations

import csv
from functools import partial

import lightning
import pytest
from lightning.pytorch.loggers import CSVLogger

from fedexp.build import build
from fedexp.client.loops import TrainerLoop
from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.errors import ConfigError
from fedexp.testing import play
from fedexp.testing.agreement import demand_equal
from tests.helpers import TINY

seen: list[tuple] = []


class Watches(lightning.Callback):
    def __init__(self, word: str = "") -> None:
        self.word = word

    def on_train_start(self, trainer, pl_module):
        seen.append((self.word, trainer.precision, pl_module.turn.frame.info.client, pl_module.phase.name))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        seen.append(("batch", batch_idx))


def test_callbacks_see_every_fit_and_change_nothing():
    seen.clear()
    loop = partial(TrainerLoop, accelerator="cpu", callbacks=[partial(Watches, word="mine")], precision="bf16-mixed")
    engine = play({}, rounds=1, loop=loop)
    fits = [row for row in seen if row[0] == "mine"]
    assert len(fits) == engine.sampler.size
    assert {row[1] for row in fits} == {"bf16-mixed"}
    assert {row[3] for row in fits} == {"local"}
    assert len(seen) > 2 * len(fits)
    demand_equal(
        play({}, rounds=1, loop=partial(TrainerLoop, accelerator="cpu", precision="bf16-mixed")), engine, "callbacks"
    )


def test_loggers_get_the_terms_of_every_fit(tmp_path):
    loop = partial(TrainerLoop, accelerator="cpu", loggers=[partial(CSVLogger, str(tmp_path), name="mine")])
    engine = play({}, rounds=2, loop=loop)
    (file,) = tmp_path.rglob("metrics.csv")
    rows = list(csv.DictReader(file.open()))
    assert len(rows) == 2 * engine.sampler.size
    assert all(float(row["local/ce"]) > 0 for row in rows)
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(steps)


# ---------------------------------------------------------------- by configuration
def configured(*overrides: str):
    return composed([*TINY, "loop=trainer", *overrides])


def test_a_configuration_names_them_with_their_settings(tmp_path):
    config = configured(
        "loop.callbacks=[{_target_: lightning.pytorch.callbacks.Timer, interval: step}]",
        f"loop.loggers=[{{_target_: lightning.pytorch.loggers.CSVLogger, save_dir: {tmp_path}}}]",
    )
    loop = make(config["loop"])
    assert [type(c).__name__ for c in loop._callbacks] == ["Timer"]
    assert [type(c).__name__ for c in loop._loggers] == ["CSVLogger"]
    assert build(config).net is not None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("loop.callbacks=[{_target_: os.system}]", r"loop\.callbacks\[0\]\._target_: 'os\.system' is neither"),
        ("loop.callbacks=[{_target_: lightning.pytorch.callbacks.Tmer}]", r"is not there\. Did you mean 'Timer'"),
        ("loop.callbacks=[{_target_: lightning.pytorch.callbacks.Timer, intervall: 3}]", r"\[0\]\.intervall is not a"),
        ("loop.callbacks=[Timer]", r"loop\.callbacks\[0\] must be a component with a _target_, not 'Timer'"),
        ("loop.callbacks=Timer", r"loop\.callbacks must be a list"),
        ("loop.loggers=[{_target_: fedexp.api.run}]", r"loop\.loggers\[0\]\._target_: 'fedexp\.api\.run' belongs to"),
    ],
)  # fmt: skip
def test_what_is_not_one_is_refused_before_it_is_imported(override, said):
    with pytest.raises(ConfigError, match=said):
        configured(override)


def test_fabric_has_none():
    with pytest.raises(ConfigError, match=r"loop\.callbacks is a setting of loop=trainer"):
        composed(["loop=fabric", "loop.callbacks=[]"])
