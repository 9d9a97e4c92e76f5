"""fluke: its own server, clients and evaluator, in one process with a thread for each core.

A client of fluke keeps its optimizer, momentum included, from round to round.
"""

from __future__ import annotations

import os
from contextlib import redirect_stdout, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedexp.bench import usage
from fedexp.bench.peers.counted import CountedSgd, sgd_settings
from fedexp.bench.peers.pace import Enough, Pace
from fedexp.bench.raw import TEST_BATCH, RawTask
from fedexp.bench.workload import CLASSES, Workload

ROUNDS = 1_000_000  # more than will be asked for


class Paced:
    """An observer of fluke's: hears of the test, then of the end of each round."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._accuracy = pace, 0.0

    def server_evaluation(self, round: int, eval_type: str, evals: dict[str, float], **_: Any) -> None:  # noqa: A002, ARG002
        """Keeps the accuracy of the global model."""
        if eval_type == "global":
            self._accuracy = evals["accuracy"]

    def end_round(self, round: int) -> None:  # noqa: A002, ARG002 - fluke's signature
        """Hands the round over."""
        self._pace.ended(CountedSgd.taken(), self._accuracy)


def play(connection: Connection, folder: Path, workload: Workload) -> None:
    """A contestant's process."""
    from fluke import FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import FastDataLoader
    from fluke.evaluation import ClassificationEval
    from fluke.server import Server

    torch.set_num_threads(usage.cores())
    task = RawTask.load(folder)
    env = FlukeENV()
    env.set_device("cpu")
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
    env.set_evaluator(ClassificationEval(eval_every=1, n_classes=CLASSES))
    clients = [_client(number, task, workload) for number in range(workload.clients)]
    test = FastDataLoader(task.test_x, task.test_y, num_labels=CLASSES, batch_size=TEST_BATCH)
    algorithm = FedAVG(
        n_clients=len(clients), data_splitter=None, hyper_params={}, clients=clients,
        server=Server(task.net, test, clients, weighted=False),
    )  # fmt: skip
    pace = Pace(connection)
    algorithm.attach(Paced(pace))
    with suppress(Enough), Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):  # its bars of progress
        pace.begin()
        algorithm.run(n_rounds=ROUNDS, eligible_perc=workload.per_round / workload.clients)


def _client(number: int, task: RawTask, workload: Workload) -> Any:
    from fluke.client import Client
    from fluke.config import OptimizerConfigurator
    from fluke.data import FastDataLoader

    rows = task.rows[number]
    samples = FastDataLoader(
        task.x[rows], task.y[rows], num_labels=CLASSES, batch_size=workload.batch_size, shuffle=True
    )
    return Client(
        index=number, train_set=samples, test_set=None, loss_fn=nn.CrossEntropyLoss(), local_epochs=workload.epochs,
        optimizer_cfg=OptimizerConfigurator({"name": CountedSgd, **sgd_settings(task)}),
    )  # fmt: skip
