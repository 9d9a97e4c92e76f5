"""Runs that stop, are stopped, or are killed, and what the same command makes of them."""

from __future__ import annotations

import json
import random
import re
import resource
import shlex
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

import fedexp
from fedexp.client.module import Turn
from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.core.seeding import derive
from fedexp.core.state import digest
from fedexp.errors import CheckpointError, ClientError, DiskError
from fedexp.runs.directory import RunDir
from tests.integration.processes import ran, started

# State of every kind: a server slot, client slots, two phases. The default loop: a Lightning Trainer.
RUN = (
    "algo=scamap", "cohort.clients=6", "cohort.fraction=0.5", "rounds=7", "local.epochs=2", "local.batch_size=16",
    "model.hidden=[16,16]", "every.checkpoint=2", "evaluate=fedgela", "evaluate.finetune_epochs=1",
)  # fmt: skip
SHORT = (*RUN, "rounds=4", "loop=fabric")


def numbers(path: Path) -> dict[str, object]:
    """All that two runs of the same command must have in common: everything but seconds, and checksums of them."""
    records = [{k: v for k, v in r.items() if k != "seconds"} for r in RunDir(path).records()]
    result = RunDir(path).result()
    return {
        "records": records,
        "result": {k: v for k, v in result.items() if k not in ("seconds", "path", "checksums", "workers")},
        **{f: (path / f).read_bytes() for f in ("clients.csv", "ledger.csv")},
        "model": digest({"": load_file(path / "model.safetensors")}),
    }


def complete_rounds(path: Path) -> int:
    metrics = path / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def held_by(path: Path, pid: int) -> bool:
    lock = path / ".lock"
    return lock.exists() and lock.read_text() == f"process {pid}"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The same commands, left alone."""
    return {name: numbers(fedexp.run([*run, f"out={tmp_path_factory.mktemp(name)}"]).path)
            for name, run in (("run", RUN), ("short", SHORT))}  # fmt: skip


# ---------------------------------------------------------------- kill
def test_killed_again_and_again_it_ends_as_if_never_killed(tmp_path, uninterrupted):
    command = [*RUN, f"out={tmp_path}"]
    path = run_path(composed(command))
    rng = random.Random(derive(0, "kill"))  # noqa: S311
    for number, rounds in enumerate((0, 2, 3, 4)):
        with started(command, tmp_path / f"kill{number}") as running:
            running.until(lambda pid=running.process.pid: held_by(path, pid))
            running.until(lambda rounds=rounds: complete_rounds(path) >= rounds)
            running.process.join(rng.uniform(0, 0.02))
            running.signal(signal.SIGKILL)
            assert running.wait().code == -signal.SIGKILL
        assert RunDir(path).result() is None  # killed in time, else this shows nothing
    last = ran(command, tmp_path / "last")
    assert last.code == 0, last.err
    assert re.search(r"continues after round [2-6] of 7", last.out)  # what was written last need not be whole
    assert numbers(path) == uninterrupted["run"]
    assert not (path / "checkpoint").exists()
    assert not [p for p in path.iterdir() if p.name.endswith(".tmp")]


# ---------------------------------------------------------------- Ctrl-C, SIGTERM
@pytest.mark.parametrize(
    ("signals", "code"),
    [([signal.SIGINT], 130), ([signal.SIGTERM], 143), ([signal.SIGTERM] * 3, 143), ([signal.SIGINT] * 2, 130)],
)
def test_told_to_stop_it_keeps_every_complete_round(tmp_path, uninterrupted, signals, code):
    command = [*RUN, f"out={tmp_path}"]
    path = run_path(composed(command))
    with started([*command, "force=true"], tmp_path / "first") as running:
        running.until(lambda: complete_rounds(path) >= 4)  # the last of them may just be being closed
        for number in signals:
            running.signal(number)
            running.process.join(0.01)
        done = running.wait()
    assert done.code == code
    assert done.out.endswith(
        f"Stopped. This continues from the last complete round:\n  {shlex.join(['fedexp', *command])}\n"
    )
    assert "Traceback" not in done.out + done.err
    kept = json.loads((path / "checkpoint" / "latest.json").read_text())["round"]
    assert kept >= 3  # also where it is odd, and no checkpoint was due
    again = ran(command, tmp_path / "second")
    assert again.code == 0, again.err
    assert f"continues after round {kept} of 7" in again.out
    assert numbers(path) == uninterrupted["run"]


# ---------------------------------------------------------------- a client fails
def test_a_client_that_diverges_is_named(tmp_path):
    command = [*SHORT, f"out={tmp_path}", "optim.lr=1e30"]
    with pytest.raises(
        ClientError, match=r"round 1, client \d, phase 'local': loss term 'ce' is not finite.*optim\.lr"
    ):
        fedexp.run(command)
    path = run_path(composed(command))
    assert RunDir(path).result() is None
    assert complete_rounds(path) == 0
    with pytest.raises(ClientError):  # and nothing stands in the way of another try
        fedexp.run([*command, "force=true"])


def diverge_in(monkeypatch, round_: int) -> None:
    terms = Turn.terms

    def planted(self):
        return {k: float("nan") if self.frame.rng_path[0] == round_ - 1 else v for k, v in terms(self).items()}

    monkeypatch.setattr(Turn, "terms", planted)


@pytest.mark.parametrize("force", [False, True])
def test_rounds_before_a_failure_are_kept(tmp_path, uninterrupted, force):
    command = [*SHORT, f"out={tmp_path}"]
    path = run_path(composed(command))
    with pytest.MonkeyPatch.context() as patch:
        diverge_in(patch, 4)
        with pytest.raises(ClientError, match=r"round 4, client \d"):
            fedexp.run(command)
    assert [r["round"] for r in RunDir(path).records()] == [1, 2, 3]
    assert {r["round"] for r in RunDir(path).rows("clients.csv")} == {"1", "2", "3"}
    assert json.loads((path / "checkpoint" / "latest.json").read_text())["round"] == 3  # though none was due
    result = fedexp.run([*command, *(["force=true"] if force else [])])
    assert result.status == "finished"
    assert numbers(result.path) == uninterrupted["short"]


# ---------------------------------------------------------------- finished
def test_a_finished_run_is_not_run_again_but_with_force(tmp_path):
    command = [*SHORT, f"out={tmp_path}", "rounds=2"]
    first = fedexp.run(command)
    stamps = {p.name: p.stat().st_mtime_ns for p in first.path.iterdir()}
    again = fedexp.run(command)
    assert (again.status, again.path, again.summary) == ("skipped", first.path, first.summary)
    assert {p.name: p.stat().st_mtime_ns for p in first.path.iterdir()} == stamps
    before = numbers(first.path)
    forced = fedexp.run([*command, "force=true"])
    assert forced.status == "finished"
    assert numbers(first.path) == before
    assert (first.path / "metrics.jsonl").stat().st_mtime_ns > stamps["metrics.jsonl"]


def test_a_forced_run_that_stops_is_not_taken_for_finished(tmp_path):
    command = [*SHORT, f"out={tmp_path}", "rounds=2"]
    first = fedexp.run(command)
    with pytest.MonkeyPatch.context() as patch:
        diverge_in(patch, 2)
        with pytest.raises(ClientError):
            fedexp.run([*command, "force=true"])
    assert RunDir(first.path).result() is None
    again = fedexp.run(command)
    assert again.status == "finished"
    assert again.summary["digests"] == first.summary["digests"]


def test_another_checkpoint_cadence_is_the_same_run(tmp_path):
    command = [*SHORT, f"out={tmp_path}", "rounds=1"]
    fedexp.run(command)
    assert fedexp.run([*command, "every.checkpoint=5"]).status == "skipped"


def test_keep_all_keeps_the_clients_slots(tmp_path):
    command = [*SHORT, f"out={tmp_path}", "rounds=1", "keep=all"]
    result = fedexp.run(command)
    assert list((result.path / "checkpoint").glob("client-*.safetensors"))


# ---------------------------------------------------------------- damage
def stopped_at(command: list[str], round_: int) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        diverge_in(patch, round_)
        with pytest.raises(ClientError):
            fedexp.run(command)
    return run_path(composed(command))


def test_a_damaged_checkpoint_is_refused_with_the_way_out(tmp_path):
    command = [*SHORT, f"out={tmp_path}"]
    path = stopped_at(command, 3)
    (server,) = (path / "checkpoint").glob("server-*")
    data = bytearray(server.read_bytes())
    data[-1] ^= 1
    server.write_bytes(data)
    done = ran(command, tmp_path / "output")
    assert done.code == 1
    assert "CheckpointError" in done.err
    assert str(server) in done.err
    assert "force=true" in done.err
    assert "Traceback" not in done.err
    with pytest.raises(CheckpointError):
        fedexp.run(command)
    assert fedexp.run([*command, "force=true"]).status == "finished"


@pytest.mark.parametrize(("pattern", "store"), [("latest.json", "memory"), ("client-*-000003.*", "disk")])
def test_the_checkpoint_before_a_damaged_one_gives_the_same_end(tmp_path, uninterrupted, pattern, store):
    command = [*SHORT, f"out={tmp_path}", f"store={store}"]
    path = stopped_at(command, 4)  # checkpoints after rounds 2 and 3
    damaged = next((path / "checkpoint").glob(pattern))
    data = damaged.read_bytes()
    damaged.write_bytes(data[: len(data) // 2])
    done = ran(command, tmp_path / "output")
    assert done.code == 0, done.err
    assert str(damaged) in done.err
    assert "The run continues from the checkpoint before, after round 2." in done.err
    assert "continues after round 2 of 4" in done.out
    assert numbers(path) == uninterrupted["short"]


def test_a_full_disk_stops_the_run_and_the_same_command_continues(tmp_path, uninterrupted):
    """No file may grow beyond a limit that the server's does: the system itself refuses to write it."""
    command = [*SHORT, f"out={tmp_path}", "store=disk"]
    path = stopped_at(command, 4)
    kept = {p.name: p.read_bytes() for p in (path / "checkpoint").iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept["server-000003.safetensors"]) - 1, hard))
    try:
        with pytest.raises(DiskError, match=r"server-000004\S+ could not be written .*: make room.* the same command"):
            fedexp.run(command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {n: d for n, d in kept.items() if (path / "checkpoint" / n).read_bytes() != d} == {}
    assert numbers(fedexp.run(command).path) == uninterrupted["short"]


def test_another_partition_under_the_same_name_is_refused(tmp_path, monkeypatch):
    """The data on disk may have changed while the settings have not."""
    command = [*SHORT, f"out={tmp_path}"]
    stopped_at(command, 3)
    monkeypatch.setattr("fedexp.runs.plan.digest", lambda splits: "other")
    with pytest.raises(CheckpointError, match="another version or plan"):
        fedexp.run(command)


def test_a_signal_after_the_result_leaves_no_checkpoint_behind(tmp_path, monkeypatch):
    command = [*SHORT, f"out={tmp_path}", "rounds=1"]
    conclude = RunDir.conclude

    def told(self, result):
        written = conclude(self, result)
        if result["status"] == "finished":
            signal.raise_signal(signal.SIGINT)
        return written

    monkeypatch.setattr(RunDir, "conclude", told)
    with pytest.raises(KeyboardInterrupt):
        fedexp.run(command)
    path = run_path(composed(command))
    assert RunDir(path).result() is not None
    assert not (path / "checkpoint").exists()
