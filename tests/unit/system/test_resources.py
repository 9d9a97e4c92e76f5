"""Who may use what of the machine."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from fedexp.errors import ConfigError
from fedexp.system import resources


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """Eight cores, no limits, no GPU."""
    for name in (resources.CORES, resources.GPUS, "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(resources, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "NVIDIA", tmp_path / "gpus")
    resources._place.cache_clear()
    yield
    resources._place.cache_clear()
    while resources._held:
        resources._held.pop().release()


def test_cores_are_those_of_the_affinity():
    assert resources.cores() == 8


def test_a_system_without_affinity_has_all_its_cores(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert resources.cores() == 6


def test_slurm_grants_fewer_but_never_more(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert resources.cores() == 3
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "30")
    assert resources.cores() == 8


def test_the_variable_overrides_what_the_machine_says(monkeypatch):
    monkeypatch.setenv(resources.CORES, "20")
    assert resources.cores() == 20


@pytest.mark.parametrize("given", ["", "0", "-1", "two", "1.5"])
def test_a_wrong_variable_is_refused(monkeypatch, given):
    monkeypatch.setenv(resources.CORES, given)
    with pytest.raises(ConfigError, match="FEDEXP_CORES must be a whole number"):
        resources.cores()


@pytest.mark.parametrize(
    ("membership", "files", "granted"),
    [
        ("0::/", {"cpu.max": "250000 100000\n"}, [2]),
        ("0::/a/b", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, [3]),  # a parent limits too
        ("0::/", {"cpu.max": "50000 100000\n"}, [1]),  # half a core is one
        ("0::/", {}, []),
        ("1:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "400000", "cpu/x/cpu.cfs_period_us": "100000"}, [4]),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, []),
        ("2:memory:/", {"cpu.max": "100000 100000"}, []),
    ],
)
def test_quotas_of_cgroups(tmp_path, membership, files, granted):
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "self").write_text(membership + "\n")
    assert list(resources._quotas(tmp_path / "root", tmp_path / "self")) == granted


def test_a_quota_limits_the_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(resources, "_quotas", lambda *_: iter([5, 2]))
    assert resources.cores() == 2


def test_gpus_by_variable_or_driver(monkeypatch, tmp_path):
    assert resources.gpus() == []
    for card in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / card).mkdir(parents=True)
    assert resources.gpus() == ["0", "1"]
    monkeypatch.setenv(resources.GPUS, "GPU-abc, 5")
    assert resources.gpus() == ["GPU-abc", "5"]
    monkeypatch.setenv(resources.GPUS, "1,-1,2")
    assert resources.gpus() == ["1"]  # as CUDA reads it
    monkeypatch.setenv(resources.GPUS, "-1")
    assert resources.gpus() == []
    monkeypatch.setenv(resources.GPUS, "")
    assert resources.gpus() == []


@pytest.mark.parametrize(
    ("wanted", "jobs", "n"),
    [(-1, 100, 8), (-1, 3, 3), (-2, 100, 7), (-20, 100, 1), (4, 100, 4), (4, 2, 2), (20, 30, 20)],
)
def test_jobs_at_once(wanted, jobs, n):
    assert resources.at_once(wanted, jobs) == n


def test_jobs_at_once_are_as_many_as_gpus_where_there_are_any(monkeypatch):
    monkeypatch.setenv(resources.GPUS, "0,1")
    assert resources.at_once(-1, 100) == 2
    assert resources.at_once(4, 100) == 4


@pytest.mark.parametrize(("jobs", "each"), [(1, 8), (2, 4), (3, 2), (8, 1), (20, 1)])
def test_cores_are_divided_and_given_back(tmp_path, jobs, each):
    for _ in range(2):  # a worker that is used again does not halve its half
        with resources.shared(jobs, tmp_path):
            assert resources.cores() == each
        assert resources.cores() == 8
        assert resources.CORES not in os.environ


def test_what_was_set_is_set_again(monkeypatch, tmp_path):
    monkeypatch.setenv(resources.CORES, "6")
    monkeypatch.setenv(resources.GPUS, "3,4")
    with resources.shared(2, tmp_path):
        assert (resources.cores(), resources.gpus()) == (3, ["3"])
    assert (os.environ[resources.CORES], os.environ[resources.GPUS]) == ("6", "3,4")


@pytest.mark.parametrize(
    ("cards", "places", "dealt"),
    [("01", 2, ["0", "1"]), ("0123", 2, ["02", "13"]), ("01", 4, ["0", "1", "0", "1"]), ("012", 2, ["02", "1"])],
)
def test_gpus_are_dealt_out(cards, places, dealt):
    assert ["".join(resources.deal(list(cards), place, places)) for place in range(places)] == dealt


def _take(folder, pipe):
    with resources.shared(2, folder):
        pipe.send(os.environ[resources.GPUS])
    with resources.shared(2, folder):  # the next job of the same worker
        pipe.send(os.environ[resources.GPUS])
    pipe.recv()


def test_processes_at_the_same_time_have_different_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv(resources.GPUS, "0,1")
    context = multiprocessing.get_context("fork")
    taken = []
    ends = [context.Pipe() for _ in range(2)]
    processes = [context.Process(target=_take, args=(tmp_path, theirs)) for _, theirs in ends]
    for (ours, _), process in zip(ends, processes, strict=True):
        process.start()
        first, second = ours.recv(), ours.recv()
        assert first == second
        taken.append(first)
    assert taken == ["0", "1"]
    for (ours, _), process in zip(ends, processes, strict=True):
        ours.send("end")
        process.join()
    with resources.shared(2, tmp_path):  # who has ended makes room
        assert resources.gpus() == ["0"]
