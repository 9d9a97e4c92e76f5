"""Command lines in processes of their own, forked from one that has imported torch and Lightning already.

Starting Python with them takes seconds; a fork does not. What a fork must not be used for is to see what is imported.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRELOADED = ["fedexp.cli", "fedexp.build", "fedexp.api", "lightning", "sklearn.datasets"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


class Command:
    """A running ``fedexp`` command."""

    def __init__(self, process: BaseProcess, folder: Path) -> None:
        self.process = process
        self._folder = folder

    def wait(self, seconds: float = 120) -> Done:
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"did not end: {self._text('out')} {self._text('err')}"
        return Done(self.process.exitcode, self._text("out"), self._text("err"))

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        """Waits, without a gap that could be missed, until something is true of the running command."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.is_alive(), f"ended too early: {self._text('out')} {self._text('err')}"
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.002)

    def says(self, words: str) -> bool:
        return words in self._text("out")

    def _text(self, name: str) -> str:
        path = self._folder / name
        return path.read_text() if path.exists() else ""


@contextmanager
def started(arguments: Sequence[str], folder: Path) -> Iterator[Command]:
    """Starts ``fedexp`` with the given arguments; whatever happens, it does not outlive the block."""
    folder.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)  # for the server's imports
    try:
        process = _context.Process(target=_main, args=(list(arguments), folder))
        process.start()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    try:
        yield Command(process, folder)
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def ran(arguments: Sequence[str], folder: Path) -> Done:
    """Runs ``fedexp`` to its end."""
    with started(arguments, folder) as command:
        return command.wait()


def _main(arguments: list[str], folder: Path) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
    os.environ["COLUMNS"] = "200"
    sys.argv = ["fedexp", *arguments]
    from fedexp.cli import main

    main()
