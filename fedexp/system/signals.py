"""Being told to stop: SIGTERM does what Ctrl-C does. The round under way is given up, complete ones are kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 5.0  # after a signal, in which a second one is ignored


class Stopped(KeyboardInterrupt):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(stop: KeyboardInterrupt) -> int:
    """What the shell expects of a process that a signal has ended: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """In the block, SIGINT and SIGTERM raise ``Stopped``, once, so that a checkpoint is written undisturbed.

    Later than that they raise again, should the first have been lost on the way or its obeying take too long. After
    a block that was stopped they do nothing, since the process is about to end.
    """
    never = raised = -GRACE_SECONDS

    def stop(number: int, _: object) -> None:
        nonlocal raised
        if time.monotonic() - raised >= GRACE_SECONDS:
            raised = time.monotonic()
            raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if raised == never else signal.SIG_IGN)


@contextmanager
def defer_signals() -> Iterator[None]:
    """In the block these signals are noted, and heard when it ends.

    For what must not be done by half, and for imports, in which what is raised may be swallowed.
    """
    if threading.current_thread() is not threading.main_thread():  # where nothing is raised
        yield
        return
    noted: list[int] = []
    before = {number: signal.signal(number, lambda n, _: noted.append(n)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted:
            signal.raise_signal(noted[0])


def exit_with_parent(parent: int) -> None:
    """From now on this process ends when its parent is gone, also in the middle of a task."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def block_signals() -> Iterator[None]:
    """Processes started in the block do not receive these signals: they end with the process that starts them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
