"""Where two runs part. One of them has a fault planted in a known round, client or tensor."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

import fedexp
from fedexp.client.worker import Worker
from fedexp.core.state import fingerprints
from fedexp.errors import FedexpError
from fedexp.runs.__main__ import main
from fedexp.runs.diff import compare
from tests.conftest import SMALL


def faulty(real, fault):
    """A client's round with a fault in its result."""

    def round_(self, job, spent):
        return fault(job, (yield from real(self, job, spent)))

    return round_


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a small experiment in a folder of its own; a fault may be planted in the results of its clients."""

    def go(*more: str, fault=None):
        with pytest.MonkeyPatch.context() as patch:
            if fault is not None:
                patch.setattr(Worker, "_round", faulty(Worker._round, fault))
            out = tmp_path_factory.mktemp("runs")
            return fedexp.run([*SMALL, "executor=serial", f"out={out}", *more]).path

    return go


@pytest.fixture(scope="module")
def plain(run):
    return run()


def nudged(job, result):
    """One weight of the uploads of round 2, by their last bit."""
    if job.round == 1:
        weight = result.uplink["model"]["features.3.weight"].detach()
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    return result


def mistold(job, result):
    """A loss of round 3, though the weights are right."""
    return replace(result, terms={k: v + 1 for k, v in result.terms.items()}) if job.round == 2 else result


def test_equal_runs(plain, run, capsys):
    again = run("name=other", "every.checkpoint=1")
    assert main(["diff", str(plain), str(again)]) == 0
    assert capsys.readouterr().out == "All numbers are equal.\n"


def test_the_first_round_and_tensor_are_named(plain, run, capsys):
    other = run(fault=nudged)
    found = compare(plain, other)
    assert (found.round, found.tensors, found.clients, found.settings) == (2, ["features.3.weight"], [], [])
    assert found.ends  # the final models have gone apart too
    assert main(["diff", str(plain), str(other)]) == 1
    assert "first part at round 2, tensor features.3.weight\n" in capsys.readouterr().out


def test_client_rows_are_named(plain, run):
    found = compare(plain, run(fault=mistold))
    assert (found.round, found.tensors) == (3, [])
    assert len(found.clients) == 3
    assert all("loss/local/ce" in line for line in found.clients)
    assert any("terms" in line for line in found.metrics)
    assert found.ends == []


def test_settings_and_partition(plain, run, capsys):
    other = run("seed=1")
    found = compare(plain, other)
    assert found.settings == ["seed 0 | 1"]
    assert found.partition
    assert found.round == 1
    assert main(["diff", str(plain), str(other)]) == 1
    assert "The partitions differ" in capsys.readouterr().out


def test_settings_that_change_no_number(plain, run, capsys):
    assert main(["diff", str(plain), str(run("loop.accelerator=cpu"))]) == 0
    out = capsys.readouterr().out
    assert "loop.accelerator" in out
    assert out.endswith("All numbers are equal, though the settings differ.\n")


def test_measures_of_missing_classes_count_if_both_runs_were_asked_for_the_same(plain, run):
    assert compare(plain, run("evaluate.missing=false")).equal
    assert compare(plain, run("evaluate.missing=20")).equal
    assert compare(plain, run("evaluate.missing_clients=1")).equal

    def planted(job, result):
        return replace(result, missing={**result.missing, "absent": 0.123}) if job.round == 1 else result

    found = compare(plain, run(fault=planted))
    assert found.round == 2
    assert all("missing/absent" in line for line in found.clients)
    assert any("missing.absent" in line for line in found.metrics)


def test_a_run_that_is_longer(plain, run):
    found = compare(plain, run("rounds=4"))
    assert found.settings == ["rounds 3 | 4"]
    assert found.round is None
    assert "rounds: 3 | 4" in found.ends
    assert not found.equal


def test_checkpoints_are_compared_to_the_client(run, tmp_path):
    kept = run("algo=scamap", "keep=all", "rounds=1")
    copy = tmp_path / "copy"
    shutil.copytree(kept, copy)
    assert compare(kept, copy).equal
    left, right = sorted((copy / "checkpoint").glob("client-*"))[:2]
    shutil.copy(left, right)
    client = int(right.name.split("-")[1])
    ends = compare(kept, copy).ends
    assert ends
    assert all(line.startswith(f"checkpoint, client {client}: ") for line in ends)
    assert any("apart" in line for line in ends)


def test_bad_paths_are_explained(plain, tmp_path, capsys):
    with pytest.raises(FedexpError, match="is not the directory of a run"):
        compare(plain, tmp_path)
    assert main(["diff", str(tmp_path / "nowhere"), str(plain)]) == 2
    assert "nowhere is not the directory of a run" in capsys.readouterr().err


def test_fingerprints_tell_bits_apart():
    zero = {"a": torch.zeros(3, 2), "n": torch.tensor(4), "empty": torch.empty(0)}
    minus = {**zero, "a": zero["a"].clone()}
    minus["a"][2, 1] = -0.0
    one, other = fingerprints(zero), fingerprints(minus)
    assert one["a"] != other["a"]
    assert (one["n"], one["empty"]) == (other["n"], other["empty"])
    assert fingerprints({"a": torch.arange(6.0).view(2, 3).T}) == fingerprints(
        {"a": torch.arange(6.0).view(2, 3).T.contiguous()}
    )
