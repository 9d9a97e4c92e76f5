"""The raw loop as a contestant, with the method of the workload."""

from __future__ import annotations

import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from fedexp.bench.raw import Crew, RawTask, RawWorker, Setting, Shuffle
from fedexp.bench.raw_map import MapWorker
from fedexp.bench.workload import Workload
from fedexp.server.sampler import UniformSampler

WORKERS: Mapping[str, type[RawWorker]] = {"fedavg": RawWorker, "map": MapWorker}


def play(connection: Connection, folder: Path, workload: Workload, setting: Setting) -> None:
    """A contestant's process: as many rounds as are asked for, until the other end closes the connection."""
    torch.set_num_threads(1)  # so that no pool of threads exists when processes are forked
    task = RawTask.load(folder).to(setting.device)
    sampler = UniformSampler(0, workload.clients, workload.per_round / workload.clients)
    order = Shuffle(task.rows, workload.epochs, workload.batch_size)
    crew = Crew(task, setting, order, sampler, WORKERS[workload.algo])
    connection.send({"ready": True})
    done = 0
    while rounds := connection.recv():
        started = time.perf_counter()
        played = [crew.play(t) for t in range(done, done + rounds)]
        wall = time.perf_counter() - started
        done += rounds
        seconds = {kind: sum(spent[kind] for spent, _, _ in played) for kind in played[0][0]}
        steps = sum(taken for _, taken, _ in played)
        connection.send({"wall": wall, "seconds": seconds, "steps": steps, "accuracy": played[-1][2]})
    crew.close()
