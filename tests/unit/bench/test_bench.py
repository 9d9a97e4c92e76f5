"""The benchmark compares like with like, and computes its ratios right."""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from fedexp.bench import imports, record, startup, usage
from fedexp.bench.__main__ import main
from fedexp.bench.arguments import add_loop_options, loop_overrides
from fedexp.bench.contest import Contestant, Lap, interleave
from fedexp.bench.ours import counted, timed
from fedexp.bench.passes import mark
from fedexp.bench.peers import catalog
from fedexp.bench.ratios import RatioSpread, to_neighbours
from fedexp.bench.raw import Crew, RawTask, Setting, Shuffle, carried
from fedexp.bench.raw_player import WORKERS
from fedexp.bench.report import ReportLine, lines, show
from fedexp.bench.speed import VARIANTS
from fedexp.bench.startup import launch
from fedexp.bench.workload import WORKLOADS
from fedexp.build import build
from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.core.seeding import derive
from fedexp.display import SilentDisplay
from fedexp.errors import FedexpError
from fedexp.runs.directory import RunDir
from fedexp.server.sampler import UniformSampler
from tests.unit.bench.players import counts, dies, fails, works

W0 = WORKLOADS["W0"]


# ---------------------------------------------------------------- ratios
def test_ratio_is_to_the_mean_of_the_neighbours():
    times = [("raw", 1.0), ("a", 3.0), ("raw", 2.0), ("b", 3.0), ("raw", 4.0), ("a", 8.0), ("raw", 4.0)]
    assert to_neighbours(times, "raw") == {"a": [2.0, 2.0], "b": [1.0]}


def test_a_machine_that_slows_down_leaves_ratios_alone():
    speed = iter(np.linspace(1, 5, 41))
    times = [("raw" if i % 2 == 0 else "a", (1 if i % 2 == 0 else 3) * next(speed)) for i in range(41)]
    assert to_neighbours(times, "raw")["a"] == pytest.approx([3.0] * 20)


@pytest.mark.parametrize("times", [[], [("a", 1.0), ("raw", 1.0)], [("raw", 1.0), ("a", 1.0)]])
def test_a_time_without_two_neighbours_is_refused(times):
    with pytest.raises(ValueError, match="begin and end"):
        to_neighbours(times, "raw")


def test_spread():
    assert RatioSpread.of([4.0, 1.0, 2.0, 3.0, 5.0]) == RatioSpread(
        median=3.0, lower=2.0, upper=4.0, least=1.0, most=5.0
    )
    assert RatioSpread.of([2.0]) == RatioSpread(2.0, 2.0, 2.0, 2.0, 2.0)


def lap(wall: float, cpu: float = 0.0, memory: float = 0.0, **seconds: float) -> Lap:
    return Lap(wall=wall, cpu=cpu, others=0.0, memory=memory, seconds=seconds)


class Told(Contestant):
    """A contestant whose laps are given."""

    def __init__(self, name: str, laps: list[Lap], calls: list[str]) -> None:
        super().__init__(name, print, ())
        self._given, self._calls = iter(laps), calls

    def lap(self, rounds: int = 1) -> Lap:
        self._calls.append(self.name + str(rounds))
        self.laps.append(next(self._given))
        return self.laps[-1]


def test_turns_alternate_with_the_base_and_warm_up_is_forgotten():
    calls: list[str] = []
    base = Told("raw", [lap(100.0), *(lap(2.0, memory=m) for m in (1, 5, 3, 1, 1))], calls)
    a, b = (Told(n, [lap(100.0), lap(3.0, train=2.0, write=0.5), lap(5.0, train=2.0)], calls) for n in "ab")
    times = interleave(base, [a, b], 2, warmup=1, row=3, tell=lambda _: None)
    assert calls == [*("raw3", "a3", "b3"), "raw3", *("a3", "raw3", "b3", "raw3") * 2]
    first, second, third = lines(base, [a, b], times, {"a": "why"})
    assert (first.ratio, first.memory) == (None, 5)
    assert second.ratios == [1.5, 2.5]
    assert second.seconds == {"train": 2.0, "write": 0.25, "other": 1.75}
    assert (second.note, third.note) == ("why", "")


def test_laps_of_earlier_groups_are_kept_when_the_next_one_warms_up():
    base = Told("raw", [lap(1.0)] * 6, [])
    for other in (Told(name, [lap(2.0)] * 2, []) for name in "ab"):
        interleave(base, [other], 1, warmup=1, row=1, tell=lambda _: None)
    assert len(base.laps) == 4


def test_accuracies_are_those_after_equally_many_rounds():
    base, a, b = (Told(n, [lap(1.0)] * 3, []) for n in ("raw", "a", "b"))
    times = interleave(base, [a, b], 1, warmup=0, row=1, tell=lambda _: None)
    base.learned, a.learned = {1: 0.1, 2: 0.2, 3: 0.3}, {1: 0.15, 2: 0.25}
    assert [line.accuracy for line in lines(base, [a, b], times, {})] == [0.2, 0.25, None]  # b is not tested


def test_parallel_work_leaves_the_rest_of_all_cores_as_other(monkeypatch):
    monkeypatch.setattr(usage, "cores", lambda: 2)
    base, other = Told("raw", [lap(1.0)] * 2, []), Told("a", [lap(3.0, cpu=5.5, train=5.0)], [])
    times = interleave(base, [other], 1, warmup=0, row=1, tell=lambda _: None)
    assert lines(base, [other], times, {})[1].seconds["other"] == pytest.approx(1.0)


# ---------------------------------------------------------------- the same steps
@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    W0.deal(folder)
    return composed([*W0.overrides(folder), "loop=fabric", "rounds=3"])


@pytest.fixture(scope="module")
def convolutional(scene):
    lenet = composed(["model=lenet"])["model"]
    return {**scene, "model": lenet, "data": {**scene["data"], "size": 16}}


@pytest.fixture(scope="module")
def normalised(scene):
    resnet = composed(["model=resnet20", "model.blocks=[1,1]", "model.widths=[8,16]"])["model"]
    return {**scene, "model": resnet}


@pytest.fixture(scope="module")
def taught(scene, tmp_path_factory):
    """MAP on clients with some of the classes, each of which takes part in most rounds."""
    folder = tmp_path_factory.mktemp("taught")
    rows = np.arange(300).reshape(10, 30)  # generated images come class by class
    clients = [np.concatenate([rows[(k + i) % 10, 10 * i : 10 * (i + 1)] for i in range(3)]) for k in range(6)]
    clients = [np.concatenate([own, rows[k, 20:30]]) for k, own in enumerate(clients)]
    (folder / "partition.json").write_text(json.dumps({"clients": [{"train": own.tolist()} for own in clients]}))
    return composed(
        [*replace(W0, algo="map").overrides(folder), "loop=fabric", "rounds=4", "cohort.fraction=0.8",
         "algo.rs.alpha=0.3", "algo.hpm.weight=0.5"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("which", "setting"),
    [
        ("scene", Setting(1, 1)),
        ("scene", Setting(2, 1)),
        ("convolutional", Setting(1, 1)),
        ("convolutional", Setting(2, 1, channels_last=True)),
        ("normalised", Setting(1, 1)),
        ("normalised", Setting(2, 1, channels_last=True)),
        ("taught", Setting(1, 1)),
        ("taught", Setting(2, 1)),
    ],
    ids=str,
)
def test_raw_loop_takes_exactly_the_steps_of_fedexp(which, setting, tmp_path, request):
    scene = request.getfixturevalue(which)
    experiment = build({**scene, "out": str(tmp_path)})
    task = RawTask.of(experiment)
    task.save(tmp_path)
    task = RawTask.load(tmp_path)  # a copy: training ours must not move it

    def order(round_, client):
        seed = derive(scene["seed"], "batches", round_, client, "local")
        due = W0.epochs * experiment.data.steps_per_epoch(client, W0.batch_size)
        batches = experiment.data.batches(client, size=W0.batch_size, begin=0, end=due, seed=seed)
        rows = batches._rows()
        return (next(rows) for _ in range(due))

    sampler = UniformSampler(scene["seed"], W0.clients, scene["cohort"]["fraction"])
    crew = Crew(task, setting, order, sampler, WORKERS["map" if which == "taught" else "fedavg"])
    played = [crew.play(t) for t in range(scene["rounds"])]
    crew.close()
    with RunDir(run_path(experiment.config)) as rundir:
        engine = experiment.engine(rundir, SilentDisplay())
        engine.open()
        records = engine.run(experiment.card(rundir))
        kept = {c: engine.progress.store.get(c) for c in engine.progress.store}
    assert {steps for _, steps, _ in played} == {W0.steps * len(sampler(0)) // W0.per_round}
    model = dict(zip(names(task.net), crew.weights, strict=True))
    start = dict(zip(names(task.net), carried(task.net), strict=True))
    for name, raw in model.items():
        own = engine.progress.state.model[name]
        torch.testing.assert_close(raw, own, rtol=0, atol=1e-5)
        assert (own - start[name]).abs().max() > 1e-3  # it has learnt something
    assert [accuracy for *_, accuracy in played] == pytest.approx([r["aggregation"]["accuracy"] for r in records])
    if which == "taught":
        seen, *private = crew._memory
        assert {int(kept[c]["hpm.seen"]["value"]) for c in kept} >= {2, 3}  # so private models taught and inherited
        for client, slots in kept.items():
            assert seen[client] == slots["hpm.seen"]["value"]
            for name, models in zip(names(task.net), private, strict=True):
                torch.testing.assert_close(models[client], slots["hpm.model"][name], rtol=0, atol=1e-5)


def names(net):
    return [n for n, _ in net.named_parameters()] + [n for n, b in net.named_buffers() if b.is_floating_point()]


def test_shuffle_has_batches_of_the_same_sizes(scene):
    task = RawTask.of(build(scene))
    batches = list(Shuffle(task.rows, W0.epochs, W0.batch_size)(0, 2))
    assert [len(b) for b in batches] == [16, 16, 8] * 2
    assert sorted(torch.cat(batches[:3]).tolist()) == sorted(task.rows[2].tolist())
    assert batches[0].tolist() != batches[3].tolist()


def test_workloads_are_what_they_say(tmp_path):
    for name, parameters, steps in (
        ("W1", 61_706, 400),
        ("W2", 669_706, 400),
        ("W3", 669_706, 100),
        ("W4", 2_410, 800),
        ("W5", 272_474, 100),
        ("W6", 61_706, 400),
    ):
        workload = WORKLOADS[name]
        overrides = [o for o in workload.overrides(tmp_path) if not o.startswith("data")]
        workload.deal(tmp_path)
        small = ["data=synthetic", "data.samples=6000", "data.test=1", "data.noise=0", f"data.size={workload.size}"]
        small.append(f"data.channels={workload.channels}")
        if name in ("W1", "W4", "W5"):
            experiment = build(composed([*overrides, *small]))
            assert sum(p.numel() for p in experiment.net.parameters()) == parameters
        rows = json.loads((tmp_path / "partition.json").read_text())["clients"]
        assert {len(r["train"]) for r in rows} == {workload.samples}
        assert len({i for r in rows for i in r["train"]}) == workload.clients * workload.samples
        assert workload.steps == steps


# ---------------------------------------------------------------- contestants
def test_a_turn_is_so_many_whole_rounds_of_the_engine(scene, tmp_path):
    config = {**scene, "out": str(tmp_path), "rounds": 50}
    with RunDir(run_path(config)) as rundir:
        engine = build(config).engine(rundir, SilentDisplay())
        engine.open()
        turns = [timed(engine, 1), timed(engine, 2)]
        assert len(engine.records) == len(rundir.records()) == 3
    for turn, last in zip(turns, (engine.records[0], engine.records[2]), strict=True):
        assert turn["accuracy"] == last["aggregation"]["accuracy"]
        assert turn["wall"] >= sum(turn["seconds"].values()) > 0
    total = {k: turns[0]["seconds"][k] + turns[1]["seconds"][k] for k in ("train", "evaluate", "aggregate")}
    assert total == pytest.approx({k: engine.progress.seconds[k] for k in total})


def test_a_lap_of_several_rounds_is_their_mean():
    with Contestant("counter", counts, ()) as counter:
        one, four = counter.lap(), counter.lap(4)
    assert (one.wall, one.seconds, one.steps) == (3.0, {"train": 2.0}, 7)
    assert (four.wall, four.seconds, four.steps) == (3.0, {"train": 2.0}, 7)
    assert four.accuracy == 0.5
    assert counter.learned == {1: 0.5, 5: 0.5}


def test_contestant_that_dies_or_fails_is_named():
    with pytest.raises(FedexpError, match="dier: its process ended with code 3"), Contestant("dier", dies, ()):
        pass
    with Contestant("failer", fails, ()) as failer, pytest.raises(FedexpError, match="failer: FedexpError: no such"):
        failer.lap()


def test_contestant_counts_its_own_cpu_and_memory():
    with Contestant("worker", works, ()) as worker:
        one = worker.lap()
        process = worker._process
    assert one.cpu >= 0.03
    assert 5 < one.memory < 2000
    assert not process.is_alive()


FAMILY = """
import os
from fedexp.bench import imports, record, usage
block = bytearray(b"x" * 200_000_000)
alone = usage.memory([os.getpid()])
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(write)
    os.read(read, 1)  # until its parent ends
    os._exit(0)
print(usage.family(os.getpid()) == [os.getpid(), child], alone, usage.memory([os.getpid(), child]))
"""


def test_memory_counts_shared_pages_of_a_family_once():
    # in a small process of its own: in this one, other tests' threads and objects would be copied after the fork
    answer = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True, check=True).stdout.split()
    alone, both = map(float, answer[1:])
    assert answer[0] == "True"
    assert alone > 200
    assert both < alone + 100


# ---------------------------------------------------------------- the command
@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(["W33"], "W3"), (["W0", "--variants", "fabrik/serial"], "fabric/serial"), (["algos", "fedmd"], "fedmr")],
)
def test_what_is_misspelt_is_answered(arguments, hint, capsys):
    assert main(arguments) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.endswith("/ray")])
def test_every_variant_takes_the_usual_options(variant):
    parser = argparse.ArgumentParser()
    add_loop_options(parser)
    assert composed([*VARIANTS[variant], *loop_overrides(parser.parse_args([]))])
    asked = loop_overrides(parser.parse_args(["--device", "cpu", "--compile"]))
    assert asked == ["loop.accelerator=cpu", "loop.compile=true"]


def test_command_prints_ratios_of_those_who_are_here_and_writes_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "_installed", lambda _: False)
    out = tmp_path / "out.json"
    asked = ["W0", "--turns", "2", "--warmup", "1", "--variants", "fabric/serial", "--json", str(out), "--to", "a/b"]
    assert main([*asked, "--peers", "fluke"]) == 0
    shown = capsys.readouterr().out
    assert "fluke is left out: it needs fluke-fl==" in shown
    assert "generated images" in shown
    assert "fabric/serial" in shown
    found = json.loads(out.read_text())
    assert torch.__version__.startswith(found["versions"]["torch"])
    raw, ours = found["speed"]["W0"]["lines"]
    assert raw["ratio"] is None
    assert len(ours["ratios"]) == 2
    assert ours["ratio"]["median"] == pytest.approx(np.median(ours["ratios"]))
    assert ours["seconds"].keys() >= {"train", "evaluate", "aggregate", "write", "other"}
    (table,) = (tmp_path / "a" / "b").iterdir()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "a", out]
    assert f"written to {table.relative_to(tmp_path)}" in shown
    assert table.name.startswith("speed_")
    assert f"_{usage.cores()}-cores_torch-{found['versions']['torch']}_" in table.name
    with table.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["workload"], first["name"], first["ratio"], first["turns"]) == ("W0", "raw", "", "")
    assert (second["against"], second["name"], second["turns"]) == ("raw", "fabric/serial", "2")
    assert float(second["ratio"]) == ours["ratio"]["median"]
    assert float(second["lower_quartile"]) == ours["ratio"]["lower"]
    assert [float(second[k]) for k in ("seconds", "train", "megabytes")] == [
        ours["wall"], ours["seconds"]["train"], ours["memory"]
    ]  # fmt: skip
    for package in ("fedexp", "torch", "lightning"):
        assert second[package] == found["versions"][package]
    assert second["machine"] == found["machine"]["name"] == found["machine"]["processor"]


def test_a_csv_carries_the_name_of_the_accelerator_and_never_replaces_another(tmp_path, monkeypatch):
    line = ReportLine("raw", 1.0, None, [], 1.0, {"train": 1.0}, 1.0, 0.0, 0.0, 0.5)
    monkeypatch.setattr(record, "_accelerator", lambda asked: "Tesla T4 (16 GB)" if asked == "cuda" else None)
    monkeypatch.setattr(record.time, "strftime", lambda _: "now")
    path = record.write_csv(tmp_path, "speed", {"W0": {"data": "generated", "lines": [line]}}, "cuda")
    assert path.name.startswith("speed_Tesla-T4-16-GB_")
    assert "Tesla T4 (16 GB)" in path.read_text()
    with pytest.raises(FileExistsError):
        record.write_csv(tmp_path, "speed", {"W0": {"data": "generated", "lines": [line]}}, "cuda")


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_measurement(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        main(["W0", "--to", str(tmp_path / "file" / "new")])
    assert f"{tmp_path / 'file'} is not a folder" in capsys.readouterr().err


def test_methods_are_compared_with_fedavg_by_time_and_by_passes(tmp_path, monkeypatch, capsys):
    """Ditto trains a second model in as many steps again."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out.json"
    assert main(["algos", "ditto", "--turns", "1", "--warmup", "1", "--json", str(out)]) == 0
    assert "per pass" in capsys.readouterr().out
    found = json.loads(out.read_text())["algos"]["W0"]
    base, ditto = found["lines"]
    steps = found["steps"]
    assert base["passes"] == 1.0
    assert ditto["passes"] == pytest.approx(2.0, abs=2 / steps)


# ---------------------------------------------------------------- passes
@pytest.mark.parametrize(
    ("method", "forward", "backward"),
    [("fedavg", 1, 1), ("ditto", 2, 2), ("fedphp", 2, 1), ("flda", 2, 1), ("pfedme", 11, 11), ("fedmr", 1, 1)],
)
def test_the_passes_of_a_step_are_counted(method, forward, backward, scene, tmp_path):
    """As the method's formula has them: a teacher is one more forward pass, an inner step one more of both."""
    chosen = composed([f"algo={method}", "executor=serial"])
    everyone = {"cohort": {**scene["cohort"], "fraction": 1.0}, "out": str(tmp_path), "rounds": 50}
    config = {**scene, **everyone, **{key: chosen[key] for key in ("algo", "executor")}}
    with RunDir(run_path(config)) as rundir:
        experiment = build(config)
        mark(experiment.net)
        engine = experiment.engine(rundir, SilentDisplay())
        engine.open()
        engine.play(2)
        passes = counted(engine)["passes"]
    steps = 2 * W0.steps
    assert passes.forward / steps == pytest.approx(forward, abs=0.25)  # tests and first steps are other than the rest
    assert passes.backward / steps == pytest.approx(backward, abs=0.25)


def test_methods_that_are_dearer_than_their_passes_are_named():
    console = Console(file=io.StringIO(), width=200)
    usual = ReportLine("fedavg", 1.0, None, [], 1.0, {"train": 1.0}, 1.0, 0.0, 0.0, None, passes=1.0)
    fair, dear = (
        replace(usual, name=n, ratio=RatioSpread.of([r]), passes=2.0) for n, r in (("fair", 2.4), ("dear", 2.6))
    )
    show("W0", [usual, fair, dear], console)
    assert "more than 1.25 times what their passes explain: dear\n" in console.file.getvalue()


# ---------------------------------------------------------------- start
def test_a_launch_is_timed_from_the_command_to_its_rounds_and_end(tmp_path):
    W0.deal(tmp_path)
    overrides = [*W0.overrides(tmp_path), "executor=serial", "rounds=1", "name=turn"]
    begin, first, end = launch(overrides, tmp_path / "runs" / "turn")
    assert 0.1 < begin < first <= end
    with pytest.raises(FedexpError, match="failed in"):
        launch([*overrides, "optim.lr=fast"], tmp_path / "runs" / "turn")


IMPORTS = """\
import time: self [us] | cumulative | imported package
import time:       250 |        250 |     torch._C
something that a run says
import time:      1000 |       1250 |   torch
import time:        40 |       1290 | fedexp.build
import time:      2000 |       2000 | torch.nn.modules
import time:         7 |          7 | fedexpert
"""


def test_imports_are_counted_by_package_without_what_they_import():
    assert list(imports.by_package(IMPORTS).items()) == [("torch", 0.00325), ("fedexp", 4e-5), ("fedexpert", 7e-6)]


def test_the_start_is_shown_with_its_imports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(startup, "launch", lambda *_: (1.0, 2.0, 4.0))  # it has a test of its own
    out = tmp_path / "out.json"
    assert main(["startup", "W0", "--turns", "1", "--json", str(out)]) == 0
    found = json.loads(out.read_text())["startup"]["W0"]
    assert [found["seconds"][f"{point} of round 1"] for point in ("begin", "end")] == [[1.0], [2.0]]
    assert next(iter(found["imports"])) == "torch"
    assert not {"pandas", "altair", "wandb", "sklearn", "scipy"} & found["imports"].keys()  # a run needs none of them
    assert sum(found["imports"].values()) > 0.1
    shown = " ".join(capsys.readouterr().out.split())
    assert f"W0, seconds of imports by package: torch {found['imports']['torch']:.2f}, " in shown
    assert list(tmp_path.iterdir()) == [out]
    with pytest.raises(FedexpError, match="failed:"):
        imports.measure(["optim.lr=fast"])
