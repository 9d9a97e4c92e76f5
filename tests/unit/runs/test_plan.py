"""The plan: bytes before anything runs, and what is printed."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedexp.algos.ditto import Ditto
from fedexp.algos.fedrs import ClassWeightedAggregation, RestrictedSoftmax
from fedexp.algos.scaffold import Scaffold
from fedexp.build import build
from fedexp.core.state import nbytes
from fedexp.runs.plan import forecast
from fedexp.runs.storage_estimate import Capacity, Demand, StorageEstimate
from fedexp.testing import play

MODEL = 4 * (16 * 8 + 8 + 8 * 4)  # the tiny network: 16-8-4, one bias
NORM = 4 * 4 * 8 + 8  # scale, shift, mean, variance; and a counter


@pytest.mark.parametrize(
    ("components", "norm", "down", "up"),
    [
        ({}, False, {"model": MODEL}, {"model": MODEL}),
        ({}, True, {"model": MODEL + NORM}, {"model": MODEL + NORM}),
        ({"rs": RestrictedSoftmax()}, False, {"model": MODEL}, {"model": MODEL}),
        ({"d": Ditto(during=("ditto",))}, False, {"model": MODEL}, {"model": MODEL}),
        (
            {"s": Scaffold()}, False, {"model": MODEL, "s.c": MODEL}, {"model": MODEL, "s.dc": MODEL},
        ),
        ({"rows": ClassWeightedAggregation()}, False, {"model": MODEL}, {"model": MODEL, "rows.counts": 4 * 4}),
    ],
    ids=["fedavg", "norm", "fedrs", "ditto", "scaffold", "rows"],
)  # fmt: skip
def test_the_forecast_is_what_the_ledger_observes(components, norm, down, up):
    engine = play(components, rounds=2, norm=norm)
    assert forecast(engine.algorithm) == (down, up)
    messages = 2 * engine.sampler.size
    assert engine.ledger.down == messages * sum(down.values())
    assert engine.ledger.up == messages * sum(up.values())


@pytest.mark.parametrize("algo", ["fedavg", "scamap", "ditto_rs", "fedgela", "fedrema", "fedmr"])
def test_the_plan_of_a_configured_run_is_what_is_sent(configured, tmp_path, algo):
    import fedexp

    config = configured(f"algo={algo}", "rounds=2")
    plan = build(config).plan.content
    result = fedexp.run({**config, "out": str(tmp_path)})
    assert result.summary["bytes"]["down"] == 2 * plan["bytes_per_round"]["down"]
    assert result.summary["bytes"]["up"] == 2 * plan["bytes_per_round"]["up"]
    assert plan["bytes_per_round"]["up"] == 3 * plan["bytes_per_client_and_round"]["up"]
    assert json.loads((result.path / "plan.json").read_text()) == json.loads(json.dumps(plan))


def test_what_the_plan_says(configured):
    experiment = build(configured("algo=scamap"))
    content = experiment.plan.content
    assert content["components"] == {
        "rs": "RestrictedSoftmax", "hpm": "InheritedPrivateModel", "scaffold": "Scaffold",
    }  # fmt: skip
    assert [p["name"] for p in content["phases"]] == ["local", "personal"]
    assert set(content["slots"]) == {"rs.factors", "hpm.model", "hpm.seen", "scaffold.c", "scaffold.ck"}
    assert content["slots"]["scaffold.c"]["down"]
    assert content["cohort"] == {"clients": 6, "per_round": 3}
    net = experiment.net
    total = sum(p.numel() for p in net.parameters())
    assert content["parameters"] == {
        "total": total, "features": total - 160, "classifier": 160, "shared": total,
    }  # fmt: skip
    assert content["bytes_kept_per_client"] == 2 * nbytes(dict(net.named_parameters())) + 8  # two models and a counter
    assert content["seams"]["logits"] == ["rs"]
    assert len(content["partition"]["counts"]) == 6
    json.dumps(content)


def test_the_digest_tells_plans_apart_and_nothing_else(configured):
    def digest(*overrides: str) -> str:
        return build(configured(*overrides)).plan.digest

    plain = digest()
    assert digest("optim.lr=0.5", "rounds=9", "local.epochs=2") == plain  # those are in the run's id
    others = {digest(o) for o in ("algo=fedrs", "seed=1", "model.hidden=[8]")}
    assert len(others | {plain}) == 4


def test_the_plan_is_printed_whole(configured):
    plan = build(configured("algo=scamap", "cohort.clients=30")).plan
    console = Console(file=io.StringIO(), width=140)
    replace(plan, content={**plan.content, "notes": ["[bold]as it is[/]"]}).show(console)
    text = console.file.getvalue()
    for part in ("scamap · digits", "personal", "rs.logits", "scaffold.grads", "hpm.loss", "InheritedPrivateModel",
                 "scaffold.ck", "15 of 30 clients", "first 20 of 30", "note: [bold]as it is[/]"):  # fmt: skip
        assert part in text, part


def test_fedavg_is_printed_as_such(configured):
    console = Console(file=io.StringIO(), width=140)
    build(configured()).plan.show(console)
    assert "none (FedAvg)" in console.file.getvalue()


# ---------------------------------------------------------------- memory and disk
def test_the_footprint_of_a_run(configured):
    experiment = build(configured("algo=scamap", "rounds=9", "every.checkpoint=1", "store=memory"))
    content, net = experiment.plan.content, experiment.net
    model, kept = nbytes(dict(net.named_parameters())), content["bytes_kept_per_client"]
    data = experiment.data
    samples = sum(t.nbytes for s in (data.train, data.test) for t in (s.x, s.y))
    found = content["footprint"]
    assert (found["cohort"], found["keepers"], found["between"]) == (3, 6, 3)
    assert found["memory"] == {
        "data": samples, "server": 4 * model, "clients": (6 + 3) * kept, "uploads": 2 * model,
    }  # fmt: skip
    assert found["disk"] == {"server": 3 * 2 * model, "clients": (6 + 2 * 3) * kept}
    heads = build(configured("algo=fedrema")).plan.content["footprint"]  # those are kept by client
    assert 0 < heads["up_kept"] == heads["mail"] < heads["up"]
    assert heads["memory"]["uploads"] == heads["up"] + 3 * heads["mail"]
    assert build(configured("algo=scamap", "rounds=1")).plan.content["footprint"]["keepers"] == 3


@pytest.mark.parametrize("algo", ["scamap", "fedrema", "fedavg", "ditto"])
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_a_run_stays_within_its_footprint(configured, monkeypatch, algo, store):
    """What is on disk at any save, and what a store holds, against what was forecast."""
    import fedexp
    from fedexp.runs.client_store import ClientStore
    from fedexp.runs.tensor_files import TensorFiles

    hold = 50_000 if algo == "scamap" else 1000
    for module in ("build", "runs.storage_estimate"):
        monkeypatch.setattr(f"fedexp.{module}.SLOT_MEMORY_BYTES", hold)
    config = configured(f"algo={algo}", "rounds=6", "every.checkpoint=2", "cohort.fraction=0.34", f"store={store}")
    expected = build(config).plan.content["footprint"]
    disk, memory = [0], [0]
    sync, put = TensorFiles.sync, ClientStore.put

    def watched_sync(self):
        sync(self)
        disk.append(sum(p.stat().st_size - 8 - int.from_bytes(p.read_bytes()[:8], "little")
                        for p in self.folder.glob("*.safetensors")))  # fmt: skip

    def watched_put(self, client, private):
        put(self, client, private)
        memory.append(self._bytes)

    monkeypatch.setattr(TensorFiles, "sync", watched_sync)
    monkeypatch.setattr(ClientStore, "put", watched_put)
    fedexp.run(config)
    assert max(disk) <= sum(expected["disk"].values()) <= 3 * max(disk)
    assert max(memory) <= expected["memory"]["clients"]
    assert expected["memory"]["clients"] <= 3 * max(memory) or store == "disk"


GB = 10**9


@pytest.mark.parametrize(
    ("store", "memory", "disk", "chosen", "said"),
    [
        ("auto", 100 * GB, 1000 * GB, "memory", []),
        ("auto", 39 * GB, 1000 * GB, "disk", ["store: clients' slots (10.0 MB for each of 1,000 clients)"]),
        ("disk", 100 * GB, 1000 * GB, "disk", []),
        ("memory", 8 * GB, 1000 * GB, "memory", ["memory: the run needs up to 12.1 GB", "available. Use store=disk"]),
        ("memory", 39 * GB, 29 * GB, "memory", ["disk: checkpoints need up to 30.1 GB in runs", "29.0 GB is free"]),
        ("disk", 1 * GB, 30 * GB, "disk", ["memory: the run needs up to 1.12 GB", "Use a smaller model", "disk: "]),
    ],
)  # fmt: skip
def test_the_store_and_the_warnings_follow_from_the_room(store, memory, disk, chosen, said):
    load = Demand(data=5 * GB, server=20 * 10**6, kept=10**7, mail=0, up=10**7, up_kept=10**7, keepers=1000, cohort=100,
                between=1000)  # fmt: skip
    room = Capacity(memory, disk, Path("runs"))
    found = StorageEstimate.of(load, store, room)
    assert found.store == chosen
    text = "\n".join(found.notes(room, store))
    for part in said:
        assert part in text
    assert bool(text) == bool(said)


def test_the_room_of_a_folder_that_is_not_there_yet(tmp_path):
    room = Capacity.of(tmp_path / "not" / "yet")
    assert room.disk == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert room.memory > 0


def test_what_will_not_fit_is_said_before_the_run(configured, monkeypatch):
    monkeypatch.setattr("fedexp.build.Capacity.of", lambda out: Capacity(10**4, 10**4, out))
    plan = build(configured("algo=map")).plan
    assert [n.split(":")[0] for n in plan.content["notes"]] == ["store", "memory", "disk"]
    console = Console(file=io.StringIO(), width=200)
    plan.show(console)
    for part in ("memory, at most", "disk, at most", "note: disk: checkpoints need up to", "10.0 kB is free there"):
        assert part in console.file.getvalue()
