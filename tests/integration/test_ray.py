"""A real cluster of two nodes: the same numbers as in one process, also when a worker or a node is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

import pytest
from psutil import Process

from fedexp.api import run
from fedexp.client.faults import Faults
from fedexp.client.loops import FabricLoop
from fedexp.client.optim import Sgd
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.identity import run_path
from fedexp.config.make import make
from fedexp.errors import ClientError, ConfigError, FedexpError
from fedexp.execute.base import Blueprint, SerialExecutor
from fedexp.execute.ray import QUIETLY, RayExecutor
from fedexp.execute.ray_actor import Actor
from fedexp.runs.directory import RunDir
from fedexp.testing import executors_agree, trial_after
from tests.conftest import SMALL
from tests.integration.processes import ROOT
from tests.miniatures import MINIATURES

ray = pytest.importorskip("ray", reason="executor=ray is an extra: pip install 'fedexp[ray]'")

STORE = 100_000_000  # bytes of each node's object store
SAMPLE = ("fedavg", "scamap", "ditto_rs", "fedrema_af", "fedgen", "feddf", "fedgela", "fedproto")
SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}


class Cluster:
    """Two nodes with a CPU each, and an executor that has a worker on both."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        os.environ.update(QUIETLY)
        node = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        self.nodes = Nodes(initialize_head=True, head_node_args={**node, "_system_config": SOON})
        self.second = self.nodes.add_node(**{k: v for k, v in node.items() if k != "include_dashboard"})
        self.nodes.wait_for_nodes()
        self.said: list[str] = []
        self.executor = RayExecutor(blueprint(), address=self.nodes.address, say=self.said.append)
        self.gather()

    def gather(self) -> None:
        """Waits for both workers."""
        while not all(handle.ready for handle in self.executor.handles):
            for handle in self.executor.wait():
                handle.take()

    def close(self) -> None:
        self.executor.close()
        ray.shutdown()
        self.nodes.shutdown()


def blueprint(**options) -> Blueprint:
    """Any will do where the test brings its own."""
    found: list[Blueprint] = []

    def catch(given):
        found.append(given)
        return SerialExecutor(given)

    trial_after({}, rounds=0, executor=catch, **options)
    return found[0]


@pytest.fixture(scope="module")
def cluster():
    it = Cluster()
    yield it
    it.close()


class Disturbed:
    """Lets something happen in the first round while a worker has a task that it cannot have answered."""

    def __init__(self, cluster: Cluster, number: int, strike) -> None:
        self._executor, self._victim, self._strike = cluster.executor, cluster.executor.handles[number], strike
        self.struck = False

    def __getattr__(self, name):
        return getattr(self._executor, name)

    def map(self, tasks, broadcast):
        if self.struck:
            return self._executor.map(tasks, broadcast)
        os.kill(self._victim.seat.process, signal.SIGSTOP)
        self._executor.wait = self._wait
        return self._executor.map(tasks, broadcast)

    def _wait(self, *, patient=True):
        if self._victim.tasks and not self.struck:
            self.struck = True
            del self._executor.wait
            self._strike(self._victim.seat.process)
        return self._executor.wait(patient=patient)


def algorithm(name: str):
    return {key: make(node) for key, node in composed([f"algo={name}"])["algo"].items()}


def test_a_cluster_gives_the_numbers_of_one_process(cluster, request):
    """All methods if --slow is given, else some: processes of one machine take the same way, and are held to it."""
    assert cluster.executor.workers == 2
    for name in choices_of("algo") if request.config.getoption("--slow") else SAMPLE:
        try:
            executors_agree(algorithm(name), cluster.executor)
        except AssertionError as error:
            raise AssertionError(f"algo={name}: {error}") from error
    assert len({handle.seat.node for handle in cluster.executor.handles}) == 2  # both nodes have worked
    assert {os.getpriority(os.PRIO_PROCESS, handle.seat.process) for handle in cluster.executor.handles} == {0}


def test_modules_and_phases_before_a_test_are_the_same_in_a_cluster(cluster):
    executors_agree(MINIATURES["all"], cluster.executor)


def test_errors_come_back_as_they_are(cluster):
    trial = partial(trial_after, {}, rounds=1, fraction=0.2, executor=partial(using, cluster.executor))  # of one client
    with pytest.raises(ClientError, match="loss term 'ce' is not finite") as caught:
        trial(optimizer=Sgd(lr=1e30))
    assert type(caught.value) is ClientError
    with pytest.raises(ClientError, match=r"not done after 0\.0001 s"):
        trial(faults=Faults("raise", 1e-4))
    with pytest.raises(RuntimeError, match=r"base\.py(.|\n)*unexpected keyword argument 'nonsense'"):
        trial(loop=partial(FabricLoop, nonsense=1))


def test_a_killed_worker_and_a_killed_node_change_no_number(cluster):
    executor = cluster.executor
    cluster.gather()
    before = list(cluster.said)
    other = [h.seat.node for h in executor.handles].index(cluster.second.node_id)
    disturbed = Disturbed(cluster, 1 - other, lambda process: os.kill(process, signal.SIGKILL))
    executors_agree(algorithm("scamap"), disturbed)
    assert disturbed.struck
    (line,) = cluster.said[len(before) :]
    assert "was lost" in line

    cluster.gather()
    stopped = executor.handles[other].seat.process
    switch_off = partial(cluster.nodes.remove_node, cluster.second, allow_graceful=False)
    disturbed = Disturbed(cluster, other, lambda _: switch_off())
    executors_agree(algorithm("fedrema"), disturbed)
    with suppress(ProcessLookupError):
        os.kill(stopped, signal.SIGKILL)  # it cannot end by itself
    assert disturbed.struck
    assert len(cluster.said) == len(before) + 2


def using(executor, given):
    executor.use(given)
    return executor


@pytest.mark.parametrize("settings", [{"cpus": 0, "gpus": 0}, {"cpus": -1}])
def test_workers_must_occupy_something(settings):
    with pytest.raises(ConfigError, match="must not be negative, nor both 0"):
        RayExecutor(blueprint(), **settings)


def test_an_address_where_nobody_listens_is_answered_at_once(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # whatever other tests have started
    with pytest.raises(FedexpError, match=r"127.0.0.1:1: .*refused(.|\n)*ray start --head"):
        RayExecutor(blueprint(), address="127.0.0.1:1")


def test_a_machine_without_a_module_of_the_users_is_named():
    class Payload:
        def open(self):
            raise ModuleNotFoundError("No module named 'mine'", name="mine")

    with pytest.raises(FedexpError, match=r"has no module mine, .* in the same folder on every machine"):
        Actor._open(None, Payload())


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedexp\[ray\]'"):
        RayExecutor(blueprint())


def addresses(driver) -> Iterator[tuple[str, str, str]]:
    """What the sockets of Ray's processes are bound or connected to: process, state of the socket, address."""
    for process in (driver, *driver.children(recursive=True)):
        for connection in process.net_connections(kind="inet"):
            for end in filter(None, (connection.laddr, connection.raddr)):
                title = process.name().split()[0].partition(".")[0]  # of a busy actor: ray::Actor.do
                yield title, connection.status, end.ip.removeprefix("::ffff:")


def test_a_ray_that_other_machines_can_reach_is_not_used(monkeypatch):
    """As with a version of Ray that cannot be kept from it."""
    ended = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **settings: None)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.7")
    with pytest.raises(FedexpError, match=r"would listen on 192\.0\.2\.7(.|\n)*executor.address=auto"):
        RayExecutor(blueprint())
    assert ended


def test_a_ray_of_our_own_keeps_to_this_machine_and_the_run_goes_on_without_it_after_ctrl_c(tmp_path):
    setting = [*SMALL, "rounds=60", "every.checkpoint=1", f"out={tmp_path / 'runs'}"]
    path = run_path(composed(setting))
    command = [sys.executable, "-m", "fedexp", *setting, "executor=ray", "executor.workers=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as running,
    ):
        try:
            while running.poll() is None and not (path / "checkpoint" / "latest.json").exists():
                time.sleep(0.01)
            found = list(addresses(Process(running.pid)))
            os.killpg(running.pid, signal.SIGINT)  # as a terminal does: Ray's processes are in this group too
            out, err = running.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    listening = {process for process, state, _ in found if state == "LISTEN"}
    assert {"gcs_server", "raylet", "ray::Actor", "ray::RuntimeEnvAgent"} <= listening
    assert [line for line in found if not ip_address(line[-1]).is_loopback] == []
    assert running.returncode == 130, out + err
    assert "Stopped." in out
    assert err == ""
    assert not RunDir(path).result()  # stopped in time, else this shows nothing
    whole = run([*setting, "name=whole"])
    assert run(setting).summary["digests"] == whole.summary["digests"]
