"""Flower's simulation: messages through its grid, clients in as many Ray actors as there are cores.

Flower leaves a client's training to its user, so that is the raw loop's own: what differs is Flower's.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedexp.bench import usage
from fedexp.bench.peers.pace import Enough, Pace
from fedexp.bench.raw import TEST_BATCH, RawTask, RawWorker, Shuffle, carried
from fedexp.bench.workload import Workload

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

ROUNDS = 1_000_000  # more than will be asked for
NICENESS = "RAY_worker_niceness"  # in the environment


def play(connection: Connection, folder: Path, workload: Workload) -> None:
    """A contestant's process."""
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ[NICENESS] = "0"  # like the other contestants; Ray lets its workers wait for everybody
    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": usage.cores(), "log_to_driver": False},
    }
    run_simulation(
        server_app=_server(Pace(connection), folder, workload), client_app=_client(folder, workload),
        num_supernodes=workload.clients, backend_config=resources,
    )  # fmt: skip


def _server(pace: Pace, folder: Path, workload: Workload) -> ServerApp:
    from flwr.app import MetricRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    app = ServerApp()
    taken: list[int] = []

    def add_up(records: list[RecordDict], weighted_by: str) -> MetricRecord:  # noqa: ARG001 - Flower's signature
        taken[:] = [sum(int(r["metrics"]["steps"]) for r in records)]
        return MetricRecord({"steps": taken[0]})

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001 - Flower's signature
        worker, task = _worker(folder, workload, usage.cores())

        def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
            if not round_:
                pace.begin()
                return MetricRecord({})
            right = worker.test(_tensors(arrays), range(0, len(task.test_y), TEST_BATCH))
            pace.ended(taken[0], right / len(task.test_y))
            return MetricRecord({"accuracy": right / len(task.test_y)})

        strategy = FedAvg(
            fraction_train=workload.per_round / workload.clients, fraction_evaluate=0.0,
            min_available_nodes=workload.clients, train_metrics_aggr_fn=add_up,
        )  # fmt: skip
        with suppress(Enough):
            strategy.start(grid, _record(carried(task.net)), num_rounds=ROUNDS, evaluate_fn=evaluate)

    return app


def _client(folder: Path, workload: Workload) -> ClientApp:
    from flwr.app import Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        worker, task = _worker(folder, workload, 1)
        start = _tensors(message.content["arrays"])
        end = [torch.empty_like(w) for w in start]
        steps = worker.train(start, end, 0, [int(context.node_config["partition-id"])])
        metrics = MetricRecord({"num-examples": task.rows.shape[1], "steps": steps})
        return Message(RecordDict({"arrays": _record(end), "metrics": metrics}), reply_to=message)

    return app


@cache
def _worker(folder: Path, workload: Workload, threads: int) -> tuple[RawWorker, RawTask]:
    """One for each process."""
    torch.set_num_threads(threads)
    task = RawTask.load(folder)
    order = Shuffle(task.rows, workload.epochs, workload.batch_size)
    convolutional = any(isinstance(m, nn.Conv2d) for m in task.net.modules())
    return RawWorker(task, order, [], channels_last=convolutional), task


def _record(weights: list[Tensor]) -> ArrayRecord:
    from flwr.app import ArrayRecord

    return ArrayRecord({str(i): w.detach() for i, w in enumerate(weights)})


def _tensors(record: Any) -> list[Tensor]:
    found: dict[str, Tensor] = record.to_torch_state_dict()
    return [found[str(i)] for i in range(len(found))]
