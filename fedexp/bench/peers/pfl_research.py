"""pfl-research: its simulated backend in as many processes as there are cores, joined by torch.distributed.

It averages parameters only, so that a network with running statistics does not learn as the raw loop's does.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.bench import usage
from fedexp.bench.peers.counted import CountedSgd, sgd_settings
from fedexp.bench.peers.pace import Enough, Pace
from fedexp.bench.raw import TEST_BATCH, RawTask
from fedexp.bench.workload import Workload
from fedexp.server.sampler import UniformSampler

ROUNDS = 1_000_000  # more than will be asked for
MAIN = "MainProcess"  # only a process of this name gets a part in pfl's distributed work


class Classifier(nn.Module):
    """The network with the losses and metrics that pfl asks a model for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:  # noqa: FBT001, FBT002 - pfl's signature
        """Of a batch."""
        self.train(not is_eval)
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, is_eval: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """Of a batch."""
        from pfl.metrics import Weighted

        self.train(not is_eval)
        right = (self.net(x).argmax(1) == y).sum()
        return {"accuracy": Weighted(int(right), len(y))}


def play(connection: Connection, folder: Path, workload: Workload) -> None:
    """A contestant's process, the first of several."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    arguments = (folder, workload, port)
    context = mp.get_context("spawn")
    followers = [
        context.Process(target=_take_part, args=(rank, None, *arguments), name=MAIN, daemon=True)
        for rank in range(1, usage.cores())
    ]
    for follower in followers:
        follower.start()
    mp.current_process().name = MAIN
    with suppress(Enough):
        _take_part(0, Pace(connection), *arguments)
    for follower in followers:
        follower.kill()


def _take_part(rank: int, pace: Pace | None, folder: Path, workload: Workload, port: int) -> None:
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank}
    os.environ |= {k: str(v) for k, v in place.items()}
    os.environ |= {"WORLD_SIZE": str(usage.cores()), "TORCHELASTIC_RUN_ID": "bench"}  # as torchrun does
    torch.set_num_threads(1)
    _run(RawTask.load(folder), workload, pace)


def _run(task: RawTask, workload: Workload, pace: Pace | None) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    settings = sgd_settings(task)
    model = PyTorchModel(
        Classifier(task.net), lambda parameters, lr: CountedSgd(parameters, **{**settings, "lr": lr}),
        torch.optim.SGD(task.net.parameters(), lr=1.0),
    )  # fmt: skip
    test = NNEvalHyperParams(local_batch_size=TEST_BATCH)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS, evaluation_frequency=ROUNDS, train_cohort_size=workload.per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=_clients(task, workload), val_data=None),
        model,
        NNTrainHyperParams(
            local_batch_size=workload.batch_size, local_num_epochs=workload.epochs, local_learning_rate=settings["lr"]
        ),
        test,
        callbacks=[_end_of_round(task, test, pace)], send_metrics_to_platform=False,
    )  # fmt: skip


def _clients(task: RawTask, workload: Workload) -> Any:
    from pfl.data import FederatedDataset
    from pfl.data.dataset import Dataset

    class Shuffled(Dataset):  # type: ignore[misc]
        """A client's samples, in a new order for every epoch."""

        def iter(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
            for rows in torch.split(torch.randperm(len(self)), batch_size):
                yield tuple(tensor[rows] for tensor in self.raw_data)

    draw = UniformSampler(0, workload.clients, workload.per_round / workload.clients)
    drawn = chain.from_iterable(draw(t) for t in count())  # the same in all processes
    samples = [Shuffled((task.x[rows], task.y[rows]), user_id=str(k)) for k, rows in enumerate(task.rows)]
    return FederatedDataset(samples.__getitem__, lambda: next(drawn))


def _end_of_round(task: RawTask, how: Any, pace: Pace | None) -> Any:
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.metrics import Metrics

    class EndOfRound(CentralEvaluationCallback):  # type: ignore[misc]
        """Tests after every round, also after the first, and hands it over."""

        def on_train_begin(self, *, model: Any) -> Any:
            found = super().on_train_begin(model=model)
            if pace is not None:
                pace.begin()
            return found

        def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
            stop, found = super().after_central_iteration(metrics, model, central_iteration=central_iteration + 1)
            steps = torch.tensor(CountedSgd.taken())
            _sum(steps)
            if pace is not None:
                accuracy = next(v for k, v in found.to_simple_dict().items() if k.endswith("accuracy"))
                pace.ended(int(steps), accuracy)
            return stop, Metrics()  # nobody looks at them, and pfl refuses those of the first round

    return EndOfRound(Dataset((task.test_x, task.test_y)), model_eval_params=how)


def _sum(number: Tensor) -> None:
    """Over all processes."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(number)
