"""Processes that are killed, again and again, at moments drawn at random: the numbers are those of a quiet run.

``FEDEXP_KILLS=200 pytest tests/integration/test_kills.py -s`` kills more often, and says how often and where.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedexp
from fedexp.client.faults import Faults
from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.core.component import Component
from fedexp.core.seeding import derive
from fedexp.display import SilentDisplay
from fedexp.errors import ClientError
from fedexp.execute.base import Blueprint
from fedexp.execute.processes import ProcessExecutor
from fedexp.runs.directory import RunDir
from fedexp.testing import CLIENTS, card, executors_agree, play, trial, trial_after
from tests.integration.processes import ran, started
from tests.integration.test_resume import held_by, numbers

KILLS = int(os.environ.get("FEDEXP_KILLS", "0"))
PLAN = (*[signal.SIGKILL] * max(KILLS // 5, 1), signal.SIGTERM, signal.SIGINT)
RUN = (
    "algo=scamap", "cohort.clients=6", "cohort.fraction=1", f"rounds={5 * len(PLAN)}", "local.epochs=1",
    "local.batch_size=8", "model.hidden=[16,16]", "every.checkpoint=1", "loop=fabric",
)  # fmt: skip
SHM = "/dev/shm/"  # noqa: S108
PARALLEL = ("executor=processes", "executor.workers=2")


def rng(name: str) -> random.Random:
    return random.Random(derive(0, "kills", name))  # noqa: S311


def children(pid: int) -> list[int]:
    """The processes that a process has started; none if it is gone."""
    try:
        return [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
    except OSError:
        return []


def alive(pids: Iterable[int]) -> list[int]:
    """Those that live; one that is dead and not buried does not."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def gone(pids: list[int], seconds: float = 30.0) -> float:
    """Waits until none of the processes lives; returns how long that took."""
    began = time.monotonic()
    while alive(pids):
        assert time.monotonic() - began < seconds, f"still there: {alive(pids)}"
        time.sleep(0.02)
    return time.monotonic() - began


def in_memory(pids: Iterable[int], what: str) -> list[str]:
    """What processes have in their memory under a name; other people's files in /dev/shm are not our business."""
    found = []
    for pid in pids:
        with suppress(OSError):
            found += [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if what in line]
    return found


# ---------------------------------------------------------------- the main process
def test_a_parallel_run_that_is_killed_again_and_again_ends_as_if_left_alone(tmp_path):
    quiet = fedexp.run([*RUN, f"out={tmp_path / 'quiet'}", "executor=serial"])
    command = [*RUN, *PARALLEL, f"out={tmp_path / 'runs'}"]
    path = run_path(composed(command))
    draw = rng("main")
    reached: Counter[str] = Counter()
    slowest = 0.0
    for number, kind in enumerate(PLAN):
        with started(command, tmp_path / f"kill{number}") as running:
            running.until(lambda pid=running.process.pid: held_by(path, pid))
            begin = len(RunDir(path).records())
            rounds = draw.choice((0, 1, 2)) if kind == signal.SIGKILL else 1
            running.until(lambda due=begin + rounds: len(RunDir(path).records()) >= due)
            late = time.monotonic() + draw.uniform(0, 0.1 if rounds else 4.0)  # in a round, or while workers start
            most = begin + 2
            running.until(lambda: time.monotonic() > late or len(RunDir(path).records()) > most)  # noqa: B023
            workers = children(running.process.pid)
            assert in_memory([running.process.pid, *workers], SHM) == []  # nothing that could be left behind
            assert in_memory([running.process.pid], "memfd:fedexp") or not workers
            for pid in workers if kind != signal.SIGKILL else ():
                os.kill(pid, kind)  # as a terminal or a scheduler does, to all of them
            running.signal(kind)
            end = running.wait()
        assert RunDir(path).result() is None  # killed in time, else this shows nothing
        reached[f"{signal.Signals(kind).name} after {len(RunDir(path).records()) - begin} rounds"] += 1
        if kind == signal.SIGKILL:
            assert end.code == -signal.SIGKILL
            slowest = max(slowest, gone(workers))
        else:
            assert end.code == 128 + kind, end.err
            assert "Traceback" not in end.out + end.err
            assert alive(workers) == []  # its last act was to let them go
    last = ran(command, tmp_path / "last")
    assert last.code == 0, last.err
    assert numbers(path) == numbers(quiet.path)
    print(f"main process: {dict(reached)}; workers were gone after {slowest:.2f} s at the latest")  # noqa: T201


# ---------------------------------------------------------------- workers
@dataclass(frozen=True, kw_only=True)
class Slow(Component):
    """Takes its time, so that there is something to be killed in."""

    def loss(self, step):
        time.sleep(0.004)


@dataclass(frozen=True, kw_only=True)
class Deadly(Component):
    """Ends the process in which a certain client is trained."""

    client: int = 2

    def loss(self, step):
        if step.info.client == self.client:
            os.kill(os.getpid(), signal.SIGKILL)


def blueprint() -> Blueprint:
    found: list[Blueprint] = []
    trial_after({}, rounds=0, executor=found.append)
    return found[0]


@pytest.fixture(scope="module")
def pool():
    executor = ProcessExecutor(blueprint(), workers=2)
    executors_agree({}, executor)  # all are up
    yield executor
    workers = [h.process.pid for h in executor.handles]
    executor.close()
    assert alive(workers) == []


def used(pool):
    def use(given):
        pool.use(given)
        return pool

    return use


class Killer(SilentDisplay):
    """Kills a worker a moment after certain clients have answered."""

    def __init__(self, pool, kills: int, answers: int) -> None:
        self._draw, self._pool, self._seen = rng("workers"), pool, 0
        self._due = set(self._draw.sample(range(1, answers - CLIENTS), kills))
        self.killed: Counter[str] = Counter()
        self._timers: list[threading.Timer] = []

    def client(self, seconds, samples):
        self._seen += 1
        if self._seen in self._due:
            victim = self._draw.choice(self._pool.handles)
            timer = threading.Timer(self._draw.uniform(0, 0.04), self._kill, [victim])
            self._timers.append(timer)
            timer.start()

    def _kill(self, victim):
        state = "starting" if not victim.answered else f"with {len(victim.tasks)} tasks"
        victim.process.send_signal(signal.SIGKILL)
        self.killed[state] += 1

    def wait(self):
        for timer in self._timers:
            timer.join()


def test_workers_that_are_killed_change_no_number(pool, tmp_path):
    kills = KILLS or 3
    rounds = max(6, 2 * kills)
    expected = play({}, rounds=rounds, fraction=1.0)
    play({"slow": Slow()}, rounds=2, fraction=1.0, executor=used(pool))  # every channel has what it needs
    files = len(list(Path("/proc/self/fd").iterdir()))
    engine = trial({"slow": Slow()}, tmp_path, rounds=rounds, fraction=1.0, executor=used(pool))
    engine.display = killer = Killer(pool, kills, answers=rounds * CLIENTS)
    engine.run(card(engine))
    killer.wait()
    assert sum(killer.killed.values()) == kills
    assert engine.digests() == expected.digests()
    assert in_memory([h.process.pid for h in pool.handles], SHM) == []
    assert in_memory([h.process.pid for h in pool.handles], "memfd:fedexp")
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + 4  # a channel has two lanes each way; nothing grows
    print(f"workers: killed {dict(killer.killed)} in {rounds} rounds")  # noqa: T201


def test_a_worker_that_dies_while_idle_takes_no_task_with_it(pool, tmp_path):
    engine = trial({}, tmp_path, fraction=1.0, executor=used(pool))
    for until in range(1, engine.rounds + 1):
        engine.play(until)
        victim = pool.handles[until % 2]
        assert not victim.tasks
        victim.process.kill()
        victim.process.wait()
    assert engine.digests() == play({}, fraction=1.0).digests()


def test_a_client_that_ends_every_worker_is_named(pool, monkeypatch):
    """Also where failing clients are left out: what a lack of memory ends is not to be left out quietly."""
    monkeypatch.setattr("fedexp.execute.pool.MAX_WORKERS_LOST", 1)
    with pytest.raises(ClientError, match=r"The work of clients 2 has ended 2 workers .*executor=serial"):
        play({"deadly": Deadly()}, fraction=1.0, executor=used(pool), faults=Faults("skip"))
    executors_agree({}, pool)  # the others were not harmed
