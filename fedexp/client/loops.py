"""Two ways to drive a ClientModule over its batches: a Lightning Trainer, or Lightning Fabric for tiny clients.

Both call the same ``training_step`` in the same order, so their weights are equal bit for bit.
"""

from __future__ import annotations

import logging
import signal
import warnings
from typing import TYPE_CHECKING, Any, Literal, Protocol

import lightning
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment  # one process, under SLURM too

if TYPE_CHECKING:
    from fedexp.client.module import ClientModule
    from fedexp.data.federated import Batches, Groups


class Loop(Protocol):
    """Fits one phase."""

    @property
    def device(self) -> torch.device: ...
    def fit(self, module: ClientModule, batches: Batches | Groups) -> None: ...


Accelerator = Literal["auto", "cpu", "gpu", "cuda", "mps"]


class TrainerLoop:
    """One Lightning Trainer per worker, used again for every phase.

    A Trainer that has reached ``max_epochs`` silently does not fit again, so the limit is raised by one for each fit;
    a phase is one Trainer epoch however many passes over the data it makes. That the steps were really taken is
    checked by the module.
    """

    def __init__(self, accelerator: Accelerator = "auto", number: int = 0) -> None:
        _quieten()
        self._accelerator, self._number = accelerator, number
        self._trainer = self._new_trainer()

    @property
    def device(self) -> torch.device:
        """Where the network and the data live."""
        return self._trainer.strategy.root_device

    def fit(self, module: ClientModule, batches: Batches | Groups) -> None:
        """Runs one phase."""
        self._trainer.fit_loop.max_epochs = self._trainer.current_epoch + 1
        module.train()
        ctrl_c = signal.getsignal(signal.SIGINT)
        try:
            self._trainer.fit(module, train_dataloaders=batches)
        except BaseException as stop:
            self._trainer = self._new_trainer()  # the old one may have been stopped anywhere
            if not isinstance(stop, SystemExit) or not isinstance(stop.__context__, KeyboardInterrupt):
                raise
            signal.signal(signal.SIGINT, ctrl_c)  # a Trainer answers Ctrl-C with an exit, and ignores further ones
            raise stop.__context__ from None

    def _new_trainer(self) -> lightning.Trainer:
        return _Trainer(
            accelerator=self._accelerator, devices=_device(self._accelerator, self._number), max_epochs=0,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            num_sanity_val_steps=0, limit_val_batches=0, use_distributed_sampler=False, plugins=LightningEnvironment(),
        )  # fmt: skip


class _Trainer(lightning.Trainer):
    """A Trainer without the work around every fit that slows down clients of a few steps.

    The network is on its device already and stays there; signals belong to the run, not to one of its thousand fits;
    there is no sanity check whose random numbers would have to be kept apart.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._signal_connector = _NoSignals()  # type: ignore[assignment]
        self.strategy.model_to_device = _nothing  # type: ignore[method-assign]
        self.strategy.teardown = _nothing  # type: ignore[method-assign]

    def _run_stage(self) -> None:
        self.fit_loop.run()


class _NoSignals:
    received_sigterm = False

    def register_signal_handlers(self) -> None:
        pass

    def teardown(self) -> None:
        pass


def _nothing() -> None:
    pass


class FabricLoop:
    """One process-wide Fabric; the plain loop of thousands of tiny clients."""

    def __init__(self, accelerator: Accelerator = "auto", number: int = 0) -> None:
        _quieten()
        self._fabric = lightning.Fabric(
            accelerator=accelerator, devices=_device(accelerator, number), plugins=LightningEnvironment()
        )

    @property
    def device(self) -> torch.device:
        """Where the network and the data live."""
        return self._fabric.device

    def fit(self, module: ClientModule, batches: Batches | Groups) -> None:
        """Runs one phase."""
        if module.fabric is None:
            module.fabric = self._fabric
        module.train()
        module.configure_optimizers()
        for index, batch in enumerate(batches):
            module.training_step(batch, index)


def available(accelerator: str) -> bool:
    """Whether this machine has what ``loop.accelerator`` asks for."""
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator in ("auto", "cpu") or (there is not None and accelerator in ("gpu", there.type))


def accelerators(accelerator: str) -> int:
    """Devices that a loop can use; 0 if it runs on the CPU."""
    return torch.accelerator.device_count() if accelerator != "cpu" and torch.accelerator.is_available() else 0


def first_device(accelerator: str) -> torch.device:
    """Where the first worker's network and data live."""
    there = torch.accelerator.current_accelerator() if accelerators(accelerator) else None
    return torch.device("cpu") if there is None else torch.device(there.type, 0)


def _device(accelerator: str, number: int) -> int | list[int]:
    """The device of the worker with this number; workers are dealt out in turn."""
    count = accelerators(accelerator)
    return [number % count] if count else 1


def _quieten() -> None:
    """Silences what Lightning logs at every fit."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message=".*lightning.*")
