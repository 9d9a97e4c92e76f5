"""Contestants of a benchmark, in a module that is quickly imported."""

from __future__ import annotations

import os
import time

from fedexp.errors import FedexpError


def dies(connection):
    os._exit(3)


def fails(connection):
    connection.send({"ready": True})
    connection.recv()
    raise FedexpError("no such thing")


def works(connection):
    connection.send({"ready": True})
    while connection.recv():
        started = time.process_time()
        while time.process_time() - started < 0.05:
            sum(range(1000))
        connection.send({"wall": 0.05, "seconds": {}})


def counts(connection):
    connection.send({"ready": True})
    while rounds := connection.recv():
        spent = {"wall": 3.0 * rounds, "seconds": {"train": 2.0 * rounds}}
        connection.send({**spent, "steps": 7 * rounds, "accuracy": 0.5})
