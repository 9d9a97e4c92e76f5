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

from fedexp.client.lightning_private import AnnouncedPrecision, FastTrainer, put_on_device
from fedexp.client.network import compile_parts, fastest_memory_format
from fedexp.client.precision import FULL, NetworkPrecision
from fedexp.core.devices import make_current
from fedexp.models.split import SplitModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning.pytorch.loggers import Logger

    from fedexp.client.module import ClientModule
    from fedexp.data.federated import Batches, Groups


class Loop(Protocol):
    """Fits one phase."""

    precision: NetworkPrecision

    @property
    def device(self) -> torch.device: ...
    def prepare(self, net: SplitModel) -> SplitModel: ...
    def fit(self, module: ClientModule, batches: Batches | Groups) -> None: ...


Accelerator = Literal["auto", "cpu", "gpu", "cuda", "mps"]


PrecisionName = Literal["32-true", "bf16-mixed", "16-mixed", "bf16-true"]
Compile = Literal[False, True, "aot_eager"]  # true is torch's own backend; aot_eager compiles nothing, for tests


class LightningLoop:
    """What both loops have in common.

    Args:
        accelerator: Where to train; ``auto`` takes an accelerator if there is one.
        precision: In which the network computes; see ``fedexp.client.precision``.
        compile: Whether the network is compiled, once for all clients.
        number: The worker's, by which devices are dealt out.
    """

    strategy: Any  # Lightning's, which says where to train

    def __init__(
        self,
        accelerator: Accelerator = "auto",
        precision: PrecisionName = FULL,
        compile: Compile = False,  # noqa: A002, FBT002 - a setting
        number: int = 0,
    ) -> None:
        _quieten()
        self._where: dict[str, Any] = {"accelerator": accelerator, "devices": _device(accelerator, number)}
        self._compile = compile
        self.strategy = self._open(precision)
        self.precision = NetworkPrecision(precision, self.device)
        make_current(self.device)

    def _open(self, precision: PrecisionName) -> Any:
        """Makes what trains; returns its strategy."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the network and the data live."""
        device: torch.device = self.strategy.root_device
        return device

    def prepare(self, net: SplitModel) -> SplitModel:
        """The network as it is trained: on the device, in its precision, compiled if asked for."""
        net = self.precision.prepare(fastest_memory_format(net.to(self.device)))
        if self._compile:
            compile_parts(net, self._compile if isinstance(self._compile, str) else "inductor")
        return net


class TrainerLoop(LightningLoop):
    """One Lightning Trainer per worker, used again for every phase.

    A Trainer that has reached ``max_epochs`` silently does not fit again, so the limit is raised by one for each fit;
    a phase is one Trainer epoch however many passes over the data it makes. That the steps were really taken is
    checked by the module.

    Args:
        callbacks: Make Lightning callbacks, which see every fit (``pl_module.turn.frame`` has the client, the round
            and the phase). They must not change what is trained.
        loggers: Make Lightning loggers, which get the mean loss terms of every fit.
        settings: Those of every loop.
    """

    def __init__(
        self,
        accelerator: Accelerator = "auto",
        precision: PrecisionName = FULL,
        compile: Compile = False,  # noqa: A002, FBT002 - a setting
        callbacks: Sequence[Callable[[], lightning.Callback]] = (),
        loggers: Sequence[Callable[[], Logger]] = (),
        number: int = 0,
    ) -> None:
        self._callbacks, self._loggers = [make() for make in callbacks], [make() for make in loggers]
        self._steps = 0  # of all fits, for loggers
        super().__init__(accelerator, precision, compile, number)

    def _open(self, precision: PrecisionName) -> Any:
        self._announced = [] if precision == FULL else [AnnouncedPrecision(precision)]
        self._trainer = self._new_trainer()
        return self._trainer.strategy

    def fit(self, module: ClientModule, batches: Batches | Groups) -> None:
        """Runs one phase."""
        self._trainer.fit_loop.max_epochs = self._trainer.current_epoch + 1
        module.train()
        ctrl_c = signal.getsignal(signal.SIGINT)
        try:
            self._trainer.fit(module, train_dataloaders=batches)
            self._trainer.forget_data()
        except BaseException as stop:
            device = self.device
            self._trainer = self._new_trainer()  # the old one may have been stopped anywhere
            put_on_device(self._trainer.strategy, device)
            self.strategy = self._trainer.strategy
            if not isinstance(stop, SystemExit) or not isinstance(stop.__context__, KeyboardInterrupt):
                raise
            signal.signal(signal.SIGINT, ctrl_c)  # a Trainer answers Ctrl-C with an exit, and ignores further ones
            raise stop.__context__ from None
        if self._loggers:
            self._log(module)

    def _log(self, module: ClientModule) -> None:
        turn = module.turn
        self._steps += turn.taken
        terms = {f"{module.phase.name}/{term}": value for term, value in turn.terms().items()}
        for logger in self._loggers:
            logger.log_metrics(terms, step=self._steps)
            logger.save()

    def _new_trainer(self) -> FastTrainer:
        return FastTrainer(
            **self._where, max_epochs=0, callbacks=self._callbacks, logger=self._loggers or False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            num_sanity_val_steps=0, limit_val_batches=0, use_distributed_sampler=False,
            plugins=[LightningEnvironment(), *self._announced],
        )  # fmt: skip


class FabricLoop(LightningLoop):
    """One process-wide Fabric; the plain loop of thousands of tiny clients."""

    def _open(self, precision: PrecisionName) -> Any:  # noqa: ARG002 - nobody asks this Fabric
        self._fabric = lightning.Fabric(**self._where, plugins=LightningEnvironment())
        return self._fabric.strategy

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
