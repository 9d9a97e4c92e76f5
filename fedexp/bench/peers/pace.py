"""Holds the rounds of a framework that has its own loop until they are asked for."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection


class Enough(BaseException):  # not an Exception, which a framework might catch
    """No more rounds are wanted."""


class Pace:
    """Answers the other end in place of a framework, which calls it before its first round and after each."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked = self._left = self._steps = 0
        self._started = 0.0

    def begin(self) -> None:
        """Everything is ready: waits until rounds are asked for."""
        self._connection.send({"ready": True})
        self._wait()

    def ended(self, steps: int, accuracy: float) -> None:
        """A round has ended, its test too; waits if it was the last of those that were asked for.

        Raises:
            Enough: If no more are wanted.
        """
        self._left -= 1
        self._steps += steps
        if self._left:
            return
        wall = time.perf_counter() - self._started
        self._connection.send({"wall": wall, "seconds": {}, "steps": self._steps, "accuracy": accuracy})
        self._wait()

    def _wait(self) -> None:
        self._asked = self._left = self._connection.recv()
        if not self._asked:
            raise Enough
        self._steps, self._started = 0, time.perf_counter()
