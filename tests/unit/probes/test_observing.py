"""Observing: what a run writes down with probes, that it is not changed by them, and what is said without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import fedexp
from fedexp.algos.fednova import NormalisedAveraging
from fedexp.algos.fedrema import RelativityHeads
from fedexp.algos.inherited import InheritedPrivateModel
from fedexp.algos.private import PrivatePart
from fedexp.client.faults import Faults
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.client.module import ClientModule
from fedexp.config.compose import composed, overrides_of
from fedexp.config.identity import run_id
from fedexp.config.settings import Every
from fedexp.core.component import Component
from fedexp.core.state import Message
from fedexp.core.views import Step
from fedexp.engine import Engine
from fedexp.errors import ConfigError, DamagedError, ProbeError
from fedexp.execute.base import SerialExecutor
from fedexp.execute.processes import ProcessExecutor
from fedexp.execute.task import Task, TaskResult
from fedexp.probes.base import ClientView, Log, Place, Probe, ServerView
from fedexp.probes.class_means import ClassMeansProbe
from fedexp.probes.classifier import ClassifierProbe
from fedexp.probes.forces import ForcesProbe
from fedexp.probes.observer import Probes
from fedexp.probes.proxies import ProxiesProbe
from fedexp.probes.relativity import RelativityProbe
from fedexp.probes.spectrum import SpectrumProbe
from fedexp.runs import observations
from fedexp.runs.directory import RunDir
from fedexp.testing import Shuffled, card, play, trial
from tests.helpers import TINY, Recorder

ALL: Probes = {
    "classifier": ClassifierProbe(), "class_means": ClassMeansProbe(), "proxies": ProxiesProbe(project="pca"),
    "spectrum": SpectrumProbe(batch=8), "relativity": RelativityProbe(), "forces": ForcesProbe(steps=2),
}  # fmt: skip
FAST = (*TINY, "rounds=3", "every.checkpoint=1")
CHOSEN = "probe=[classifier,relativity]"


@dataclass(frozen=True, kw_only=True)
class Careless(Probe):
    """Draws from torch's own generator wherever it can."""

    def step(self, step: Step, at: Place, log: Log) -> None:
        log.row("drawn", {"value": torch.rand(())}, step=at.step)

    def client(self, view: ClientView, log: Log) -> None:
        view.own(view.personal, 3)
        log.row("drawn", {"value": torch.rand(())})

    def server(self, view: ServerView, log: Log) -> None:
        log.row("drawn", {"value": torch.rand(())})


@dataclass(frozen=True, kw_only=True)
class Noise(Component):
    """Draws in every step, as dropout does."""

    def loss(self, step: Step) -> Tensor:
        return step.h.mean() * torch.rand(())


def components(name: str) -> dict[str, Component]:
    from fedexp.parts import parts

    if name == "noise":
        return {"noise": Noise()}
    return parts(composed([f"algo={name}"]))[1]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for row in RunDir(folder).observations() if row["name"] not in ("settings", "arrays")]


# ---------------------------------------------------------------- no effect
@pytest.mark.parametrize("loop", [FabricLoop, TrainerLoop])
@pytest.mark.parametrize("name", ["noise", "scamap"])
def test_no_number_of_a_run_depends_on_probes(name, loop):
    chosen = {**ALL, "careless": Careless()}
    plain, watched = (
        play(components(name), norm=True, loop=loop, probes=probes) for probes in ({}, chosen)
    )  # fmt: skip
    assert plain.digests() == watched.digests()
    assert [measured(r) for r in plain.records] == [measured(r) for r in watched.records]
    assert "probe" in watched.progress.seconds
    assert "probe" not in plain.progress.seconds


def measured(record: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k != "seconds"}


def test_processes_and_another_order_see_the_same(tmp_path):
    def used(blueprint):
        return ProcessExecutor(blueprint, workers=2)

    found = {}
    for name, executor in {"serial": None, "processes": used, "shuffled": Shuffled}.items():
        engine = trial(
            components("map"), tmp_path / name, probes={**ALL, "careless": Careless()},
            **({} if executor is None else {"executor": executor}),
        )  # fmt: skip
        try:
            engine.run(card(engine))
        finally:
            engine.executor.close()
        arrays = {p.name: p.read_bytes() for p in (tmp_path / name / "probes").iterdir()}
        found[name] = (engine.digests(), (tmp_path / name / "probes.jsonl").read_text(), arrays)
    assert found["serial"] == found["processes"] == found["shuffled"]
    assert len(found["serial"][2]) == 3


class Reusing(SerialExecutor):
    """Uses the memory of an answer again as soon as the next is asked for, as other processes do."""

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]:
        for task in tasks:
            yield (answer := task.by(self._worker, broadcast))
            for result in answer.results:
                for array in result.observed.arrays.values() if result.observed else ():
                    array.zero_()


def test_arrays_are_kept_where_memory_is_used_again(tmp_path):
    for name, executor in {"plain": SerialExecutor, "reusing": Reusing}.items():
        engine = trial({}, tmp_path / name, probes=ALL, executor=executor)
        engine.run(card(engine))
    assert _files(tmp_path / "plain") == _files(tmp_path / "reusing")


def test_probes_are_not_part_of_a_runs_id():
    plain, watched = composed([]), composed(["probe=[classifier,forces]", "probe.forces.steps=3"])
    assert run_id(plain) == run_id(watched)
    assert watched["probe"]["forces"]["steps"] == 3


def test_a_step_without_probes_has_nothing_to_call(monkeypatch):
    seen = []
    step = ClientModule.training_step
    monkeypatch.setattr(
        ClientModule, "training_step", lambda self, *a: (seen.append(self.turn.observe), step(self, *a))[1]
    )
    play({}, rounds=1)
    play({}, rounds=1, probes={"means": ClassMeansProbe()})  # which looks at no step
    assert set(seen) == {None}
    play({}, rounds=1, probes={"forces": ForcesProbe()})
    assert set(seen) != {None}


# ---------------------------------------------------------------- what is written
def test_rounds_and_clients_are_those_asked_for(tmp_path):
    probes = {"one": ClassifierProbe(every=2, clients=(0, 3)), "all": ClassMeansProbe()}
    engine = trial({}, tmp_path, rounds=5, fraction=1.0, probes=probes)
    engine.run(card(engine))
    rows = rows_of(tmp_path)
    one = [(r["round"], r["client"]) for r in rows if r["probe"] == "one" and r["name"] == "trained"]
    assert one == [(t, c) for t in (1, 2, 4, 5) for c in (0, 3)]
    assert {r["round"] for r in rows if r["probe"] == "all" and r["client"] is None} == {1, 2, 3, 4, 5}
    assert len({r["client"] for r in rows if r["probe"] == "all"}) > 3


def test_the_trained_model_of_a_client_is_what_the_server_gets(tmp_path):
    """Of one client, the aggregated model is the trained one."""
    engine = trial({}, tmp_path, fraction=0.2, probes={"proxies": ProxiesProbe(project="pca"), "c": ClassifierProbe()})
    engine.run(card(engine))
    rows = rows_of(tmp_path)
    for number in (1, 2, 3):
        of_round = {r["name"]: r["values"] for r in rows if r["round"] == number and r["probe"] == "c"}
        assert of_round["trained"]["norms"] == pytest.approx(of_round["aggregated"]["norms"])
        arrays = load_file(tmp_path / f"probes/round-{number:04d}.safetensors")
        names = [n for n in arrays if n.endswith("trained/features")]
        assert len(names) == 1
        assert torch.allclose(arrays[names[0]], arrays["proxies/server/aggregated/features"], atol=1e-5)


@dataclass(frozen=True, kw_only=True)
class Keeps(Probe):
    """Writes down the classifier of the uploaded model."""

    def client(self, view: ClientView, log: Log) -> None:
        log.array("classifier", view.uploaded["classifier.weight"])


@pytest.mark.parametrize(
    "method",
    [RelativityHeads(), NormalisedAveraging(), PrivatePart(), InheritedPrivateModel()],
    ids=lambda m: type(m).__name__,
)
def test_the_uploaded_model_is_the_trained_one_whatever_is_sent_of_it(method, tmp_path):
    """A classifier that goes by mailbox or stays private; steps instead of models; the first half of the steps."""
    recorder = Recorder()
    engine = trial({"method": method, "r": recorder}, tmp_path, rounds=2, probes={"keeps": Keeps()})
    engine.run(card(engine))
    for number in (1, 2):
        arrays = load_file(tmp_path / f"probes/round-{number:04d}.safetensors")
        for local in (r for r in recorder.rounds if r.round == number - 1):
            (name,) = (n for n in arrays if n.endswith(f"/{local.client}/classifier"))
            assert torch.equal(arrays[name], local.ends["local"]["classifier.weight"])


def test_final_rounds_are_not_observed(tmp_path):
    result = fedexp.run([*FAST, CHOSEN, "evaluate.all_clients=true", f"out={tmp_path}"])
    assert {row["round"] for row in rows_of(result.path)} == {1, 2, 3}
    assert set(result.summary["probes"]) == {"classifier", "relativity"}
    assert result.summary["seconds"]["probe"] > 0


# ---------------------------------------------------------------- resuming, force, damage
def _files(path: Path) -> dict[str, bytes]:
    arrays = {p.name: p.read_bytes() for p in (path / "probes").iterdir()}
    return {"probes.jsonl": (path / "probes.jsonl").read_bytes(), **arrays}


def test_a_run_that_is_taken_up_has_seen_the_same(tmp_path):
    whole = trial(components("map"), tmp_path / "whole", probes=ALL)
    whole.run(card(whole))
    first = trial(components("map"), tmp_path / "parts", probes=ALL)
    first.every, first.rounds = Every(1, 2), 99  # a checkpoint after the second round
    first.play(3)  # the third is lost with the process
    assert (tmp_path / "parts/probes/round-0003.safetensors").exists()
    (tmp_path / "parts/probes/round-0009.safetensors").write_bytes(b"of a killed process")
    second = trial(components("map"), tmp_path / "parts", probes=ALL)
    assert sorted(p.name for p in (tmp_path / "parts/probes").iterdir()) == [
        "round-0001.safetensors", "round-0002.safetensors",
    ]  # fmt: skip
    second.run(card(second))
    assert _files(tmp_path / "whole") == _files(tmp_path / "parts")


def test_arrays_that_were_changed_are_noticed_when_a_run_is_taken_up(tmp_path):
    engine = trial({}, tmp_path, probes=ALL)
    engine.play(2)
    engine.checkpoint.save(engine.progress)
    (tmp_path / "probes/round-0001.safetensors").write_bytes(b"other")
    with pytest.raises(DamagedError, match=r"round-0001\.safetensors is damaged"):
        engine.rundir.check(engine.progress.written)


def test_a_finished_run_has_checksums_of_what_probes_saw(tmp_path):
    result = fedexp.run([*FAST, CHOSEN, f"out={tmp_path}"])
    checksums = result.summary["checksums"]
    assert {"probes.jsonl", "probes/round-0001.safetensors"} <= checksums.keys()
    arrays = result.path / "probes/round-0002.safetensors"
    before = arrays.read_bytes()
    for damaged in (before[:-1], b""):
        arrays.write_bytes(damaged)
        with pytest.raises(DamagedError, match=r"round-0002\.safetensors is damaged"):
            RunDir(result.path).result()
    arrays.unlink()
    with pytest.raises(DamagedError, match=r"round-0002\.safetensors is missing"):
        RunDir(result.path).result()
    arrays.write_bytes(before)
    assert RunDir(result.path).result() == result.summary


def test_force_removes_what_was_seen_and_a_run_without_probes_has_none(tmp_path):
    path = fedexp.run([*FAST, CHOSEN, f"out={tmp_path}"]).path
    assert (path / "probes").is_dir()
    plain = fedexp.run([*FAST, "force=true", f"out={tmp_path}"])
    assert plain.path == path
    assert not (path / "probes").exists()
    assert not (path / "probes.jsonl").exists()
    assert "probes" not in plain.summary


# ---------------------------------------------------------------- finished without them
def test_a_finished_run_says_which_probes_have_not_observed_it(tmp_path, capsys):
    from rich.console import Console

    run = [*FAST, "probe=classifier", f"out={tmp_path}"]
    fedexp.run(run)
    assert fedexp.run(run, console=Console(width=500)).status == "skipped"
    assert "note" not in capsys.readouterr().out
    asked = [*FAST, "probe=[classifier,forces]", "probe.classifier.every=2", f"out={tmp_path}"]
    assert fedexp.run(asked, console=Console(width=500)).status == "skipped"
    said = capsys.readouterr().out
    assert "note: probe classifier has observed it with other settings (every=1). force=true runs it again" in said
    assert "note: probe forces has not observed it. force=true runs it again" in said
    again = fedexp.run([*asked, "force=true"])
    assert again.status == "finished"
    assert set(again.summary["probes"]) == {"classifier", "forces"}


def test_probes_that_came_later_have_not_observed_the_run(tmp_path):
    first = trial({}, tmp_path, probes={"a": ClassMeansProbe()})
    first.play(1)
    first.checkpoint.save(first.progress)
    second = trial({}, tmp_path, probes={"b": ClassMeansProbe()})
    second.play(2)
    second.checkpoint.save(second.progress)
    third = trial({}, tmp_path, probes={"b": ClassMeansProbe()})
    third.run(card(third))
    told = [
        (r["round"], r["probe"], r["values"] is None) for r in third.rundir.observations() if r["name"] == "settings"
    ]
    assert told == [(1, "a", False), (2, "a", True), (2, "b", False)]
    assert observations.observed(third.rundir.observations()) == {}


def test_a_run_that_goes_on_with_other_probes_says_what_they_have_missed(tmp_path, capsys, monkeypatch):
    from rich.console import Console

    run = [*FAST, f"out={tmp_path}", "probe=forces"]
    monkeypatch.setattr(Engine, "commit", _stop_after(Engine.commit, 2))
    with pytest.raises(KeyboardInterrupt):
        fedexp.run(run)
    monkeypatch.undo()
    result = fedexp.run([*run, "probe=[classifier,forces]"], console=Console(width=500))
    said = capsys.readouterr().out
    assert "probe classifier has not observed the first 2 rounds with these settings." in said
    assert "probe forces has not" not in said
    assert set(result.summary["probes"]) == {"forces"}


def _stop_after(commit: Any, rounds: int) -> Any:
    def stopping(self: Engine, *args: Any) -> None:
        commit(self, *args)
        if self.progress.state.round == rounds:
            raise KeyboardInterrupt

    return stopping


# ---------------------------------------------------------------- a probe that fails
@dataclass(frozen=True, kw_only=True)
class Failing(Probe):
    where: str = "client"

    def step(self, step: Step, at: Place, log: Log) -> None:
        self._fail("step")

    def client(self, view: ClientView, log: Log) -> None:
        self._fail("client")

    def server(self, view: ServerView, log: Log) -> None:
        self._fail("server")

    def _fail(self, seam: str) -> None:
        if seam == self.where:
            raise LookupError("no such thing")


@pytest.mark.parametrize("where", ["step", "client", "server"])
def test_a_probe_that_fails_stops_the_run_and_leaves_no_client_out(where):
    place = "server" if where == "server" else r"client \d"
    words = rf"^round 1, {place}: probe 'mine' failed \(LookupError: no such thing\)\. Mend it, or leave it out"
    with pytest.raises(ProbeError, match=words):
        play({}, probes={"mine": Failing(where=where)}, faults=Faults("skip", None))


# ---------------------------------------------------------------- configuration
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["probe=[clasifier]"], "probe=clasifier: there is no such choice. Did you mean 'classifier'"),
        (["probe=clasifier"], "probe=clasifier: there is no such choice. Did you mean 'classifier'"),
        (["probe=[classifier]", "probe.classifier.evry=2"], "Did you mean 'probe.classifier.every'"),
        (["probe=[classifier]", "probe.classifier.every=0"], "probe.classifier.every must be"),
        (["probe.forces.steps=2"], "probe.forces.steps is a setting of probe=forces"),
        (["probe=null"], "not the name of a file of probe"),
        (["probe=[1]"], "not the name of a file of probe"),
        (["algo=[map]"], "not the name of a file of algo"),
        (["+probe.mine._target_=fedexp.algos.fedprox.FedProx"], "is not in fedexp.probes"),
    ],
)
def test_bad_settings_of_probes_get_a_sentence(overrides, words):
    with pytest.raises(ConfigError) as error:
        composed(overrides)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["probe=proxies"], "probe.proxies: draws features in the plane, and this network has 16 of them"),
        (["probe=classifier", "probe.classifier.clients=[7]"], "names client 7, and the last one is 5"),
    ],
)
def test_what_cannot_be_observed_is_said_before_anything_is_written(overrides, words, tmp_path):
    with pytest.raises(ConfigError) as error:
        fedexp.run([*FAST, *overrides, f"out={tmp_path / 'out'}"])
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


def test_overrides_of_a_run_with_probes_compose_to_it_again():
    config = composed(["probe=[classifier,forces]", "probe.forces.steps=3"])
    again = overrides_of(config)
    assert "probe=[classifier,forces]" in again
    assert composed(again) == config


def test_a_configuration_from_before_there_were_probes_is_whole():
    from fedexp.config.compose import checked

    old = {k: v for k, v in composed([]).items() if k != "probe"}
    assert checked(old)["seed"] == 0


def test_a_probe_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "conf/probe").mkdir(parents=True)
    (tmp_path / "conf/probe/lengths.yaml").write_text("lengths: {_target_: lengths.Lengths, every: 1, clients: []}\n")
    (tmp_path / "conf/lengths.py").write_text(
        "from dataclasses import dataclass\nfrom fedexp.probes.base import Probe\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Lengths(Probe):\n"
        "    def client(self, view, log):\n        log.row('trained', {'samples': view.info.n})\n"
    )
    monkeypatch.chdir(tmp_path)
    result = fedexp.run([*FAST, "probe=[lengths]", f"out={tmp_path}"], config_dir=tmp_path / "conf")
    rows = rows_of(result.path)
    assert len(rows) == 9
    assert all(row["values"]["samples"] > 0 for row in rows)


# ---------------------------------------------------------------- a scene with a known answer
def test_circles_with_a_linear_model(tmp_path):
    """A client with the second and the third disc tells them apart along the line between them, straight up and down.

    The first class's vector, which nothing there pulls, does not point to its disc. By symmetry, that of the mean does,
    and those of the other two classes are mirror images.
    """
    result = fedexp.run([
        "algo=fedavg", "data=circles", "model.hidden=[]", "partition=explicit",
        "partition.classes=[[0,1],[0,2],[1,2]]", "cohort.clients=3", "cohort.fraction=1", "rounds=1",
        "local.epochs=40", "optim.weight_decay=0", "executor=serial", "loop=fabric", "evaluate.all_clients=false",
        "probe=proxies", "probe.proxies.clients=[2]", f"out={tmp_path}",
    ])  # fmt: skip
    found = {row["name"]: row["values"]["directions"] for row in rows_of(result.path)}
    assert found["trained"][1:] == pytest.approx([90, -90], abs=10)
    assert abs(found["trained"][0]) > 90
    assert found["aggregated"][0] == pytest.approx(0, abs=10)
    assert found["aggregated"][1] == pytest.approx(-found["aggregated"][2], abs=10)
